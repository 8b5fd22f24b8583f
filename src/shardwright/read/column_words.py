"""The words that the numbers in some columns of a frame table stand for, as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.model.frame_status import OLDER_STATUS, FrameStatus, Reason

if TYPE_CHECKING:
    from collections.abc import Mapping

    import numpy.typing as npt

    from .frame_table import FrameTable

    Words = Mapping[str, int]  # the number of each, in ascending order


def column_words(table: FrameTable) -> dict[str, Words]:
    """Returns the words of each column that has numbers for them; tables of old releases have none."""
    enumerations = {**dict.fromkeys((table.status_column, OLDER_STATUS), FrameStatus), "reason": Reason}
    words: dict[str, Words] = {
        name: {number.name.lower(): int(number) for number in numbers}
        for name, numbers in enumerations.items()
        if name in table.columns
    }
    if table.images:
        words["image"] = {name: number for number, name in enumerate(table.image_names)}
    return words


def word_codes(
    table: FrameTable, column: str, words: Words, values: npt.NDArray[Any]
) -> npt.NDArray[np.int64]:
    """Returns the index among ``words`` of each number in ``values``; -1 for an image that is not known.
    Raises ``ShardFormatError`` for a number that stands for none."""
    numbers = list(words.values())
    known = [*numbers, -1] if column == "image" else numbers
    if not np.isin(values, known).all():
        raise ShardFormatError(
            f"column {column} of the frame table has an unknown number", got=table.columns[column].path
        )
    return np.where(values == -1, -1, np.searchsorted(numbers, values))
