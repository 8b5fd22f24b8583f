"""The credit of a session: which sequences came, whose pixels are still needed, which ring slots are taken;
and the checks of one FRAMES message, made as a whole with NumPy. No I/O, no Python object for each frame.

It outlives connections. A client that comes back keeps its slots; frames of an earlier client that are still
in the pipeline are waited for, but their release is not acknowledged.
"""

from __future__ import annotations

from itertools import repeat
from json import scanner
from operator import itemgetter
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from shardwright.array.frame_check import wrong_dtype, wrong_shape
from shardwright.array.grid import image_of, number_in_image
from shardwright.model.errors import FrameIndexError, MetadataError, ProtocolError
from shardwright.model.json_text import STRICT_JSON
from shardwright.wire.controls import MAX_MISSING_RANGES
from shardwright.wire.descriptor import (
    FRAME_DROPPED,
    FRAME_NOT_HELD,
    FRAME_SKIPPED,
    JSON_FIELD,
    JSON_LEFT_OUT,
    NO_POSITION,
)
from shardwright.wire.in_flight import NO_SLOT, InFlight, at_most, ranges_of, runs_of, without
from shardwright.wire.messages import MAX_PIXELLESS_FRAMES

if TYPE_CHECKING:
    from collections.abc import Sequence

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import AcquisitionSpec
    from shardwright.disk.ring import Ring
    from shardwright.wire.messages import Batch

    Ranges = list[tuple[int, int]]


# (text, offset) -> (value, offset behind it); in C, unlike ``raw_decode``
_SCAN: Any = scanner.make_scanner(cast("Any", STRICT_JSON))


