"""Every call of the writer that changes a filesystem stands behind a failpoint, so that tests can kill, fail
or stall it. Read from the source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"
# the callers of their functions have the points
SEAM = (SOURCE / "disk" / "beneath.py", SOURCE / "disk" / "system.py")
ROOMS = ("disk", "shard", "store", "acquire", "recovery", "rework")

CHANGES = {
    "fsync",
    "fdatasync",
    "pwrite",
    "write",
    "ftruncate",
    "posix_fallocate",
    "copy_file_range",
    "preallocate",
    "punch_hole",
    "sync_data",
    "write_all",
    "clear_range",
    "utime",
}
CHANGES |= {
    "unlink",
    "rmdir",
    "mkdir",
    "rmtree",
    "symlink_to",
    "hardlink_to",
    "rename",
    "replace",
    "rename_without_replacing",
    "exchange",
}
# by ``system.calls``, which nobody outside ``disk`` knows
SYSTEM_CHANGES = {"sync", "sync_filesystem", "write", "append", "truncate", "allocate", "punch"}
CHANGES |= SYSTEM_CHANGES
SEAM_CHANGES = {"make_folder", "make_folders", "remove_folder", "remove_tree", "make_link", "rename_with"}
CHANGES |= SEAM_CHANGES
EXCEPTIONS = {
    "disk/files.py:preallocate": "its callers have the point",
    "disk/files.py:punch_hole": "its callers have the point",
    "disk/files.py:rename_without_replacing": "its callers have the point",
    "disk/files.py:replace_by_rename": "its caller has the point",
    "disk/files.py:exchange": "its caller has the point",
    "disk/files.py:add_name": "its callers have the point",
    "disk/ring.py:Ring.__init__": "memory, no filesystem",
    "disk/ring.py:_allocate": "memory, no filesystem",
    "disk/files.py:preallocate_behind": "its callers have the point",
    "disk/files.py:truncate": "its callers have the point",
    "disk/files.py:sync_filesystem": "its callers have the point",
    "disk/files.py:clear_range": "its callers have the point",
    "disk/files.py:write_all": "its callers have the point",
    "disk/files.py:AtomicFile.write_parts": "each step is a method that has the point",
    "disk/files.py:copy_file": "each step is a method that has the point",
    "disk/files.py:replace_file": "replace is NewFile.replace",
    "disk/files.py:NewFile.replace": "replace is AtomicFile.replace",
    "disk/replace_files.py:replace_files": "replace is NewFile.replace",
    "disk/table_file.py:TableFile.abandon": "tidies up after an error",
    "disk/working_file.py:WorkingFile.__init__": "preallocate is AtomicFile.preallocate",
    "disk/choose_io.py:_takes_direct_writes": "a probe before the store holds anything; its failure is "
    "an answer",
    "shard/rewrite.py:rewrite_shard_row": "replace is ShardRowFiles.replace",
    "rework/jobs/hdf5_container.py:_write_virtual": "replace is AtomicFile.replace",
    "rework/jobs/pack_shard.py:_pack": "replace is WorkingFile.replace",
    "recovery/resume.py:_locked": "replace is StoreLock.replace",
    # Only kills at system calls (strace) come here; errors here are not injected by name.
    "disk/lock.py:StoreLock.replace": "deletes its own leftover first; the rename has a point",
    "disk/slot_file.py:SlotFile.punch": "a gap that cannot be given back stays",
    "store/frame_table_writer.py:_build": "an empty folder in the workspace; what goes into it has points",
    "disk/files.py:sync_data": "its caller has the point",
}


def functions(tree: ast.AST, prefix: str = "") -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef):
            yield f"{prefix}{node.name}", node
        elif isinstance(node, ast.ClassDef):
            yield from functions(node, f"{node.name}.")


def called(node: ast.AST) -> Iterator[tuple[str, ast.Call]]:
    """(name, call) of every call below a node: of ``os.fsync(...)`` and ``path.unlink()`` the last part."""
    for call in ast.walk(node):
        if isinstance(call, ast.Call):
            if isinstance(call.func, ast.Attribute):
                yield call.func.attr, call
            elif isinstance(call.func, ast.Name):
                yield call.func.id, call


def cleanup(function: ast.FunctionDef) -> set[ast.Call]:
    """Calls that tidy up after an error."""
    handlers = [
        handler for node in ast.walk(function) if isinstance(node, ast.Try) for handler in node.handlers
    ]
    return {call for handler in handlers for _, call in called(handler)}


def _receiver(call: ast.Call) -> str:
    return ast.unparse(call.func.value) if isinstance(call.func, ast.Attribute) else ""


def is_file_call(name: str, call: ast.Call) -> bool:
    """``replace`` is also a method of strings (two arguments) and a function of dataclasses (keywords);
    ``write`` of a shard in progress is ours."""
    if name == "replace":
        return (len(call.args) == 1 and not call.keywords) or _receiver(call) == "beneath"
    if name in SYSTEM_CHANGES and _receiver(call) == "system.calls":
        return True
    if name in SYSTEM_CHANGES - {"write"}:
        return name == "truncate" and not _receiver(call)
    if name in SEAM_CHANGES:
        return _receiver(call) == "beneath"
    if name in ("write", "rename"):
        return (
            isinstance(call.func, ast.Attribute)
            and isinstance(call.func.value, ast.Name)
            and call.func.value.id in ("os", "source", "path")
        )
    return True


CASES = [
    pytest.param(function, id=where)
    for room in ROOMS
    for path in sorted((SOURCE / room).rglob("*.py"))
    for name, function in functions(ast.parse(path.read_text(encoding="utf-8")))
    if (where := f"{path.relative_to(SOURCE).as_posix()}:{name}") not in EXCEPTIONS
    and path not in SEAM
    and any(
        name in CHANGES and is_file_call(name, call) and call not in cleanup(function)
        for name, call in called(function)
    )
]


def test_every_exception_is_there() -> None:
    there = {
        f"{room}/{path.relative_to(SOURCE / room).as_posix()}:{name}"
        for room in ROOMS
        for path in (SOURCE / room).rglob("*.py")
        for name, _ in functions(ast.parse(path.read_text(encoding="utf-8")))
    }
    assert not EXCEPTIONS.keys() - there


def test_there_is_something_to_look_at() -> None:
    assert len(CASES) > 15


@pytest.mark.parametrize("function", CASES)
def test_a_call_that_changes_files_stands_behind_a_point(function: ast.FunctionDef) -> None:
    changes = [
        call.lineno
        for name, call in called(function)
        if name in CHANGES and is_file_call(name, call) and call not in cleanup(function)
    ]
    points = [call.lineno for name, call in called(function) if name in ("reach", "_reach")]
    assert points, f"lines {changes}: no failpoint"
    assert min(points) <= min(changes), f"line {min(changes)} comes before the first failpoint"


BANNED = {"fsync", "fdatasync", "posix_fallocate", "rename", "replace", "rename_with"}


@pytest.mark.parametrize("room", sorted(p.name for p in SOURCE.iterdir() if p.is_dir() and p.name != "disk"))
def test_only_the_room_disk_syncs_renames_and_preallocates(room: str) -> None:
    """Elsewhere neither by ``os`` nor by a path; ``replace`` and ``rename`` of our own files are named."""
    ours = ("self._file", "shard", "self.journal", "working", "new", "StoreLock")
    found = [
        f"{path.relative_to(SOURCE)}:{call.lineno}: {ast.unparse(call)}"
        for path in sorted((SOURCE / room).rglob("*.py"))
        for name, call in called(ast.parse(path.read_text(encoding="utf-8")))
        if name in BANNED and isinstance(call.func, ast.Attribute)
        if ast.unparse(call.func.value) in ("os", "beneath") or len(call.args) == 1
        if ast.unparse(call.func.value) not in (*ours, "dataclasses") and not call.keywords
    ]
    assert not found, "\n".join(found)


def test_the_calls_of_the_system_are_made_within_the_room_disk_alone() -> None:
    found = [
        path.relative_to(SOURCE).as_posix()
        for path in SOURCE.rglob("*.py")
        if "system.calls" in path.read_text(encoding="utf-8") and path.parent.name != "disk"
    ]
    assert not found
