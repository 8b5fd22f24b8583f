"""A frame's memory for a camera's driver to write into: ``Writer.claim`` and ``Stream.claim``."""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import OverloadError

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    import numpy.typing as npt


class FrameClaim:
    """The claim of one frame: a context manager that gives ``pixels``. Leaving the block commits the frame,
    an exception gives the memory back. ``commit`` and ``give_back`` do so without a block; the first of them
    counts, later ones do nothing. Any thread may do either.

    ``pixels`` (rows, columns), of colours (channels, rows, columns), must not be written after that: the
    memory is read until the frame is stored, and then another frame's. The array itself is read-only from
    there on, views of it are not.
    """

    def __init__(
        self,
        pixels: npt.NDArray[Any],
        commit: Callable[[npt.NDArray[Any]], None],
        give_back: Callable[[], None],
    ) -> None:
        self.pixels = pixels
        self._commit = commit
        self._give_back = give_back
        self._ends = deque((True,))  # taken by the first call, of whichever thread, that ends it

    def commit(self) -> None:
        """Takes the frame as ``append`` would: it gets its sequence, and its place if the claim named none.
        Raises as ``append`` does; the memory is then given back."""
        if self._end():
            self._commit(self.pixels)

    def give_back(self) -> None:
        """Ends the claim without a frame."""
        if self._end():
            self._give_back()

    def _end(self) -> bool:
        self.pixels.flags.writeable = False
        try:
            return self._ends.pop()
        except IndexError:
            return False

    def __enter__(self) -> npt.NDArray[Any]:
        return self.pixels

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self.commit()
        else:
            self.give_back()


def all_claimed(claimed: int, slots: int) -> OverloadError:
    """The error where the wait for a slot may have no end: what is not claimed may wait for the claims."""
    return OverloadError(
        "open claims hold the frame buffers",
        expected="a frame buffer that becomes free without them",
        got=f"{claimed} of {slots} claimed",
        hint="Leave the block of a claim, or commit it or give it back, before more frames come",
    )
