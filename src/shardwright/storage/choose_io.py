"""Chooses the I/O mode of ``auto`` for the place of a store: the filesystem decides which modes are safe
there, a short measurement which of them is fast.

    direct   offered where an aligned O_DIRECT write works; the favourite: it costs a tenth of the processors'
             time and no page cache
    pwrite   offered everywhere
    mmap     offered where neither a full disk nor a lost server can end the process by SIGBUS; never chosen
             by ``auto``: a process of the same user that truncates a working file, or a disk that dies, ends
             this process, and with it every acquisition. It must be requested

``auto`` means direct where it is offered, unless pwrite was ``MARGIN`` times as fast in every round, with the
final sync of each round: after a tie or on a noisy disk the favourite is chosen. Measured once for each
filesystem in a process, with at most ``ROUND_BYTES`` for each mode and about ``MOST_S`` in all, in unnamed
files, which the system frees in any case. ``SHARDWRIGHT_MEASURE_IO=no``: the favourite, unmeasured.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from shardwright.model.errors import StorageError
from shardwright.model.write_options import IO_MODES, IoMode

from . import beneath
from .files import populate, preallocate, raise_errno, set_direct, storage_errors, write_all
from .filesystems import memory_filesystem, unmappable_filesystem
from .slot_file import DIRECT_ALIGNMENT_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path
    from types import TracebackType

FAVOURITES: tuple[IoMode, ...] = ("direct", "pwrite")  # of ``auto``
MARGIN = 1.5
MOST_S = 0.3
ROUND_BYTES = (4 << 20, 8 << 20, 16 << 20, 32 << 20)
LEAST_FREE_BYTES = 2 << 30  # below it nothing is measured: the room is left to acquisitions
VARIABLE = "SHARDWRIGHT_MEASURE_IO"
_PIECE_BYTES = 1 << 20
_BUFFER_BYTES = 4 << 20
_THREADS = 4  # as many simultaneous writes as by the workers of a small machine

Rounds = dict[IoMode, tuple[float, ...]]
"""Bytes per second of each mode, one number per round; the same rounds for all modes."""


@dataclass(frozen=True)
class IoChoice:
    """``offered``: the modes that are safe there, the favourite first; ``rates``: bytes per second of the
    measured ones."""

    mode: IoMode
    why: str
    offered: tuple[IoMode, ...]
    rates: dict[IoMode, float]

    @property
    def measured(self) -> str:
        """``direct 2.41, mmap 1.12, pwrite 1.93 GB/s``; empty if nothing was measured."""
        return ", ".join(f"{mode} {rate / 1e9:.2f}" for mode, rate in self.rates.items()) + (
            " GB/s" if self.rates else ""
        )


def resolve_io(mode: IoMode, folders: Sequence[Path]) -> IoMode:
    """Returns ``mode`` itself, or the choice of ``auto`` for the places of all of a store's folders.

    Raises ``StorageError`` for ``mmap`` on a filesystem where a full disk or a lost server would end the
    process.
    """
    if mode == "auto":
        return choose_io(folders).mode
    if mode == "mmap":
        refuse_mapping(folders)
    return mode


def refuse_mapping(folders: Sequence[Path]) -> None:
    """Raises ``StorageError`` if files in one of these folders must not be mapped."""
    for folder in folders:
        if (name := unmappable_filesystem(folder)) is not None:
            raise StorageError(
                f"shards below {folder} cannot be mapped: on {name} a full disk or a lost server would end "
                f"this process by SIGBUS",
                got="io: mmap",
                hint="Choose io: auto, direct or pwrite: there the same failure is an error that can be "
                "handled",
            )


def choose_io(folders: Sequence[Path]) -> IoChoice:
    """Returns the choice of ``auto`` for a store in these folders: a mode that all of them offer. Raises
    ``StorageError``."""
    offers = [tuple(mode for mode in offered_io(folder) if mode in FAVOURITES) for folder in folders]
    offered = tuple(mode for mode in FAVOURITES if all(mode in offer for offer in offers))
    assert offered[-1] == "pwrite", "offered everywhere"
    if len(offered) == 1:
        return IoChoice("pwrite", "the only way that is safe here", offered, {})
    if os.environ.get(VARIABLE) == "no":
        return IoChoice(offered[0], f"not measured: {VARIABLE} is no", offered, {})
    found = [_remembered(folder, offer) for folder, offer in zip(folders, offers, strict=True)]
    if problem := next((why for _, why in found if why), ""):
        return IoChoice(offered[0], problem, offered, {})
    return decide(offered, [rounds for rounds, _ in found])


def decide(offered: tuple[IoMode, ...], measured: Sequence[Rounds]) -> IoChoice:
    """Chooses among the ``offered`` modes, the favourite first, by the rounds ``measured`` in each folder.
    Pure."""
    favourite = offered[0]
    everywhere = [mode for mode in offered if all(mode in rounds for rounds in measured)]
    rates = {mode: min(_overall(rounds[mode]) for rounds in measured) for mode in everywhere}
    faster = [
        mode
        for mode in everywhere
        if mode != favourite and all(_beats(rounds, mode, favourite) for rounds in measured)
    ]
    if not faster:
        return IoChoice(favourite, f"nothing else is {MARGIN:g} times as fast", offered, rates)
    best = max(faster, key=lambda mode: rates[mode])
    return IoChoice(best, f"more than {MARGIN:g} times as fast as {favourite} in every round", offered, rates)


def _beats(rounds: Rounds, mode: IoMode, favourite: IoMode) -> bool:
    pairs = list(zip(rounds[mode], rounds.get(favourite, rounds[mode]), strict=True))
    return len(pairs) > 1 and all(rate > MARGIN * other for rate, other in pairs)


def _overall(rates: tuple[float, ...]) -> float:
    """Returns bytes per second of all rounds together."""
    sizes = ROUND_BYTES[: len(rates)]
    return sum(sizes) / sum(size / rate for size, rate in zip(sizes, rates, strict=True))


def offered_io(folder: Path) -> tuple[IoMode, ...]:
    """Returns the modes that are safe in ``folder``, the favourite first. Raises ``StorageError``."""
    offered: list[IoMode] = ["direct"] if _takes_direct_writes(folder) else []
    return (*offered, "pwrite") if unmappable_filesystem(folder) else (*offered, "mmap", "pwrite")


def _takes_direct_writes(folder: Path) -> bool:
    """Returns whether direct writes work, by one write to an unnamed file."""
    try:
        with (
            tempfile.TemporaryFile(dir=folder, buffering=0) as probe,
            mmap.mmap(-1, DIRECT_ALIGNMENT_BYTES) as page,
        ):
            set_direct(probe.fileno(), on=True)
            os.pwrite(probe.fileno(), page, 0)
    except OSError:
        return False
    return True


# by device; for the life of the process
_found: dict[tuple[int, tuple[IoMode, ...]], tuple[Rounds, str]] = {}
_measuring = threading.Lock()


def _remembered(folder: Path, offered: tuple[IoMode, ...]) -> tuple[Rounds, str]:
    """Returns (the rounds, the reason if there are none) for this folder's filesystem, measured at most
    once."""
    with storage_errors("look at", folder), _measuring:
        key = (beneath.stat(folder).st_dev, offered)
        if key not in _found:
            _found[key] = _unless_pointless(folder, offered)
        return _found[key]


def forget() -> None:
    """Drops all measurements: the next choice measures again."""
    with _measuring:
        _found.clear()


def _unless_pointless(folder: Path, offered: tuple[IoMode, ...]) -> tuple[Rounds, str]:
    room = beneath.filesystem_of(folder)
    if (name := memory_filesystem(folder)) is not None:
        return {}, f"not measured: {name} is no disk"
    if room.f_bavail * room.f_frsize < LEAST_FREE_BYTES:
        return {}, f"not measured: less than {LEAST_FREE_BYTES >> 30} GiB are free"
    try:
        return measure_io(folder, offered), ""
    except OSError as error:
        return {}, f"not measured: {error.strerror or error}"


def measure_io(
    folder: Path, modes: tuple[IoMode, ...], clock: Callable[[], float] = time.perf_counter
) -> Rounds:
    """Writes into preallocated files, as workers do: rounds of growing size, each with every mode, until the
    next round would take too long.

    At least one round. Raises ``OSError`` if a mode does not work after all.
    """
    rates: dict[IoMode, list[float]] = {}
    with ExitStack() as stack:
        buffer = stack.enter_context(mmap.mmap(-1, _BUFFER_BYTES))  # page-aligned, as direct writes need it
        # random bytes: a filesystem that compresses cannot shrink them
        buffer[:] = np.random.default_rng(1).bytes(_BUFFER_BYTES)
        files = {mode: stack.enter_context(MeasuredFile(folder, mode, sum(ROUND_BYTES))) for mode in modes}
        # entered last: it ends before its files and buffer
        pool = stack.enter_context(ThreadPoolExecutor(_THREADS, thread_name_prefix="shardwright-measure"))
        begin_s = before_s = clock()
        for number, size in enumerate(ROUND_BYTES):
            for mode, file in files.items():
                start_s, first = clock(), sum(ROUND_BYTES[:number])
                list(
                    pool.map(
                        partial(_put, file, memoryview(buffer)), range(first, first + size, _PIECE_BYTES)
                    )
                )
                file.sync()
                rates.setdefault(mode, []).append(size / max(clock() - start_s, 1e-9))
            now_s = clock()
            if now_s - begin_s + 2 * (now_s - before_s) > MOST_S:  # each round is twice the one before
                break
            before_s = now_s
    return {mode: tuple(found) for mode, found in rates.items()}


def _put(file: MeasuredFile, source: memoryview, offset: int) -> None:
    start = offset % _BUFFER_BYTES
    file.put(offset, source[start : start + _PIECE_BYTES])


class MeasuredFile:
    """A file to measure a disk with: unnamed, of ``nbytes`` preallocated in ``folder``, written by ``mode``
    like a shard in progress. A context manager. Raises ``OSError``."""

    def __init__(self, folder: Path, mode: IoMode, nbytes: int) -> None:
        assert mode in IO_MODES[1:]
        self._pages: mmap.mmap | None = None
        self._file: IO[bytes] = cast("IO[bytes]", tempfile.TemporaryFile(dir=folder, buffering=0))  # noqa: SIM115  (closed in __exit__)
        try:
            preallocate(self._file.fileno(), nbytes)
            if mode == "direct":
                set_direct(self._file.fileno(), on=True)
            elif mode == "mmap":
                self._pages = mmap.mmap(self._file.fileno(), nbytes)
        except BaseException:
            self._file.close()
            raise

    def put(self, offset: int, data: memoryview) -> None:
        """Writes whole pages, from any thread; no other thread may write there. For direct writes ``data``
        must begin at a page of memory."""
        if self._pages is None:
            write_all(self._file.fileno(), offset, data)
            return
        pages = np.frombuffer(self._pages, np.uint8, len(data), offset)
        # if the disk fails this returns an error, where a plain write to the page would raise SIGBUS
        raise_errno(populate(int(pages.ctypes.data), pages.size))
        pages[:] = np.frombuffer(data, np.uint8)  # without the GIL

    def sync(self) -> None:
        os.fdatasync(self._file.fileno())

    def __enter__(self) -> MeasuredFile:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        """Closes the file. No thread may be in ``put`` any more."""
        if self._pages is not None:
            self._pages.close()
        self._file.close()
