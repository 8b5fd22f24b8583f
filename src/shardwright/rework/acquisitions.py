"""``shardwright.acquisitions``: the acquisitions in a folder as one pandas DataFrame."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.model.extras import naming_missing_extra

if TYPE_CHECKING:
    import os

    import pandas as pd


def acquisitions(root: str | os.PathLike[str]) -> pd.DataFrame:
    """Returns the acquisitions in a folder, as ``shardwright list`` shows them. A row for each has ``name``,
    ``state`` (finished, running, unfinished, moved away or unreadable), ``started`` (UTC, of its first
    frame), ``stored_bytes``, ``frames``, ``complete`` (every frame is in its place), the counts of a receipt
    that say why not, ``path``, ``elsewhere`` and ``problem``.

    Raises ``StorageError`` for a folder that cannot be read. Needs ``shardwright[table]`` (``ConfigError``
    where that is not installed)."""
    with naming_missing_extra("shardwright.acquisitions"):
        import pandas as pd

        from shardwright.disk import beneath

        from .catalog import FINISHED, listed_acquisitions
    rows = []
    for one in listed_acquisitions(beneath.user_path(root)):
        facts = one.to_dict()
        started_s, trouble = facts.pop("started_s"), facts.pop("trouble")
        started = pd.NaT if started_s is None else pd.Timestamp(started_s, unit="s", tz="UTC")
        complete = one.state == FINISHED and one.frames is not None and not trouble
        rows.append({**facts, "started": started, "complete": complete, **trouble})
    first = ["name", "state", "started", "stored_bytes", "frames", "complete"]
    last = ["path", "elsewhere", "problem"]
    counts = sorted({name for row in rows for name in row} - {*first, *last})
    table = pd.DataFrame(rows, columns=[*first, *counts, *last])
    table[counts] = table[counts].fillna(0).astype("int64")
    table["frames"] = table["frames"].astype("Int64")
    return table
