"""``shardwright.frame_table``: the frame table of a store as one pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardFormatError
from shardwright.model.extras import naming_missing_extra
from shardwright.model.frame_status import OLDER_STATUS, FrameStatus, Reason

if TYPE_CHECKING:
    import os

    import pandas as pd


def frame_table(path: str | os.PathLike[str]) -> pd.DataFrame:
    """Returns the frame table of a finished store: a row for each frame that was reported to the writer, in
    the order of sending. ``path`` may be an address, s3:// or http(s)://.

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
    enumerations = {**dict.fromkeys((table.status_column, OLDER_STATUS), FrameStatus), "reason": Reason}
    named = {
        name: {int(number): number.name.lower() for number in numbers}
        for name, numbers in enumerations.items()
        if name in values  # tables of old releases do not tell
    }
    if table.images:
        named["image"] = dict(enumerate(table.image_names))
    for name, names in named.items():
        known = [*names, -1] if name == "image" else list(names)
        if not np.isin(values[name], known).all():
            raise ShardFormatError(
                f"column {name} of the frame table has an unknown number", got=table.columns[name].path
            )
        codes = np.where(values[name] == -1, -1, np.searchsorted(list(names), values[name]))
        values[name] = pd.Categorical.from_codes(codes, list(names.values()))
    return pd.DataFrame(table.with_status(values)).sort_values("sequence", kind="stable", ignore_index=True)
