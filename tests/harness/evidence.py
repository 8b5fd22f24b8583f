"""The evidence of a failure: what the processes of a failed test said, where they stood, and its files.

A run of tests elsewhere leaves nothing but its output. Each failed test therefore prints the end of all of it
(``MOST_LINES``); a copy of its folders, of ``MOST_BYTES`` at most, stays in the run's temporary folder, as
long as that does.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Generator, Iterable

    from .json_process import JsonProcess

MOST_LINES = 200  # of one failed test
MOST_BYTES, MOST_FILE_BYTES = 64 << 20, 16 << 20  # of what is copied
MOST_COLUMNS = 400
MOST_ERROR_BYTES = 1 << 20
LAST_WORDS_S = 10.0  # for the stacks of a process that is ended
_started: weakref.WeakSet[JsonProcess] = weakref.WeakSet()


def register(process: JsonProcess) -> None:
    """What it says is part of the evidence, as long as somebody keeps it: the traceback of a failed test
    does."""
    _started.add(process)


def ask_for_stacks(process: JsonProcess) -> None:
    """Ends a process that lives on when its test has failed. A daemon, by ``faulthandler``, says on standard
    error where each of its threads is."""
    process.signal(signal.SIGABRT)
    process.signal(signal.SIGCONT)  # a test may have stopped it
    end_s = time.monotonic() + LAST_WORDS_S
    while process.process.poll() is None and time.monotonic() < end_s:
        time.sleep(0.02)


def read_errors(stream: Any) -> str:
    """What has come on a process's standard error and nobody has read. Its own children may hold it open."""
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
        processes = [one for one in _started if one.ended_s is None or one.ended_s >= self._begun_s]
        processes.sort(key=lambda one: one.started_s)
        parts = [
            (f"process {one.process.pid}, {what}", lines)
            for one in processes
            for what, lines in one.all_said().items()
        ]
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