class Credit:
    """Owned by the ingest thread, like its session."""

    def __init__(self, frame_bytes: int) -> None:
        self._frame_bytes = frame_bytes
        # Frames with pixels, of all clients, until the pipeline releases them. They keep their memory alive:
        # the message that brought them, or the ring.
        self._in_flight = InFlight()
        # Frames without pixels, of the present client only: they hold no memory. Apart from the others, since
        # no worker needs them: they are released once they are recorded.
        self._pixelless = InFlight()
        # Of the present client's first frame. Those before it are an earlier client's, whose release would
        # tell this one of frames that it never sent.
        self.first = 0
        self._expected = 0  # the least sequence that may come next
        # Frames before this were sent over an earlier connection: of them only those that are missing come
        # again, so there are holes. None is allowed from here on.
        self._holes_below = 0
        self._missing = _Missing([])
        # By slot of the ring: a client that fills a slot which is still read would alter a frame that it was
        # told is accepted. Earlier clients have rings of their own.
        self._slot_taken = np.zeros(0, np.bool_)
        # Frames with pixels of the present client in flight: the credit that it has used. Not
        # ``_slot_taken``'s sum, since frames in messages have no slots.
        self._with_pixels = 0
        self.frames_with_pixels = 0  # that ever came here, each once; read from any thread

    @property
    def frames_in_flight(self) -> int:
        """With pixels, of all clients."""
        return self._in_flight.frames

    @property
    def next_sequence(self) -> int:
        """Of the first frame that was never sent before."""
        return max(self._expected, self._holes_below)

    @property
    def ring_slots(self) -> int:
        """0 before the first client."""
        return len(self._slot_taken)

    def earlier_bytes(self) -> int:
        """Pixels of earlier clients that are still needed."""
        return (self._in_flight.frames - self._with_pixels) * self._frame_bytes

    def holds(self, ring: Ring) -> bool:
        return self._in_flight.holds(ring)

    def all_came(self) -> bool:
        """True once all frames that had to be sent again have come."""
        return self._missing.came == self._missing.count

    # Clients come
    # ----------------------------------------------------------------------------------------------------

    def begin(self, first: int, ring_slots: int) -> None:
        """Begins with a client that has sent nothing yet; its frames are numbered from ``first``."""
        self.first = self._expected = self._holes_below = first
        self._missing, self._pixelless = _Missing([]), InFlight()
        self._slot_taken = np.zeros(ring_slots, np.bool_)
        self._with_pixels = 0

    def resume(self, next_sequence: int, missing: Ranges, ring_slots: int) -> tuple[Ranges, Ranges]:
        """Resumes the same client, which has sent frames below ``next_sequence``. Returns the ranges that it
        must send again, and those that are released."""
        if self.ring_slots == 0:  # its earlier frames went to another process
            self._slot_taken = np.zeros(ring_slots, np.bool_)
        self._expected, self._holes_below = 0, next_sequence
        self._missing = _Missing(missing)
        again = at_most(missing, MAX_MISSING_RANGES)
        if next_sequence == 0:
            return again, []
        return again, without(
            (0, next_sequence - 1), again, self._in_flight.ranges(), self._pixelless.ranges()
        )

    # Frames come
    # ----------------------------------------------------------------------------------------------------

    def take(
        self, descriptors: npt.NDArray[np.void], pixels: Sequence[memoryview], ring: Ring | None
    ) -> tuple[npt.NDArray[np.void], npt.NDArray[np.int64], Ranges]:
        """Takes a batch whose content was checked. Returns its new descriptors, their addresses (0 for frames
        without pixels), and the ranges that were released before.

        Takes all of the batch, or raises ``ProtocolError`` and takes nothing.
        """
        sequences = descriptors["sequence"].astype(np.int64)
        check_sequences(sequences, self._expected, self._holes_below)
        late = self._missing.holds(sequences)
        fresh = late | (sequences >= self._holes_below)
        came, due = (
            self._missing.came + int(np.count_nonzero(late)),
            self._missing.count_to(int(sequences[-1])),
        )
        if came != due:
            raise ProtocolError(
                "frames that had to be sent again are missing", expected=f"{due} of them by now", got=came
            )
        pixelless = descriptors["flags"] != 0
        slots = np.where(pixelless, NO_SLOT, descriptors["slot"]).astype(np.uint32)
        new_slots = slots[fresh & ~pixelless]
        self._check_credit(len(new_slots), int(np.count_nonzero(fresh & pixelless)))
        addresses = np.zeros(len(slots), np.int64)
        addresses[~pixelless] = self._addresses(slots[~pixelless], new_slots, pixels, ring)
        if ring is not None:
            self._slot_taken[new_slots] = True
        # the memory of the pixels, which lives until the last of these frames is released
        keep = pixels if ring is None else ring
        _add_runs(self._in_flight, sequences[fresh & ~pixelless], new_slots, keep)
        _add_runs(self._pixelless, sequences[fresh & pixelless], slots[fresh & pixelless], None)
        self._with_pixels += len(new_slots)
        self.frames_with_pixels += len(new_slots)
        self._expected, self._missing.came = int(sequences[-1]) + 1, came
        return descriptors[fresh], addresses[fresh], self._not_in_flight(sequences[~fresh])

    def _not_in_flight(self, sequences: npt.NDArray[np.int64]) -> Ranges:
        """Ranges of repeated frames that are released: the client may have missed their release."""
        if len(sequences) == 0:
            return []
        held = [*self._in_flight.ranges(), *self._pixelless.ranges()]
        return [left for whole in ranges_of(sequences) for left in without(whole, held)]

    def _check_credit(self, with_pixels: int, pixelless: int) -> None:
        if self._with_pixels + with_pixels > self.ring_slots:
            expected = f"at most {self.ring_slots} frames in flight"
            raise ProtocolError(
                "more frames than credit", expected=expected, got=self._with_pixels + with_pixels
            )
        if self._pixelless.frames + pixelless > MAX_PIXELLESS_FRAMES:
            expected = f"at most {MAX_PIXELLESS_FRAMES} frames without pixels in flight"
            raise ProtocolError(
                "more frames than credit", expected=expected, got=self._pixelless.frames + pixelless
            )

    def _addresses(
        self,
        slots: npt.NDArray[np.uint32],
        new_slots: npt.NDArray[np.uint32],
        pixels: Sequence[memoryview],
        ring: Ring | None,
    ) -> npt.NDArray[np.int64]:
        """The addresses of all frames with pixels. A repeated frame may name the slot that it is in."""
        if ring is None:
            return addresses_in_parts(pixels, slots, self._frame_bytes)
        if pixels:
            raise ProtocolError(
                "pixels in a message of a shared-memory session", expected="no pixel parts", got=len(pixels)
            )
        check_ring_slots(new_slots, self._slot_taken)
        return ring.address + slots.astype(np.int64) * self._frame_bytes

    # Frames go
    # ----------------------------------------------------------------------------------------------------

    def release(self, sequences: npt.NDArray[Any], recorded: int) -> npt.NDArray[np.int64]:
        """Releases frames whose pixels the pipeline no longer needs, and those without pixels that it has
        recorded: all below ``recorded``. Returns what to acknowledge to the present client, as (first, last)
        pairs."""
        ordered = np.sort(sequences.astype(np.int64))
        begin = int(np.searchsorted(ordered, self.first))
        self._in_flight.release_all(ordered[:begin])  # an earlier client's
        own = ordered[begin:]
        if not self._pixelless.frames:
            self._release_own(own)
            return runs_of(own)
        pixelless = self._pixelless.ranges()
        own = own[~_within(own, pixelless)]  # frames without pixels are released by being recorded
        self._release_own(own)
        recorded_now = [(first, min(last, recorded - 1)) for first, last in pixelless if first < recorded]
        if recorded_now:
            self._pixelless.release_known(0, recorded - 1)
        return np.concatenate((runs_of(own), np.array(recorded_now, np.int64).reshape(-1, 2)))

    def _release_own(self, sequences: npt.NDArray[np.int64]) -> None:
        slots = self._in_flight.release_all(sequences)
        assert len(slots) == len(sequences), "the pipeline releases a frame once"
        self._with_pixels -= len(slots)
        self._slot_taken[slots[slots < self.ring_slots]] = False


