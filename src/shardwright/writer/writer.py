"""The in-process writer: appends frames without a daemon. One copy into a ring of recycled frame buffers,
or none (``copy=False``, ``claim``), then the daemon's pipeline."""

from __future__ import annotations

import sys
import time
import weakref
from collections import deque
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.array.frame_order import Begun
from shardwright.array.frame_sink import FrameSink
from shardwright.model.errors import ShardwrightError
from shardwright.wire.descriptor import FRAME_DROPPED, FRAME_SKIPPED, JSON_FIELD, METADATA_FIELDS

from .driver import Driver, Frames, end_forgotten
from .frame_buffers import can_be_lent

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.acquire.acquisition import Acquisition
    from shardwright.acquire.workers import WorkerPool
    from shardwright.array.acquisition_spec import Image
    from shardwright.array.frame_admission import AdmittedFrame
    from shardwright.model.progress_teller import OnProgress
    from shardwright.model.receipt import Receipt, Watermark
    from shardwright.model.write_options import Extent

BATCH_BYTES = 8 << 20  # of pixels that ``append_many`` submits at once


class Writer(FrameSink):
    """Writes an acquisition in this process; made by ``shardwright.create`` or ``shardwright.resume``."""

    def __init__(
        self,
        make: Callable[[WorkerPool, Callable[[], None]], Acquisition],
        threads: int,
        on_progress: OnProgress | None = None,
        memory_bytes: int = sys.maxsize,
    ) -> None:
        """``memory_bytes``: the most memory in use."""
        try:
            self._driver = driver = Driver(make, threads, on_progress, memory_bytes)
        except ShardwrightError as error:
            raise error from None  # the error is complete: one traceback is enough
        self._on_progress = on_progress  # which nothing else keeps alive
        self._forgotten = weakref.finalize(self, end_forgotten, driver)
        self._acquisition = acquisition = driver.acquisition
        super().__init__(driver, driver.admission)
        self._ring = driver.ring
        self._limits = acquisition.limits
        # descriptors and addresses of single frames: as many as threads append at once
        self._spare: deque[tuple[np.ndarray, np.ndarray]] = deque()

    @property
    def path(self) -> Path:
        return self._acquisition.path

    @property
    def frames_dropped(self) -> int:
        return self.receipt.frames_dropped // self._places

    @property
    def released(self) -> int:
        self._driver.check_process()
        return self._driver.released // self._places

    @property
    def receipt(self) -> Receipt:
        return self._driver.receipt_so_far()

    @property
    def watermark(self) -> Watermark:
        self._driver.check_process()
        return self._acquisition.watermark.of_frames(self._places)

    def _take(
        self,
        begun: Begun[Frames],
        claimed: np.ndarray | None,
        pixels: np.ndarray,
        admitted: AdmittedFrame,
        frame_id: int | None,
        *,
        copy: bool,
    ) -> None:
        counted, lent = admitted.position is None, False
        record, address = described = self._described(admitted, frame_id)
        if claimed is None:
            self._driver.begin(begun, self._places, counted=counted)
            lent = self._put(begun.slots, pixels, record, address, copy=copy)
        else:
            if claimed.size:
                address[:] = self._ring.addresses_of(claimed)
            else:
                record["flags"] = FRAME_DROPPED
            self._driver.begin_claimed(begun, claimed, counted=counted)
        if self._driver.complete(begun, Frames(begun.slots, record, address, counted, lent)):
            self._spare.append(described)

    def _put(
        self, slots: np.ndarray, pixels: np.ndarray, record: np.ndarray, address: np.ndarray, *, copy: bool
    ) -> bool:
        """Sets the address of a frame: in its slot, or where it lies. Returns whether it is lent."""
        if not slots.size:
            record["flags"] = FRAME_DROPPED
            return False
        if not copy and can_be_lent(pixels):
            address[:] = self._ring.lend(slots, pixels)
            return True
        self._copied += not copy
        if self._places > 1:
            address[:] = self._ring.put_many(slots, pixels[None])
        else:
            address[0] = self._ring.put(slots.item(), pixels)
        return False

    def _claim(self, form: np.ndarray) -> tuple[np.ndarray, np.ndarray, Callable[[], None]]:
        slots = self._driver.claim()
        return self._ring.pixels(slots, form), slots, partial(self._driver.give_back_claimed, slots)

    def _take_part(self, pixels: np.ndarray, records: np.ndarray, *, counted: bool, copy: bool) -> int:
        lent = not copy and can_be_lent(pixels)
        # parts, so that workers begin while the rest is copied
        most = max(self._limits.frames_per_slab, BATCH_BYTES // self._limits.frame_bytes)
        most = min(max(self._places, most // self._places * self._places), len(records))
        begun: Begun[Frames] = Begun()
        try:
            self._driver.begin(begun, most, counted=counted)
            slots, records = begun.slots, records[: begun.frames]
            dropped = not slots.size
            addresses = np.zeros(len(records), np.int64)
            if not dropped:
                put = self._ring.lend if lent else self._ring.put_many
                addresses = put(slots, pixels[: slots.size // self._places])
            records["flags"] = FRAME_DROPPED if dropped else 0
            records["camera_ns"], records["monotonic_ns"] = time.time_ns(), time.monotonic_ns()
            self._copied += slots.size // self._places if not (copy or lent) else 0
            self._driver.complete(begun, Frames(slots, records, addresses, counted, lent and not dropped))
        except BaseException:
            self._driver.give_up(begun)
            raise
        return len(records)

    def _described(self, admitted: AdmittedFrame, frame_id: int | None) -> tuple[np.ndarray, np.ndarray]:
        """Returns the descriptor of one frame, without its sequence, nor its position if that is its count;
        and room for its address. ``_spare`` gets both back."""
        try:
            records, address = self._spare.pop()
        except IndexError:
            records = np.zeros(self._places, self.images.frame_descriptor)
            address = np.zeros(self._places, np.int64)
        record, values, spec = records[0], admitted.columns, self.images
        for name, value in zip(METADATA_FIELDS, values, strict=False):  # the array's own come behind them
            record[name] = value
        if spec.frame_fields:
            record["further"] = values[len(METADATA_FIELDS) :][: len(spec.frame_fields)]
        if spec.frame_json_bytes:
            record[JSON_FIELD] = values[-1]
        if admitted.position is not None:
            record["position"] = admitted.position
        record["frame_id"] = -1 if frame_id is None else frame_id
        record["camera_ns"] = time.time_ns()
        record["monotonic_ns"] = time.monotonic_ns()
        record["flags"] = 0
        if self._places > 1:
            records[1:] = record
            records["position"] += np.arange(self._places, dtype=np.int64)
        return records, address

    def _update(self, image: int | None, attributes: dict[str, Any], timeout_s: float | None) -> None:
        self._driver.update_metadata(image, attributes, timeout_s)

    def _add(self, image: Image, timeout_s: float | None) -> None:
        self._driver.add_image(image, timeout_s)

    def _skip_part(self, records: np.ndarray, *, counted: bool) -> int:
        begun: Begun[Frames] = Begun()
        try:
            self._driver.begin_skipped(begun, len(records), counted=counted)
            records, addresses = records[: begun.frames], np.zeros(begun.frames, np.int64)
            records["flags"] = FRAME_SKIPPED
            records["camera_ns"], records["monotonic_ns"] = time.time_ns(), time.monotonic_ns()
            self._driver.complete(begun, Frames(begun.slots, records, addresses, counted, lent=False))
        except BaseException:
            self._driver.give_up(begun)
            raise
        return len(records)

    def close(self, *, extent: Extent = "frames") -> Receipt:
        receipt = self._driver.end(extent)
        if self._driver.receipt is not None:
            self._forgotten.detach()
        return receipt
