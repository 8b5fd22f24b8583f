"""Paths below a store are opened and changed by ``disk/beneath.py`` alone, through ``disk/system.py``.
Read from the source."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:
    from collections.abc import Iterator

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"

SEAM = ("disk/beneath.py", "disk/system.py")

FUNCTIONS = """
open stat lstat unlink remove rmdir mkdir makedirs rename renames replace link symlink readlink listdir
scandir walk truncate chmod chown utime statvfs exists lexists isfile isdir islink getsize samefile realpath
rmtree copy copy2 copyfile copytree move mkfifo
"""  # of os, os.path, shutil
METHODS = """
read_bytes read_text write_text write_bytes stat lstat unlink rmdir iterdir glob rglob mkdir rename exists
is_file is_dir is_symlink touch chmod readlink symlink_to hardlink_to resolve samefile
"""  # of a path
# Receivers of such methods that are no paths; ``lister`` is the seam where it is handed in
OTHERS = {"self._record", "working", "shard", "self._file", "source", "self.journal", "lister"}

# Modules whose paths are not below a store, and what their paths are.
ELSEWHERE = {
    "acquire/limits.py": "the control group of this process",
    "cli/app.py": "the null device",
    "cli/delete.py": "what a user gave, before it is resolved",
    "cli/existing_path.py": "what a user gave, before it is resolved",
    "cli/control_options.py": "sockets of daemons",
    "client": "the camera's side: sockets",
    "config": "the configuration file",
    "daemon/control.py": "the control socket",
    "daemon/disks.py": "output roots",
    "daemon/installation.py": "units of systemd",
    "daemon/instance.py": "folders of an installation",
    "daemon/kernel_cache.py": "compiled kernels",
    "daemon/lifecycle.py": "the terminal",
    "diagnose": "this computer, and probes in the output root",
    "ingest/transport": "sockets and keys",
    "kernels/cache.py": "compiled kernels",
    "model/machine.py": "this computer",
    "model/permissions.py": "folders above a store",
    "remote/object_path.py": "objects, which are no files",
    "rework/jobs/par2.py": "a child process",
    "rework/runtime/starvation.py": "other processes",
    "rework/runtime/throttle.py": "this process and the daemon's pause file",
    "disk/allocation_reserve.py": "this process",
    "disk/choose_io.py": "files without a name in the output root",
    "disk/lock.py": "descriptors of this process",
    "disk/shared_mapping.py": "this computer",
    "web/viewer.py": "the viewer's own files",
    "web/web_app.py": "the page's own files",
    "wire/key_files.py": "keys",
}


def called(path: Path) -> Iterator[str]:
    """Calls that open or change a path, or ask what it is."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Call) and not of_descriptor(node) and takes_path(node):
            yield f"{node.lineno}: {ast.unparse(node)}"


def takes_path(call: ast.Call) -> bool:
    if not isinstance(call.func, ast.Attribute):
        return isinstance(call.func, ast.Name) and call.func.id == "open"
    of, name = ast.unparse(call.func.value), call.func.attr
    if of == "tempfile":
        return any(keyword.arg == "dir" for keyword in call.keywords)
    if of in ("os", "os.path", "shutil"):
        return name in FUNCTIONS.split()
    if any(keyword.arg == "follow_symlinks" for keyword in call.keywords):
        return False  # of an entry that the seam has listed
    if of in ("beneath", *OTHERS):
        return False
    if name == "exists" and of in ("self", "byte_getter.store"):  # of ShardSums, of a store of zarr-python
        return False
    return name in METHODS.split()


def of_descriptor(call: ast.Call) -> bool:
    return bool(call.args) and "descriptor" in ast.unparse(call.args[0])


MODULES = [
    name
    for path in sorted(SOURCE.rglob("*.py"))
    if (name := path.relative_to(SOURCE).as_posix()) not in SEAM
    and not any(name == where or name.startswith(f"{where}/") for where in ELSEWHERE)
]


@pytest.mark.parametrize("module", MODULES)
def test_a_path_is_opened_by_the_seam_alone(module: str) -> None:
    found = list(called(SOURCE / module))
    assert not found, "\n".join(found)


@pytest.mark.parametrize("where", ELSEWHERE)
def test_what_is_excepted_is_there_and_needs_it(where: str) -> None:
    place = SOURCE / where
    assert any(list(called(path)) for path in (place.rglob("*.py") if place.is_dir() else [place]))
