"""Every file and folder that a store has in any of its states, with a symbolic link in its place
before a command, or put there in the middle of one: nothing behind the link changes, and the command ends
well or with an error of ours."""

from __future__ import annotations

import asyncio
import fnmatch
import io
import shutil
import threading
from contextlib import redirect_stderr, redirect_stdout, suppress
from itertools import cycle, repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr.api.asynchronous
from tests.compaction.jobs import STORE, Here
from tests.harness.event_loop import sync

import shardwright as sw
from shardwright.cli.app import main
from shardwright.disk import failpoints
from shardwright.model.errors import ShardwrightError
from shardwright.recovery.leftovers import is_leftover, look_at, remove, row_for, unfinished_stores

from .states_of_a_store import State, all_states, write

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

Ground = tuple[Path, Path, list[State]]  # the root, where victims are, and all states
# zarr-python's, of a store in which it finds no array
OTHERS_ERRORS = (zarr.errors.BaseZarrError, FileNotFoundError, FileExistsError)
SETTLED = {0, 1, 2}  # exit codes
UNEXPECTED = "please report this"  # what a command says of an exception that it did not know


def command(*arguments: object) -> None:
    """A command in this process. Raises what it does not turn into an exit code."""
    said = io.TextIOWrapper(io.BytesIO())
    with redirect_stdout(said), redirect_stderr(said), pytest.raises(SystemExit) as ended:
        main([str(argument) for argument in arguments])
    said.flush()
    assert ended.value.code in SETTLED
    assert UNEXPECTED not in said.buffer.getvalue().decode()


def start_of_a_daemon(root: Path) -> None:
    for path in unfinished_stores(root):
        with suppress(ShardwrightError):
            if is_leftover(path):
                remove(path, row_for(look_at(path)))
            else:
                sw.resume(path, threads=1).close()


async def _others_end() -> None:
    others = asyncio.all_tasks() - {asyncio.current_task()}
    await asyncio.gather(*others, return_exceptions=True)


async def _change_chunks(root: Path) -> None:
    """In the event loop in which this runs: zarr-python's other calls have one that is its own."""
    try:
        with suppress(*OTHERS_ERRORS):
            array = await zarr.api.asynchronous.open_array(store=sw.ChunkStore(root / STORE), path="0")
            await array.setitem(..., np.asarray(await array.getitem(...)) + 1)
    finally:
        # after an error zarr-python goes on with the other chunks, in the store that is laid next
        await _others_end()


def change_chunks(root: Path) -> None:
    sync(_change_chunks(root))


def read(root: Path) -> None:
    with suppress(*OTHERS_ERRORS):
        array = zarr.open_array(sw.open(root / STORE), path="0", mode="r")
        np.asarray(array[...])


def change(root: Path, edit: Callable[..., Any], **how: Any) -> None:
    """Changes shards that have not spilled; one of the axes is there."""
    for axis in "tz":
        with suppress(ShardwrightError):
            edit(root / STORE, region={axis: slice(2, 4)}, **how)


WRITING: dict[str, Callable[[Path], Any]] = {
    "recover": lambda root: command("recover", root),
    "recover store": lambda root: command("recover", root / STORE, "--take-over"),
    "daemon": start_of_a_daemon,
    "resume": lambda root: sw.resume(root / STORE, threads=1).close(),
    "compact": lambda root: command("compact", root / STORE, "--no-idle"),
    "recompress": lambda root: command("compact", root / STORE, "--no-idle", "--recompress", "zstd:3"),
    "compact --to": lambda root: command("compact", root / STORE, "--no-idle", "--to", root / "copy.zarr"),
    "compact --move": lambda root: command(
        "compact", root / STORE, "--no-idle", "--to", root / "away.ome.zarr", "--move"
    ),
    "update": lambda root: change(root, sw.update, values=77, strategy="in_place"),
    "update by rewriting": lambda root: change(root, sw.update, values=78, strategy="rewrite"),
    "erase": lambda root: change(root, sw.erase),
    "erase frames": lambda root: sw.erase(root / STORE, slice(2, 3)),
    "chunk store": change_chunks,
    "pyramid": lambda root: command("pyramid", root / STORE, "--levels", 1, "--no-idle"),
    "rechunk": lambda root: command(
        "rechunk", root / STORE, root / "new.ome.zarr", "--chunks", "y=4", "--no-idle"
    ),
    "overwrite": lambda root: write(root, {"overwrite": True}),
    "create": lambda root: write(root, {}),
}
READING: dict[str, Callable[[Path], Any]] = {
    "verify": lambda root: command("verify", root / STORE),
    "inspect": lambda root: command("inspect", root / STORE, "--frames"),
    "open": read,
    "dry run": lambda root: command("recover", root, "--dry-run"),
}
COMMANDS = WRITING | READING
# Links that users make: they lead to their own place, which a command that names the store changes
OF_USERS = ("spill", STORE, "copy.zarr", "away.ome.zarr", "new.ome.zarr")
KINDS = ("the same", "other bytes", "nothing")


