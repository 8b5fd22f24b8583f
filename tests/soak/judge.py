"""Judges every acquisition that has ended as soon as it is sealed, in a process of its own, and makes room
for the next one.

A thread: whatever goes on in the soak, cameras that wait for room get it, unless a judgement is against them.
"""

from __future__ import annotations

import os
import queue
import shutil
import signal
import threading
import time
from concurrent.futures import Future, ProcessPoolExecutor
from multiprocessing import get_context
from typing import TYPE_CHECKING, Self

from tests.harness.json_process import wait_for

from .balance import Balance, Claims, judge
from .camera import source_of
from .evidence import read_evidence
from .settings import POLL_S

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from .cameras import CameraSide
    from .settings import Places

SEALED_WITHIN_S = 300.0  # only so that a hang becomes a failure
Judgement = Future[tuple[Balance, list[str]]]


def judge_store(path: Path, seed: int, claims: Claims) -> tuple[Balance, list[str]]:
    """In the judge's process."""
    return judge(claims, read_evidence(path, source_of(seed), claims.number))


def _be_modest() -> None:
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    os.nice(10)


class Judge:
    """``hand_over`` may be called from any thread. ``cameras`` by name; ``on_fault`` gets everything that is
    wrong."""

    def __init__(
        self, places: Places, cameras: Mapping[str, CameraSide], on_fault: Callable[[str], None]
    ) -> None:
        self.balances: dict[str, Balance] = {}
        self._places = places
        self._cameras = cameras
        self._on_fault = on_fault
        self._ended: queue.SimpleQueue[tuple[Claims, float]] = queue.SimpleQueue()
        self._unsealed: list[tuple[Claims, float]] = []
        self._judging: list[tuple[Claims, Judgement]] = []
        self._pool = ProcessPoolExecutor(1, get_context("spawn"), _be_modest)
        self._handed_over = self._taken = 0
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name="judge", daemon=True)

    def hand_over(self, claims: Claims) -> None:
        self._handed_over += 1
        self._ended.put((claims, time.monotonic()))

    @property
    def judged(self) -> int:
        """Acquisitions."""
        return sum(balance.acquisitions for balance in self.balances.values())

    def wait_for_all(self) -> None:
        """What was handed over so far. No more may come meanwhile."""
        wait_for(
            lambda: self._taken == self._handed_over,
            "the last acquisitions to be judged",
            2 * SEALED_WITHIN_S,
        )

    def _run(self) -> None:
        while not self._over.wait(POLL_S):
            while not self._ended.empty():
                self._unsealed.append(self._ended.get())
            self._unsealed = [entry for entry in self._unsealed if not self._begin(*entry)]
            self._judging = [entry for entry in self._judging if not self._take(*entry)]

    def _begin(self, claims: Claims, since_s: float) -> bool:
        """Once nobody writes to it any more. With a receipt it must be sealed already."""
        store = self._places.store(claims.name)
        if claims.receipt is None and (store / ".shardwright").exists():
            if time.monotonic() - since_s < SEALED_WITHIN_S:
                return False
            self._on_fault(f"{claims.name} was left behind, and is not sealed after {SEALED_WITHIN_S:.0f} s")
        self._judging.append(
            (claims, self._pool.submit(judge_store, store, self._cameras[claims.camera].seed, claims))
        )
        return True

    def _take(self, claims: Claims, judgement: Judgement) -> bool:
        if not judgement.done():
            return False
        try:
            balance, faults = judgement.result()
        except Exception as error:
            balance, faults = Balance(), [f"{claims.name} cannot be judged: {type(error).__name__}: {error}"]
        self.balances.setdefault(claims.camera, Balance()).add(balance)
        if faults:
            faults.append(f"what was claimed: {claims}")
        else:
            for store in (
                self._places.store(claims.name),
                self._places.spill / self._places.store(claims.name).name,
            ):
                shutil.rmtree(store, ignore_errors=True)
            self._cameras[claims.camera].room.release()
        for fault in faults:
            self._on_fault(fault)
        self._taken += 1
        return True

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._over.set()
        self._thread.join()
        self._pool.shutdown(cancel_futures=True)
