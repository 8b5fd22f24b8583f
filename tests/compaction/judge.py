"""What must hold of a folder in which a job was at work. Each function returns what is wrong, in plain
words."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from shardwright.model.errors import ShardwrightError
from shardwright.read.verify_store import verify_store

from .jobs import MOVED, STORE
from .stores import read_stores, shards_in, tree_of

if TYPE_CHECKING:
    from pathlib import Path

    from .stores import Ground, Identities


def judge_moment(ground: Ground, folder: Path) -> list[str]:
    """At whatever moment: a reader finds the image, and of every store and level that is there all values;
    verify finds nothing."""
    try:
        seen = read_stores(folder)
    except Exception as error:
        return [f"a store cannot be read: {error!r}"]
    problems = [] if STORE in seen or MOVED in seen else ["the image is nowhere"]
    for name, levels in seen.items():
        begin, end = ground.begin.get(name, {}), ground.end.get(name, {})
        if levels.keys() not in (begin.keys(), end.keys()):
            problems.append(f"{name} has levels {sorted(levels)}")
        for level, values in levels.items():
            expected = begin.get(level, end.get(level))
            if expected is None or not np.array_equal(values, expected):
                problems.append(f"{name}/{level} has other values")
            elif not is_same_in_hdf5(folder / name, level, values):
                problems.append(f"{name}/{level} has other values by HDF5")
        try:
            problems += [f"verify: {problem}" for problem in verify_store(folder / name, threads=1).problems]
        except ShardwrightError as error:
            problems.append(f"verify cannot read {name}: {error}")
    return problems


def is_same_in_hdf5(store: Path, level: str, values: np.ndarray) -> bool:
    """True also of a store that HDF5 does not read."""
    if not (store / "acquisition.h5").exists():
        return True
    import h5py
    import hdf5plugin  # noqa: F401  (the filters)

    with h5py.File(store / "acquisition.h5") as file:
        return bool(np.array_equal(file[level][...], values))


def judge_end(ground: Ground, folder: Path, finished: Identities) -> list[str]:
    """After the job was run again: all is done, what was ``finished`` before it was not done again, and
    nothing is left over."""
    problems = judge_moment(ground, folder)
    if not problems and {name: set(levels) for name, levels in read_stores(folder).items()} != {
        n: set(levels) for n, levels in ground.end.items()
    }:
        problems.append("the job is not done")
    tree = tree_of(folder)
    problems += [f"left over: {path}" for path in sorted(tree - ground.tree)]
    problems += [f"missing: {path}" for path in sorted(ground.tree - tree)]
    again = finished.keys() - shards_in(folder).keys()
    return problems + [f"done again: {finished[identity]}" for identity in sorted(again)]


def finished_shards(ground: Ground, folder: Path, old: Identities) -> Identities:
    """New shards that a job has made, of which each is to stay. ``old``: the files that were there before."""
    return {identity: where for identity, where in shards_in(folder).items() if identity not in old}