@pytest.fixture(scope="session")
def ground(tmp_path_factory: pytest.TempPathFactory) -> Ground:
    folder = tmp_path_factory.mktemp("links")
    root = folder / "rig"
    return root, folder / "outside", all_states(root, folder)


@pytest.fixture(autouse=True)
def _tasks_run_here(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shardwright.rework.runtime.executors.open_executor", lambda **_: Here())
    monkeypatch.setattr("shardwright.cli.job_command.interrupt_on_signals", lambda: None)


def seen(folder: Path) -> dict[str, Any]:
    """Names, what they stand for, bytes, and times of change, of the folder itself too."""
    found: dict[str, Any] = {}
    for path in (folder, *folder.rglob("*")):
        status = path.lstat()
        facts = (status.st_mode, status.st_ino, status.st_nlink, status.st_mtime_ns)
        content = str(path.readlink()) if path.is_symlink() else path.read_bytes() if path.is_file() else b""
        found[path.relative_to(folder).as_posix()] = (*facts, content)
    return found


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    return [f"changed {path}" for path in before | after if before.get(path) != after.get(path)]


def put_link(path: Path, victim: Path, kind: str) -> None:
    """Puts a link in the place of a path, to a ``victim`` outside: the same that was there (so that all that
    is asked of it holds), known bytes, or nothing."""
    victim.parent.mkdir(parents=True)
    if kind == "the same":
        path.rename(victim)
    elif path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink()
    if kind == "other bytes":
        victim.write_bytes(b"theirs" * 100)
    path.symlink_to(victim)


def problem_of(ground: Ground, state: State, place: str, kind: str, name: str) -> list[str]:
    """Runs a command in a store of which ``place`` is a link. Returns what is wrong."""
    root, outside, _ = ground
    state.lay(root)
    shutil.rmtree(outside, ignore_errors=True)
    put_link(root / place, outside / place, kind)
    before, problems = seen(outside), []
    try:
        COMMANDS[name](root)
    except ShardwrightError:
        pass
    except Exception as error:
        problems.append(f"raised {error!r}")
    problems += changes(before, seen(outside))
    return [f"{name}, {place} a link to {kind} ({state.name}): {problem}" for problem in problems]


def problems_of(ground: Ground, tried: Iterable[tuple[str, str]]) -> str:
    """Each new path of each state in turn, with the next (command, kind) that is to be tried."""
    links = ((state, place) for state in ground[2] for place in state.new if place not in OF_USERS)
    found: list[str] = []
    for (state, place), (name, kind) in zip(links, tried, strict=False):
        found += problem_of(ground, state, place, kind, name)
    return "\n".join(found)


def test_every_state_is_there(ground: Ground) -> None:
    """What is known to be in a store at one time or another; any other file is found by the walk."""
    names = {Path(place).name for state in ground[2] for place in state.new}
    patterns = (
        ".shardwright",
        "lock",
        "*.journal",
        "*.partial",
        "*.copy",
        "*.packed",
        "move.*.job",
        "*.lock",
    )
    missing = [
        pattern
        for pattern in (*patterns, "shards.crc32c", "zarr.json", "c")
        if not fnmatch.filter(names, pattern)
    ]
    assert not missing
    assert any(".making/" in place for state in ground[2] for place in state.new)
    assert any(place.startswith(f"spill/{STORE}/.shardwright/") for state in ground[2] for place in state.new)


def test_nothing_behind_a_link_changes(ground: Ground) -> None:
    """Each path with one command that writes and one kind of link; the next path with the next of them."""
    assert not problems_of(ground, zip(cycle(WRITING), cycle(KINDS), strict=False))


@pytest.mark.slow
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("name", COMMANDS)
def test_nothing_behind_a_link_changes_by_any_command(ground: Ground, name: str, kind: str) -> None:
    assert not problems_of(ground, repeat((name, kind)))


class Swap:
    """Watches storage calls, and at one of them (none: only counts them) puts a link in the place of a folder
    of the store: to a copy of it as it is at that moment, outside of the store."""

    def __init__(self, root: Path, outside: Path, folder: str, at: int | None) -> None:
        self._path, self._victim, self._at = root / STORE / folder, outside / folder, at
        self._one_at_a_time = threading.Lock()
        self.points: list[str] = []
        self.before: dict[str, Any] | None = None

    def __call__(self, point: str) -> None:
        with self._one_at_a_time:
            self.points.append(point)
            if len(self.points) - 1 == self._at and self._path.is_dir():
                shutil.copytree(self._path, self._victim, symlinks=True)
                self.before = seen(self._victim)
                self._path.rename(self._path.parent / "away")
                self._path.symlink_to(self._victim)

    def changed(self) -> list[str]:
        return [] if self.before is None else changes(self.before, seen(self._victim))


def swapped(ground: Ground, begin: State | None, name: str, folder: str, at: int | None) -> Swap:
    """Runs a command, from a state or from nothing, during which a folder is swapped for a link."""
    root, outside, _ = ground
    shutil.rmtree(root, ignore_errors=True)
    shutil.rmtree(outside, ignore_errors=True)
    if begin is None:
        root.mkdir()
    else:
        begin.lay(root)
    outside.mkdir()
    swap = Swap(root, outside, folder, at)
    failpoints.watch_all(swap)
    try:
        with suppress(ShardwrightError):
            COMMANDS[name](root)
    finally:
        failpoints.watch_all(None)
    return swap


def state_with(ground: Ground, name: str) -> State:
    return next(state for state in ground[2] if any(place.endswith(name) for place in state.new))


# command, a name in the state that it begins in (None: there is no store yet), points that it must come to
RACES = {
    "write": ("create", None, {"lock.before_take", "shard.before_rename", "journal.before_delete"}),
    "recover a store that is empty": (
        "recover",
        ".shardwright/0.journal",
        {"lock.before_open", "store.before_remove"},
    ),
    "recover an update": (
        "recover",
        "-edit/c.0.0.0.journal",
        {"lock.before_open", "edit.before_delete_journal"},
    ),
    "recover a copy": ("recover", "-edit/c.0.0.0.copy", {"lock.before_open", "edit.before_clear_leftover"}),
    "update": ("update", "new.ome.zarr/zarr.json", {"lock.before_open", "edit.before_sync"}),
    "compact": ("compact", "new.ome.zarr/zarr.json", {"lock.before_open", "compact.before_sync"}),
}
FOLDERS = (".shardwright", "0", "0/c", "0/.shardwright-edit", "0/.compact")


@pytest.mark.parametrize(
    "race",
    [pytest.param(race, marks=[pytest.mark.slow] * (race in ("update", "compact"))) for race in RACES],
)
def test_a_folder_that_is_swapped_for_a_link_between_two_calls(ground: Ground, race: str) -> None:
    """At the first call of each point."""
    name, begin, expected = RACES[race]
    state = None if begin is None else state_with(ground, begin)
    points = swapped(ground, state, name, "0", None).points
    assert expected <= set(points), sorted(set(points))
    first = {point: number for number, point in reversed(list(enumerate(points)))}
    swaps, problems = 0, []
    for point, number in first.items():
        for folder in FOLDERS:
            swap = swapped(ground, state, name, folder, number)
            swaps += swap.before is not None
            problems += [f"{folder} at {point}: {problem}" for problem in swap.changed()]
    assert not problems, "\n".join(problems)
    assert swaps >= len(expected)