class _Missing:
    """Frames that must be sent again, as sorted (first, last) ranges; ``came`` counts those that were. They
    come in order, none is left out."""

    def __init__(self, ranges: Ranges) -> None:
        self.came = 0
        self._firsts = np.array([first for first, _ in ranges], np.int64)
        self._lasts = np.array([last for _, last in ranges], np.int64)
        self._before = np.concatenate(([0], np.cumsum(self._lasts - self._firsts + 1)))
        self.count = int(self._before[-1])

    def holds(self, sequences: npt.NDArray[np.int64]) -> npt.NDArray[np.bool_]:
        if self.came == self.count:
            return np.zeros(len(sequences), np.bool_)
        at = np.searchsorted(self._firsts, sequences, side="right") - 1
        return (at >= 0) & (sequences <= self._lasts[at])

    def count_to(self, sequence: int) -> int:
        """Returns how many of them are ``sequence`` or less."""
        at = int(np.searchsorted(self._firsts, sequence, side="right")) - 1
        return (
            0
            if at < 0
            else int(self._before[at]) + min(sequence, int(self._lasts[at])) + 1 - int(self._firsts[at])
        )


def _within(sequences: npt.NDArray[np.int64], ranges: Ranges) -> npt.NDArray[np.bool_]:
    """Which of these (sorted) are in one of the ranges (sorted, apart)."""
    firsts, lasts = np.array(ranges, np.int64).T
    at = np.searchsorted(firsts, sequences, side="right") - 1
    within: npt.NDArray[np.bool_] = (at >= 0) & (sequences <= lasts[at])
    return within


def _add_runs(
    in_flight: InFlight, sequences: npt.NDArray[np.int64], slots: npt.NDArray[np.uint32], keep: object
) -> None:
    ends = np.flatnonzero(np.diff(sequences) != 1) + 1
    for run, run_slots in zip(np.split(sequences, ends), np.split(slots, ends), strict=True):
        if len(run):
            in_flight.add(int(run[0]), run_slots, keep)


def check_content(batch: Batch, spec: AcquisitionSpec) -> None:
    """Checks dtype, shape and each descriptor's fields, all but slots and sequences. Raises
    ``FrameDtypeError``, ``FrameShapeError``, ``FrameIndexError``, ``MetadataError`` or ``ProtocolError``."""
    dtype, shape = spec.slot_form
    if batch.dtype != dtype:
        raise wrong_dtype(dtype, batch.dtype)
    if (batch.height, batch.width) != shape:
        raise wrong_shape(shape, (batch.height, batch.width))
    frames = batch.descriptors
    flags = frames["flags"]
    if (
        (flags > FRAME_SKIPPED).any()
        or frames["reserved"].any()
        or (frames["frame_id"] < -1).any()
        or frames["slot"][flags != 0].any()
    ):
        expected = (
            f"flags 0, {FRAME_DROPPED}, {FRAME_NOT_HELD} or {FRAME_SKIPPED}, reserved 0, frame_id -1 or "
            f"more, slot 0 without pixels"
        )
        raise ProtocolError("a descriptor with reserved bits", expected=expected)
    if spec.frame_json_bytes:
        _check_json(frames[JSON_FIELD], spec.frame_json_bytes)
    positions = frames["position"]
    images, lasts = image_of(positions), spec.grids.last_numbers
    known = (images >= 0) & (images < lasts.size)
    unknown = (flags == FRAME_NOT_HELD) & (positions == NO_POSITION)
    outside = ~unknown & (~known | (number_in_image(positions) > lasts[np.where(known, images, 0)]))
    if outside.any():
        wrong = int(positions[outside][0])
        image = min(max(image_of(wrong), 0), lasts.size - 1)
        raise FrameIndexError(
            "frame index outside the array", expected=f"position 0 to {int(lasts[image])}", got=wrong
        )


