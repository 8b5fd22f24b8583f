"""The evidence of a failure: what the processes of a failed test said, where their threads and those of
pytest are, the page that a browser shows, and the files.

A run of tests elsewhere leaves nothing but its output. Each failed test therefore prints the end of all of it
(``MOST_LINES``); a copy of its folders, of ``MOST_BYTES`` at most, stays in the run's temporary folder, as
long as that does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import sys
import threading
import time
import traceback
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import pytest

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Generator, Iterable

    from .fork_server import Child

MOST_LINES = 200  # of one failed test
MOST_BYTES, MOST_FILE_BYTES = 64 << 20, 16 << 20  # of what is copied
MOST_COLUMNS = 400
MOST_ERROR_BYTES = 1 << 20
STACKS = signal.SIGUSR2  # a Python answers it with its stacks, see ``child_site``
STACKS_S = 10.0  # at most, of one whose threads never rest


class Witness(Protocol):
    """What a test has started: a process, a browser. ``ended_s``: when it was closed."""

    started_s: float
    ended_s: float | None

    def testify(self, folder: Path) -> dict[str, list[str]]:
        """Returns lines by their title; files may be left in ``folder``. Called when a test has failed, also
        of what is still running and which other tests use."""


_witnesses: weakref.WeakSet[Witness] = weakref.WeakSet()


def register(witness: Witness, *, instead_of: object = None) -> None:
    """What it says is part of the evidence, as long as somebody keeps it: the traceback of a failed test
    does. ``instead_of``: another one, for which it speaks."""
    if instead_of is not None:
        _witnesses.discard(instead_of)
    _witnesses.add(witness)


def ask_for_stacks(pid: int, read: Callable[[], str] = str) -> str:
    """Has a process say on its standard error where each of its threads is, and returns what ``read`` hears
    until it has. It goes on. One that is stopped is not asked, nor one that would die of it since it is no
    Python of ours."""
    facts = _status(Path(f"/proc/{pid}"))
    if not _is_among(facts, "SigCgt") or facts["State"][0] in "TtZ":
        return ""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, STACKS)
    words, end_s = "", time.monotonic() + STACKS_S
    while time.monotonic() < end_s:
        threads = [*map(_status, Path(f"/proc/{pid}/task").glob("*"))]
        # one that says where it is runs, or waits until somebody reads
        is_telling = any(one.get("State", "")[:1] == "R" or _is_among(one, "ShdPnd") for one in threads)
        words += (more := read())
        if not more and not is_telling:
            break
        time.sleep(0.02)
    return words


def _status(task: Path) -> dict[str, str]:
    """Of a process or thread by Linux; empty once it is gone."""
    try:
        lines = (task / "status").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return {}
    return {name: value.strip() for name, _, value in (line.partition(":") for line in lines)}


def _is_among(status: dict[str, str], signals: str) -> bool:
    """Whether that signal is one of a set."""
    return bool(int(status.get(signals, "0"), 16) >> (STACKS - 1) & 1)


def last_words(process: subprocess.Popen[Any] | Child) -> str:
    """What has come on a process's standard error and nobody has read; with its stacks, if it is running."""
    words = read_now(process.stderr)
    if process.poll() is None:
        words += ask_for_stacks(process.pid, lambda: read_now(process.stderr))
    return words


def of_process(
    process: subprocess.Popen[Any] | Child, said: list[str], errors: list[str]
) -> dict[str, list[str]]:
    """A process's lines by title."""
    code = process.poll()
    state = "which runs" if code is None else f"which ended with {code}"
    name = f"process {process.pid}"
    return {f"{name}, {state}": said} | ({f"{name}, its errors": errors} if errors else {})


def read_now(stream: Any) -> str:
    """What has come on a pipe and nobody has read. The process's own children may hold it open."""
    if stream is None or stream.closed:
        return ""
    descriptor = stream.fileno()
    os.set_blocking(descriptor, False)
    try:
        return os.read(descriptor, MOST_ERROR_BYTES).decode(errors="replace")
    except BlockingIOError:
        return ""
    finally:
        os.set_blocking(descriptor, True)


