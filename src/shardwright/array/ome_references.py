"""The images that the OME-Zarr metadata of a group name. Standard library only, so that the web process may
use it too.

    plate                   wells, by path ──▶ the group of each well: its images
    bioformats2raw.layout   the group OME: series
    none of these           the group is an image itself
"""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping


def is_collection(ome: Mapping[str, Any]) -> bool:
    """Returns whether the group with these ``ome`` attributes has its images in groups of their own."""
    return "plate" in ome or "bioformats2raw.layout" in ome


def image_names(
    ome: Mapping[str, Any],
    ome_of: Callable[[str], Any],
    *,
    most: int | None = None,
    left_out: tuple[type[Exception], ...] = (),
) -> Iterator[tuple[str, ...]]:
    """Yields the folder of each image, as the names that lead there from the group; no name for a group that
    is an image itself.

    ``ome_of(path)``: the attributes of a group below; of a well when its first image is asked for. ``most``:
    of wells and series, None for all. A well of which one of the errors ``left_out`` is raised is left out.
    Raises ``KeyError`` or ``TypeError`` for metadata of another form, and what ``ome_of`` raises.
    """
    if "plate" in ome:
        for entry in islice(ome["plate"]["wells"], most):
            well = str(entry["path"])
            try:
                fields = [str(image["path"]) for image in ome_of(well)["well"]["images"]]
            except left_out:
                continue
            yield from ((well, field) for field in fields)
    elif "bioformats2raw.layout" in ome:
        yield from ((str(name),) for name in islice(ome_of("OME")["series"], most))
    else:
        yield ()
