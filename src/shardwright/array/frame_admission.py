"""Admits frames as a user gives them: which image, which place, checked before any is taken. The same
for the client and for the writer in this process."""

from __future__ import annotations

import itertools
import math
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from shardwright.model.errors import FrameIndexError
from shardwright.model.step_lock import StepLock

from .frame_check import Columns, FrameCheck
from .grid import image_of, number_in_image

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    import numpy.typing as npt

    from .acquisition_spec import AcquisitionSpec
    from .as_written import Index
    from .grid import Grid, Grids


class AdmittedFrame(NamedTuple):
    """A checked frame. ``position`` None: its own count; of a frame of colours the first of its places.
    ``columns``: ``frame_check.Columns``.
    ``named``: whether the caller gave the place; else it must be given back if the frame is not taken."""

    position: int | None
    columns: Columns
    named: bool


class FrameAdmission:
    """Checks frames and gives each its place. ``done`` frames came before. ``first_of(image)`` returns the
    place, in acquisition order, of an image's first frame that names none, or raises; called only with
    several images, once for each. From any thread."""

    def __init__(self, spec: AcquisitionSpec, done: int, first_of: Callable[[int], int]) -> None:
        self._spec = spec
        self._first_of = first_of
        self._alone = spec.is_single
        self._places = spec.frame_places
        self._first = FrameCheck(spec.arrays[0], spec.grids.grids[0])
        self._checks = {0: self._first}  # by image
        # of all below
        self._lock = StepLock("writer's or stream's places", hint="Close it: what came is sealed")
        self._next: dict[int, int] = {}  # by image: the place of its next frame that names none
        self._order: Iterator[int] | None = None
        if spec.order is not None:
            self._order = itertools.islice(in_order(spec.grids), done, None)
        self._returned: deque[int] = deque()  # the next places of the order
        self._names_places: bool | None = None  # with an order: all frames do, or none

    @property
    def spec(self) -> AcquisitionSpec:
        """The specification of the acquisition."""
        return self._spec

    def take_images(self, spec: AcquisitionSpec) -> None:
        """Takes the specification with images that were added, each with the next places of an order. By
        one thread at a time."""
        if spec is self._spec:
            return
        # Without the lock, which a call may hold that this one has interrupted: who takes places meanwhile
        # has the old iterator, which goes on within the new one.
        if self._order is not None:  # it begins with the images
            new = spec.grids.grids[len(self._spec.names) :]
            self._order = itertools.chain(self._order, *map(_places_of, new))
        self._spec = spec

    def one(
        self,
        pixels: npt.NDArray[Any],
        image: str | None,
        index: Index | None,
        frame_id: int | None,
        metadata: Mapping[str, Any] | None,
    ) -> AdmittedFrame:
        """Checks one frame. Raises what ``FrameCheck`` does, and ``UnknownImageError``; the frame has then
        taken no place."""
        # all images have the same metadata fields
        columns = self._first.no_metadata if metadata is None else self._first.metadata(metadata)
        if self._alone and image is None:
            return AdmittedFrame(self._first.position(pixels, index, frame_id), columns, named=True)
        named = image is not None or index is not None or frame_id is not None
        if self._follows_order(named=named):
            places = self._take(self._places, lambda check: check.position(pixels, None, None))
            return AdmittedFrame(places[0], columns, named)
        number = self._spec.number_of(image)
        check = self._check_of(number)
        position = check.position(pixels, index, frame_id)
        self._note_named()
        if position is None and not self._alone:
            return AdmittedFrame(self._take_of(number, self._places), columns, named=False)
        return AdmittedFrame(position, columns, named=True)

    def many(
        self,
        frames: npt.ArrayLike,
        image: str | None,
        indices: npt.ArrayLike | None,
        frame_ids: npt.ArrayLike | None,
        metadata: Mapping[str, Any] | None,
    ) -> tuple[npt.NDArray[Any], npt.NDArray[np.void], bool, bool]:
        """Returns frames as one array, ``FrameCheck.records`` of them, whether their positions are their own
        counts, and missing there, and whether the places are ``AdmittedFrame.named``. Raises as ``one``
        does."""
        counted = indices is None and frame_ids is None
        if self._follows_order(named=image is not None or not counted):
            pixels = frames if type(frames) is np.ndarray else np.asarray(frames)
            if pixels.ndim != 1 + len(self._spec.arrays[0].given_shape):
                self._first.stack(pixels)  # raises
            records = self._first.records(len(pixels), None, None, metadata)
            records["position"] = self._take(len(records), lambda check: check.stack(pixels))
            return pixels, records, False, False
        number = self._spec.number_of(image)
        check = self._check_of(number)
        pixels = check.stack(frames)
        records = check.records(len(pixels), indices, frame_ids, metadata)
        self._note_named()
        if counted and not self._alone and len(pixels):
            records["position"] = self._take_of(number, len(records)) + np.arange(len(records))
            return pixels, records, False, False
        return pixels, records, counted and self._alone, True

    def skipped(self, frames: int) -> tuple[npt.NDArray[np.void], bool]:
        """Returns descriptors of the next ``frames`` places, and whether their positions are their own
        counts, and missing there. Raises ``FrameIndexError`` where nothing says which places come next, or
        there are none."""
        if type(frames) is not int or frames < 1:
            raise FrameIndexError(
                "a number of frames to skip", expected="an integer of 1 or more", got=frames
            )
        if not self._alone and self._order is None:
            raise FrameIndexError(
                "nothing says which places come next: there are several images and no order",
                expected="an order of the acquisition",
                hint='Create it with order, such as order=("t", "p", "z"); places without a frame stay empty',
            )
        records = self._first.records(frames, None, None, None)
        if not self._follows_order(named=False):
            return records, True
        records["position"] = self._take(len(records), lambda _: None)
        return records, False

    def form(
        self,
        image: str | None,
        index: Index | None,
        frame_id: int | None,
        metadata: Mapping[str, Any] | None,
    ) -> npt.NDArray[Any]:
        """Returns ``FrameCheck.form`` of a frame that ``one`` gets later. Takes no place; raises what ``one``
        would raise now, and ``FrameIndexError`` where only the place would tell the form."""
        if metadata is not None:
            self._first.metadata(metadata)
        named = image is not None or index is not None or frame_id is not None
        if self._follows_order(named=named):
            if len({(array.frame_shape, array.dtype) for array in self._spec.arrays}) > 1:
                raise FrameIndexError(
                    "the claim of a frame without a place, among images of different shapes or dtypes",
                    expected="an image and an index for each frame",
                )
            return self._first.form
        check = self._first if self._alone and image is None else self._check_of(self._spec.number_of(image))
        check.position(check.form, index, frame_id)
        return check.form

    def check_count(self, count: int) -> int:
        """As ``FrameCheck.counted_position``, of a single image."""
        return self._first.counted_position(count)

    def give_back(self, positions: Sequence[int]) -> None:
        """Returns places that it gave and that no frame took, in their order: the next frames get
        them, unless later ones were given meanwhile."""
        with self._lock.turn(also_broken=True), self._lock.anyway:
            if self._order is not None:
                self._returned.extendleft(reversed(positions))
            elif positions and self._next[image_of(positions[0])] == number_in_image(positions[-1]) + 1:
                self._next[image_of(positions[0])] = number_in_image(positions[0])

    def _follows_order(self, *, named: bool) -> bool:
        """Returns whether a frame is placed by the acquisition's order. Raises ``FrameIndexError`` where some
        frames name their place and some do not: nothing says then which places are left."""
        if self._order is None:
            return False
        if self._names_places not in (None, named):
            raise FrameIndexError(
                "the frames of an acquisition with an order name their places, or none does",
                expected="an image and an index" if self._names_places else "neither image, index nor id",
            )
        return not named

    def _note_named(self) -> None:
        """Notes that a frame that is taken names its place."""
        if self._order is not None and self._names_places is None:
            with self._lock.turn(), self._lock:
                self._follows_order(named=True)  # another thread may have been the first, without a place
                self._names_places = True

    def _check_of(self, image: int) -> FrameCheck:
        if image not in self._checks:
            array, grid = self._spec.arrays[image], self._spec.grids.grids[image]
            is_alike = array is self._spec.arrays[0]
            check = self._first.of_image(grid) if is_alike else FrameCheck(array, grid)
            self._checks.setdefault(image, check)
        return self._checks[image]

    def _take_of(self, image: int, count: int) -> int:
        """Returns the first of the next ``count`` places of an image."""
        check = self._check_of(image)
        with self._lock.turn(), self._lock:
            if image not in self._next:
                self._next[image] = self._first_of(image)
            number = self._next[image]
            check.counted_position(number + count - 1)
            self._next[image] = number + count
        return check.counted_position(number)

    def _take(self, count: int, fits: Callable[[FrameCheck], object]) -> list[int]:
        """Returns the positions of the next frames in the acquisition's order, once ``fits`` has found, of
        each of their images, that the frames fit there."""
        assert self._order is not None, "the caller looks"
        with self._lock.turn(), self._lock:
            self._follows_order(named=False)  # likewise
            positions = [self._returned.popleft() for _ in range(min(count, len(self._returned)))]
            positions += itertools.islice(self._order, count - len(positions))
            try:
                if len(positions) < count:
                    raise FrameIndexError(  # noqa: TRY301
                        "more frames than the acquisition has places",
                        expected=f"at most {len(positions) // self._places} more",
                        got=count // self._places,
                    )
                for image in dict.fromkeys(map(image_of, positions)):
                    fits(self._check_of(image))
            except BaseException:
                self._returned.extendleft(reversed(positions))
                raise
            self._names_places = False
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
                first = grid.position_of((*step, *[0] * (len(grid.counts) - slower)))
                yield from range(first, first + math.prod(grid.counts[slower:]))


def _places_of(grid: Grid) -> range:
    return range(grid.first, grid.last_position + 1)


def _steps(counts: list[int]) -> Iterator[tuple[int, ...]]:
    """Yields every index over these axes, row-major; 0 is an unlimited first one."""
    if not counts:
        yield ()
        return
    for first in range(counts[0]) if counts[0] else itertools.count():
        for rest in itertools.product(*map(range, counts[1:])):
            yield (first, *rest)