def own_stacks() -> list[str]:
    """Where the other threads of this process are."""
    lines, names = [], {thread.ident: thread.name for thread in threading.enumerate()}
    for ident, frame in sys._current_frames().items():
        if ident != threading.get_ident():
            lines.append(f"{names.get(ident, ident)}:")
            lines += [f"    {at.filename}:{at.lineno} {at.name}" for at in traceback.extract_stack(frame)]
    return lines


class Recorder:
    """A plugin of pytest. ``places``: the temporary folders of the run; below the first lie the copies."""

    def __init__(self, *places: Path) -> None:
        self._places = places
        self._begun_s = 0.0

    def pytest_runtest_logstart(self) -> None:
        self._begun_s = time.monotonic()

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport(self, item: pytest.Item) -> Generator[None, Any, Any]:
        report: Any = yield
        if report.failed:
            name = "".join(letter if letter.isalnum() else "-" for letter in item.name[:60])
            report.sections += self._sections(item, self._places[0] / "evidence" / f"{name}-{report.when}")
        return report

    def _sections(self, item: pytest.Item, to: Path) -> list[tuple[str, str]]:
        concerned = [one for one in _witnesses if one.ended_s is None or one.ended_s >= self._begun_s]
        parts = []
        for witness in sorted(concerned, key=lambda one: one.started_s):
            try:
                parts += witness.testify(to).items()
            except Exception as error:  # of one that is broken: the others are heard all the same
                parts.append((type(witness).__name__, [repr(error)]))
        if stacks := own_stacks():
            parts.append(("threads of this process", stacks))
        if folders := self._folders(getattr(item, "funcargs", {}).values()):
            parts += [(f"files of {folder}", _listed(folder)) for folder in folders]
            parts.append(("copies", [_copy(folders, to)]))
        shares = _shares([len(lines) for _, lines in parts])
        return [
            (f"evidence: {title}", _last(lines, share))
            for (title, lines), share in zip(parts, shares, strict=True)
        ]

    def _folders(self, values: Iterable[object]) -> list[Path]:
        """Those among the fixtures of a test; and where its daemons and disks have theirs. Only what lies in
        a temporary folder: other fixtures know of folders too."""
        found = set()
        for value in values:
            own = (getattr(value, name, None) for name in ("config", "folder", "path"))
            path = next((one for one in (value, *own) if isinstance(one, Path)), None)
            if path is not None and path.exists() and any(place in path.parents for place in self._places):
                found.add(path if path.is_dir() else path.parent)
        return sorted(one for one in found if not found & {*one.parents})


def _shares(lengths: list[int]) -> list[int]:
    """How many lines of each are shown: of the short ones all, the long ones share what they leave."""
    shares, left = [0] * len(lengths), MOST_LINES
    for place, part in enumerate(sorted(range(len(lengths)), key=lengths.__getitem__)):
        shares[part] = min(lengths[part], left // (len(lengths) - place))
        left -= shares[part]
    return shares


def _files(folder: Path) -> list[Path]:
    """Those of folders that can be read: on a disk that fails some cannot, and one may go meanwhile."""
    return sorted(Path(place, name) for place, _, names in os.walk(folder) for name in names)


def _listed(folder: Path) -> list[str]:
    lines = []
    for path in _files(folder):
        with contextlib.suppress(OSError):  # it goes meanwhile
            lines.append(f"{path.lstat().st_size:>12,} {path.relative_to(folder)}")
    return lines


def _copy(folders: Iterable[Path], to: Path) -> str:
    left = MOST_BYTES
    for number, folder in enumerate(folders):
        for path in _files(folder):
            with contextlib.suppress(OSError):
                nbytes = path.lstat().st_size
                if path.is_file() and not path.is_symlink() and nbytes <= min(left, MOST_FILE_BYTES):
                    left -= nbytes
                    copy = to / str(number) / path.relative_to(folder)
                    copy.parent.mkdir(parents=True, exist_ok=True)
                    shutil.copyfile(path, copy)
    return f"are in {to}"


def _last(lines: list[str], most: int) -> str:
    # a name that is no text would end the worker of xdist that sends its report
    shown = [line[:MOST_COLUMNS].encode(errors="backslashreplace").decode() for line in lines[-most:]]
    return "\n".join([f"({len(lines) - most} more before)"] * (len(lines) > most) + shown)
