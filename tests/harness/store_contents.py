"""The contents of a store, as zarr-python alone reads them: the judge of most tests. Nothing here knows how
shardwright writes."""

from __future__ import annotations

import shutil
from contextlib import suppress
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import zarr

if TYPE_CHECKING:
    from pathlib import Path


class Source(Protocol):
    """Frames that can be drawn again."""

    shape: tuple[int, int]

    def frame(self, number: int) -> np.ndarray[Any, Any]: ...


def stored(path: str | Path) -> np.ndarray[Any, Any]:
    """The pixels of the first image."""
    return np.asarray(zarr.open_group(path, mode="r")["0"])


def snapshot(store: Path, copy: Path) -> Path:
    """Copies a store that is being written, as a kill would leave it: when no file of it gets another name
    meanwhile."""

    def names() -> list[Path]:
        return sorted(store.rglob("*"))

    while True:
        before = names()
        with suppress(shutil.Error):
            shutil.copytree(store, copy)
            if names() == before:
                return copy
        shutil.rmtree(copy)


def frame_table(path: str | Path) -> dict[str, np.ndarray[Any, Any]]:
    """The columns of the frame table by name, each with one value a row."""
    return {name: column[:] for name, column in zarr.open_group(f"{path}/frames", mode="r").arrays()}


def listed_images(path: Path) -> list[str]:
    """The folders of the images that the metadata of a store of several images name."""
    ome = zarr.open_group(path, mode="r").attrs["ome"]
    if "plate" not in ome:
        return list(zarr.open_group(path / "OME", mode="r").attrs["ome"]["series"])
    wells = [well["path"] for well in ome["plate"]["wells"]]
    return [
        f"{well}/{image['path']}"
        for well in wells
        for image in zarr.open_group(path / well, mode="r").attrs["ome"]["well"]["images"]
    ]


def assert_holds(path: Path, source: Source, frames: int) -> None:
    """Each frame at its place, bit for bit, and no more of them."""
    pixels = stored(path)
    assert pixels.shape == (frames, *source.shape)
    for i in range(frames):
        np.testing.assert_array_equal(pixels[i], source.frame(i), err_msg=f"frame {i}")


def leftovers(store: Path) -> list[str]:
    """Files that a finished acquisition leaves nobody to look after."""
    work = [
        path
        for path in store.rglob("*")
        if path.suffix in (".partial", ".journal") or path.name in ("staging", "ballast", "frames.log")
    ]
    return sorted(str(path.relative_to(store)) for path in work)
