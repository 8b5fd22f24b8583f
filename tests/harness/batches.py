"""Shard rows of many images that their sealer makes together, so that they share a journal."""

from __future__ import annotations

import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import numpy as np

import shardwright as sw
from shardwright.acquire.commands import Prepare
from shardwright.acquire.sealer import Sealer
from shardwright.disk import failpoints

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from shardwright.acquire.commands import SealerCommand
    from shardwright.writer.writer import Writer

IMAGES, TIMES = 6, 2
SHARING = 4  # of the images: the first one's row is made by ``create``, the second one's holds the sealer


def pixel_of(image: int, t: int) -> int:
    return 100 * image + t + 1


def append(writer: Writer, t: int, *images: int) -> None:
    for image in images:
        frame = np.full((8, 8), pixel_of(image, t), np.uint16)
        writer.append(frame, image=f"{image}", index=(t,))


def plate_of_one_slab_rows(path: Path, **settings: object) -> Writer:
    """A writer of ``IMAGES``, each of which is one shard row of one slab of ``TIMES`` frames."""
    layout = {"shape": (TIMES, 8, 8), "chunks": {"t": TIMES}, "shards": {"t": TIMES}}
    images = [f"{image}" for image in range(IMAGES)]
    return sw.create(path, images=images, dtype="uint16", axes="tyx", **layout, **settings)


def append_first_frames(writer: Writer) -> None:
    """Appends the first frame of each image. The rows of all but two share a journal once its sealer has
    made them."""
    with sealer_held() as (at_it, wait_for):
        append(writer, 0, 0, 1)
        at_it.wait()
        append(writer, 0, *range(2, IMAGES))
        wait_for(1 + SHARING)


@contextmanager
def sealer_held() -> Iterator[tuple[threading.Event, object]]:
    """Each sealer waits before its next command. Yields what is set once it does, and a call that waits until
    so many shard rows are to be made."""
    asked, put = threading.Semaphore(0), Sealer.put
    at_it, go_on = threading.Event(), threading.Event()

    def noted(sealer: Sealer, command: SealerCommand) -> None:
        put(sealer, command)
        if isinstance(command, Prepare):
            asked.release()

    def wait_for(rows: int) -> None:
        for _ in range(rows):
            asked.acquire()

    Sealer.put = noted  # type: ignore[method-assign]
    failpoints.set_hook("sealer.before_command", lambda: (at_it.set(), go_on.wait()))
    try:
        yield at_it, wait_for
    finally:
        go_on.set()
        failpoints.set_hook("sealer.before_command", None)
        Sealer.put = put  # type: ignore[method-assign]
