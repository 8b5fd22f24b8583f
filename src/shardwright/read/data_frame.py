"""``shardwright.frame_table``: the frame table of a store as one pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    import os

    import pandas as pd


def frame_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Returns the frame table of a finished store: a row for each frame that was reported to the writer, in
    the order of sending. ``path`` may be a file .ozx, or an address, s3:// or http(s)://.

    The columns, in this order: with several images the name of the frame's ``image`` (a category), the index
    along each frame axis, ``frame_id``, ``sequence``, the times, exposure and stage position, the array's own
    ``frame_fields``, ``json`` (text, empty for none: ``table["json"].map(json.loads)``), ``client_epoch``,
    and ``status`` and ``reason`` by name (categories). ``fate`` is the older name of ``status``; the next
    release has it no longer. If the array has a frame field named ``status``, that column has its values, and
    ``fate`` alone has the statuses, also in the next release. ``array.frame_table_format`` has their units.

    Raises ``ShardFormatError`` for a store without a table, or a damaged one, and ``StorageError``. Needs
    ``shardwright[table]`` (``ConfigError`` where that is not installed).
    """
    with naming_missing_extra("shardwright.frame_table"):
        import pandas as pd

        from .column_words import column_words, word_codes
        from .frame_table import open_frame_table
        from .store import open_store
    table = open_frame_table(open_store(path))
    if table is None:
        raise ShardFormatError(
            f"{path} has no frame table",
            hint="It is written when the acquisition ends; `shardwright recover` ends one whose writer died",
        )
    table.column("sequence")  # by which the rows are sorted
    values = {
        name: np.concatenate(
            [np.zeros(0, column.dtype), *(column.read(chunk) for chunk in range(table.chunks))]
        )
        for name, column in table.columns.items()
    }
    for name, words in column_words(table).items():
        values[name] = pd.Categorical.from_codes(word_codes(table, name, words, values[name]), list(words))
    return pd.DataFrame(table.with_status(values)).sort_values("sequence", kind="stable", ignore_index=True)