def _check_json(fields: npt.NDArray[np.bytes_], most_bytes: int) -> None:
    """Checks that each is one JSON object as UTF-8, or nothing: what cannot be parsed would spoil the column
    for every reader. The fields are padded to a multiple of 8, the text must keep to ``most_bytes``, which
    readers rely on. Raises ``MetadataError``, ``ProtocolError``."""
    lengths = np.char.str_len(fields)
    if (longest := int(lengths.max(initial=0))) > max(most_bytes, len(JSON_LEFT_OUT)):
        raise ProtocolError(
            "a frame with more metadata than its array has room for",
            expected=f"at most {most_bytes} bytes of JSON",
            got=f"{longest} bytes",
        )
    texts: list[bytes] = fields[lengths > 0].tolist()
    try:
        decoded = list(map(bytes.decode, texts))
        # a loop in C, which keeps no parsed object: a camera may send thousands of frames a second
        ends = list(map(itemgetter(1), map(_SCAN, decoded, repeat(0))))
        # a text that begins like no value ends that loop, so that there are fewer ends than texts
        sound = ends == list(map(len, decoded)) and all(map(bytes.startswith, texts, repeat(b"{")))
    except (ValueError, RecursionError):
        sound = False
    if not sound:
        raise MetadataError(
            "a frame with metadata that are no JSON",
            expected="one object as UTF-8, or nothing",
            hint="Nothing of the batch is stored: a reader could not parse the column",
        )


def check_sequences(sequences: npt.NDArray[np.int64], expected: int, holes_below: int) -> None:
    """Raises ``ProtocolError`` unless they continue from ``expected`` without holes; below ``holes_below``
    (frames that are sent again) they must only ascend."""
    before = np.concatenate(([expected - 1], sequences[:-1]))
    if not ((sequences == before + 1) | ((sequences > before) & (sequences <= holes_below))).all():
        wanted = (
            f"{max(expected, holes_below)} and following"
            if expected >= holes_below
            else (f"ascending from {expected}, without holes from {holes_below}")
        )
        raise ProtocolError(
            "frame sequences are missing or repeated", expected=wanted, got=sequences[:4].tolist()
        )


def check_ring_slots(slots: npt.NDArray[np.uint32], slot_in_flight: npt.NDArray[np.bool_]) -> None:
    """Raises ``ProtocolError`` unless the ring slots exist, are free, and differ."""
    count = len(slot_in_flight)
    if (slots >= count).any() or slot_in_flight[slots].any() or np.unique(slots).size != slots.size:
        raise ProtocolError(
            "ring slots that are not free",
            expected=f"different free slots below {count}",
            got=slots[:4].tolist(),
        )


def addresses_in_parts(
    parts: Sequence[memoryview], slots: npt.NDArray[np.uint32], frame_bytes: int
) -> npt.NDArray[np.int64]:
    """The addresses of frames that came as parts of a message: each part must hold whole frames, together
    exactly ``len(slots)``. Raises ``ProtocolError``."""
    counts = [len(part) // frame_bytes for part in parts]
    whole = all(len(part) == n * frame_bytes and n > 0 for part, n in zip(parts, counts, strict=True))
    if not whole or sum(counts) != len(slots):
        expected = f"{len(slots)} frames of {frame_bytes} bytes, none cut"
        raise ProtocolError(
            "pixel parts that do not hold the frames",
            expected=expected,
            got=[len(part) for part in parts[:4]],
        )
    if not np.array_equal(slots, np.arange(len(slots), dtype=np.uint32)):
        raise ProtocolError(
            "slots must number the frames of the message", expected="0, 1, 2, ...", got=slots[:4].tolist()
        )
    starts = [
        np.frombuffer(part, np.uint8).ctypes.data + frame_bytes * np.arange(n, dtype=np.int64)
        for part, n in zip(parts, counts, strict=True)
    ]
    return np.concatenate([np.zeros(0, np.int64), *starts])
