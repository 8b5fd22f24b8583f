"""The intake of frames as a user gives them: which image, which place, checked before any is taken. The same
for the client and for the writer in this process."""

from __future__ import annotations

import itertools
import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import FrameIndexError

from .frame_check import FrameCheck
from .grid import image_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from .acquisition_spec import AcquisitionSpec
    from .grid import Grids


class FrameIntake:
    """``done`` frames came before. ``next_of(image, count)`` returns the place, in acquisition order, of the
    next frame of an image that names none, for so many at once; called only with several images. From any
    thread."""

    def __init__(self, spec: AcquisitionSpec, done: int, next_of: Callable[[int, int], int]) -> None:
        self._spec = spec
        self._next_of = next_of
        self._alone = spec.is_single
        self._first = FrameCheck(spec.arrays[0], spec.grids.grids[0])
        self._checks = {0: self._first}  # by image
        self._lock = threading.Lock()  # of the places
        self._places: Iterator[int] | None = None
        if spec.order is not None:
            self._places = itertools.islice(in_order(spec.grids), done, None)

    def one(
        self,
        pixels: npt.NDArray[Any],
        image: str | None,
        index: Sequence[int] | None,
        frame_id: int | None,
        metadata: Mapping[str, float] | None,
    ) -> tuple[int | None, tuple[float, ...]]:
        """Returns the position of a frame, None if it is its own count, and one float for each metadata
        field. Raises what ``FrameCheck`` does, and ``UnknownImageError``; the frame has then taken no
        place."""
        # all images have the same metadata fields
        columns = self._first.no_metadata if metadata is None else self._first.metadata(metadata)
        if self._alone and image is None:
            return self._first.position(pixels, index, frame_id), columns
        if self._places is not None and image is None and index is None and frame_id is None:
            return self._take(1, pixels)[0], columns
        number = self._spec.number_of(image)
        check = self._check_of(number)
        position = check.position(pixels, index, frame_id)
        if position is None and not self._alone:
            position = check.nth_position(self._next_of(number, 1))
        return position, columns

    def many(
        self,
        frames: npt.ArrayLike,
        image: str | None,
        indices: npt.ArrayLike | None,
        frame_ids: npt.ArrayLike | None,
        metadata: Mapping[str, npt.ArrayLike] | None,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.void], bool]:
        """Returns frames as one array, ``FrameCheck.records`` of them, and whether their positions are their
        own counts, and missing there. Raises as ``one`` does."""
        pixels = frames if type(frames) is np.ndarray else np.asarray(frames)
        counted = indices is None and frame_ids is None
        if self._places is not None and image is None and counted:
            records = self._first.records(len(pixels), None, None, metadata)
            records["position"] = self._take(len(pixels), pixels)
            return pixels, records, False
        number = self._spec.number_of(image)
        check = self._check_of(number)
        pixels = check.stack(pixels)
        records = check.records(len(pixels), indices, frame_ids, metadata)
        if counted and not self._alone and len(pixels):
            place = self._next_of(number, len(pixels))
            check.nth_position(place + len(pixels) - 1)
            records["position"] = check.nth_position(place) + np.arange(len(pixels))
        return pixels, records, counted and self._alone

    def check_count(self, count: int) -> int:
        """Returns the position of the frame of that number, of a single image. Raises ``FrameIndexError``."""
        return self._first.nth_position(count)

    def _check_of(self, image: int) -> FrameCheck:
        if image not in self._checks:
            check = FrameCheck(self._spec.arrays[image], self._spec.grids.grids[image])
            self._checks.setdefault(image, check)
        return self._checks[image]

    def _take(self, count: int, pixels: npt.NDArray[Any]) -> list[int]:
        """Returns the positions of the next frames in the acquisition's order, once these frames are found to
        fit there."""
        with self._lock:
            assert self._places is not None, "the caller looks"
            positions = list(itertools.islice(self._places, count))
            try:
                if len(positions) < count:
                    raise FrameIndexError(  # noqa: TRY301
                        "more frames than the acquisition has places",
                        expected=f"at most {len(positions)} more",
                        got=count,
                    )
                for image in {image_of(position) for position in positions}:
                    check = self._check_of(image)
                    check.stack(pixels if pixels.ndim == 3 else pixels[None])
            except BaseException:
                self._places = itertools.chain(positions, self._places)
                raise
        return positions


def in_order(grids: Grids) -> Iterator[int]:
    """Yields the position of each place. Axes slower than the images go up to the largest count of any image;
    an image that ends earlier along one of them is left out from there on."""
    assert grids.slower_axes is not None, "there is an order"
    slower = grids.slower_axes
    axes = zip(*(grid.counts[:slower] for grid in grids.grids), strict=True)
    for step in _steps([0 if 0 in counts else max(counts) for counts in axes]):
        for grid in grids.grids:
            if all(i < count or not count for i, count in zip(step, grid.counts, strict=False)):
                for rest in itertools.product(*map(range, grid.counts[slower:])):
                    yield grid.position_of((*step, *rest))


def _steps(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Yields every index over these axes, row-major; 0 is an unlimited first one."""
    if not counts:
        yield ()
        return
    for first in range(counts[0]) if counts[0] else itertools.count():
        for rest in itertools.product(*map(range, counts[1:])):
            yield (first, *rest)
