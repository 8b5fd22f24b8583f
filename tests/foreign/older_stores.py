"""The fixtures of older spellings, each with the values that its own software reads (fixtures/README.md)."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import numpy as np

FIXTURES = Path(__file__).parent / "fixtures"
IMAGE = FIXTURES / "v2" / "image" / "plates" / "one"


@dataclass(frozen=True)
class OlderStore:
    """``path``: of the array, as a user gives it; ``folder``: where its chunks are. ``folder`` and ``meta``
    are relative to ``store``."""

    store: Path
    path: str
    folder: str
    meta: str
    values: Path
    spelling: str

    def read(self) -> np.ndarray:
        return np.load(self.values)


def _drafts() -> dict[str, OlderStore]:
    store, meta = FIXTURES / "transformer" / "many", "meta/root"
    found = {}
    for file in sorted((store / meta).rglob("*.array.json")):
        name = file.relative_to(store / meta).as_posix().removesuffix(".array.json")
        is_sharded = "storage_transformers" in file.read_text()
        found[f"transformer {name}"] = OlderStore(
            store,
            name,
            f"data/root/{name}",
            f"{meta}/{name}.array.json",
            FIXTURES / "transformer" / f"many.{name.replace('/', '.')}.npy",
            "the sharding storage transformer 1.0" if is_sharded else "a draft of Zarr v3",
        )
    return found


def _v2(store: Path, prefix: str, spelling: str) -> dict[str, OlderStore]:
    return {
        f"{store.parent.name} {path.name}": OlderStore(
            path, ".", ".", ".zarray", path.parent.parent / f"{prefix}{path.name}.npy", spelling
        )
        for path in sorted(store.iterdir())
        if path.is_dir()
    }


def _prototypes() -> dict[str, OlderStore]:
    folder = FIXTURES / "prototype"
    return {
        f"prototype {path.name}": OlderStore(
            path, ".", ".", ".zarray", folder / f"{path.name}.npy", "the first sharding prototype"
        )
        for path in sorted(folder.iterdir())
        if path.is_dir()
    }


V2 = _v2(FIXTURES / "v2" / "many", "many.", "Zarr v2")
PROTOTYPES = _prototypes()
TRANSFORMERS = _drafts()
ALL = {**V2, **PROTOTYPES, **TRANSFORMERS}
