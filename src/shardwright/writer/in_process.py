"""The entry points for writing in one's own process: ``create`` and ``resume`` make a ``Writer`` of plain
arguments; ``release_memory``.

Their dependencies are imported when they are called: on a computer with the client alone the functions exist,
and raise an error that names the missing package.
"""

from __future__ import annotations

import warnings
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from shardwright.array.acquisition_spec import (
    AcquisitionSpec,
    image_count,
    parse_acquisition,
    with_index_for,
)
from shardwright.array.default_layout import default_layout
from shardwright.array.ome import acquisition_warnings
from shardwright.model.errors import LayoutWarning
from shardwright.model.extras import naming_missing_extra
from shardwright.model.write_options import refusal_of
from shardwright.storage.spare_memory import spare_memory

if TYPE_CHECKING:
    import os
    from collections.abc import Mapping, Sequence

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import Image, Plate
    from shardwright.array.spec import ArraySpec, Channel, Codec, Levels
    from shardwright.model.write_options import (
        Durability,
        IoMode,
        LiveMode,
        NameTaken,
        OnDuplicate,
        OnFull,
        Overload,
        PartialChunks,
        WriteOrder,
    )

    from .writer import Writer


def create(
    path: str | os.PathLike[str],
    spec: ArraySpec | AcquisitionSpec | dict[str, Any] | None = None,
    *,
    images: Sequence[str | Image] | Mapping[str, ArraySpec] | None = None,
    plate: Plate | dict[str, Any] | None = None,
    order: Sequence[str] | None = None,
    threads: int | None = None,
    memory_bytes: int | None = None,
    io: IoMode = "auto",
    chunk_order: WriteOrder = "arrival",
    partial_chunks: PartialChunks = "collect",
    live: LiveMode = "none",
    durability: Durability = "stored",
    store_within_ms: int = 1000,
    sync_interval_ms: int = 1000,
    overload: Overload = "block",
    on_full: OnFull = "fail",
    on_duplicate: OnDuplicate = "fail",
    name_taken: NameTaken = "fail",
    overwrite: bool = False,
    spill_root: str | os.PathLike[str] | None = None,
    shape: Sequence[int | None] | None = None,
    dtype: npt.DTypeLike | None = None,
    axes: str | Sequence[str] | None = None,
    chunks: Mapping[str, int] | None = None,
    shards: Mapping[str, int] | Literal[False] | None = None,
    scales: Mapping[str, float] | None = None,
    units: Mapping[str, str] | None = None,
    codec: Codec | str = "blosc",
    levels: Levels | dict[str, Any] | int | None = None,
    channels: Sequence[str | Channel | dict[str, Any]] | None = None,
    frame_json_bytes: int = 0,
    attributes: Mapping[str, Any] | None = None,
) -> Writer:
    """Makes a writer in this process. ``path`` must not exist yet (``OutputExistsError``), except for the
    remains of a creation that was killed. With ``name_taken`` ``increment`` it becomes ``NAME_2``, see
    ``Writer.path``. With ``overwrite``, short for ``name_taken="overwrite"``, the new store takes the name of
    an old one, which is removed as a whole once the first frame of the new one is durable; until then it is
    kept aside, and gets its name back if no frame comes. Only a finished store of ours is overwritten
    (``OutputExistsError``; ``LockedError`` while a job repacks it), on a filesystem that can exchange two
    names. The writer's buffers stay in the process for the next one, see ``release_memory``. A store that is
    closed without a frame is removed.

    ``spec`` may be the JSON of one (``SpecError`` when it is wrong). Without it give ``shape``, ``dtype``,
    ``axes`` and whatever else the experiment fixes. An axis of None ends with the newest frame; if it is not
    the first one, frames must name their index, which may then be ragged: stacks of another depth each time.
    ``default_layout`` chooses chunks and shards (``shards=False``: each chunk is a file; ``codec="none"``:
    uncompressed). ``levels``: as many of
    lower resolution are written beside the image (``Levels`` says how they are made). ``channels``: their
    names, or what else is known of each (``Channel``). ``frame_json_bytes`` makes room for metadata of each
    frame that are no numbers (``ArraySpec``).

    Several images: ``images`` are their names, all with that array, or a mapping of names to arrays;
    ``plate`` makes one for each field of its wells. ``attributes``: JSON for the zarr.json of the store's
    group; ``Writer.update_metadata`` adds to it later.

    ``order`` names the frame axes as frames come, of several images with ``"p"`` where these change: ``("t",
    "p", "z", "c")``. The axes themselves are then given in the order in which they are stored:
    ``axes="tczyx", order=("t", "z", "c")`` (``AcquisitionSpec``). An ``index`` is in the order of
    acquisition.

    ``threads`` compress (default: ``default_threads``); ``memory_bytes`` bounds the memory in use
    (``BudgetError`` when the layout needs more; default: the memory of this machine). ``io`` is how shards
    are filled: ``pwrite``, ``direct``, ``mmap`` (if a working file is truncated, SIGBUS ends this process),
    or ``auto``, which never chooses ``mmap`` (see ``storage.choose_io``: the first use of a filesystem
    measures for a few tenths of a second). ``chunk_order`` is that of the chunks in each shard: as they come,
    or ``row_major``, ``morton`` (``fixed`` is the same), each at its own place (FORMAT.md, "Write
    strategies"). ``partial_chunks="in_place"``: each frame is put into its chunks as it comes, and its memory
    is free at once, so that chunks may be deeper than memory; without codec, checksum of chunks or levels,
    with ``io`` ``pwrite`` or ``mmap`` (``SpecError``).

    ``live="index"``: any Zarr reader on this machine sees each stored chunk within about a second, not only
    sealed shards; the index is then at the start of each shard, where zarrita does not look: it shows zeros,
    without an error. ``live="append"``: likewise with an index at
    the end, which every reader knows; encoded bytes are written twice. FORMAT.md, "Seen by any reader", says
    what is promised; ``resume`` keeps it. ``SpecError`` with an ``index_location`` elsewhere, with
    ``on_full="spill"``, and of ``append`` with ``io="mmap"`` or a ``chunk_order``; ``StorageError`` for
    ``index`` on a filesystem without hard links.

    ``on_duplicate``: a frame whose place is taken is an error of the call that finds it (``Writer.append``),
    or with ``count`` only a number in the receipt. The other arguments are those of
    ``acquire.settings.WriteSettings``. A layout that some readers cannot open or only
    read slowly gives a ``LayoutWarning``. Needs ``shardwright[daemon]`` (``ConfigError`` where that is not
    installed).
    """
    with naming_missing_extra("shardwright.create"):
        from shardwright.acquire.acquisition import Acquisition
        from shardwright.acquire.limits import Limits, default_threads, machine_memory_bytes
        from shardwright.acquire.settings import WriteSettings
        from shardwright.recovery.leftovers import free_name
        from shardwright.storage.beneath import user_path

        from .writer import Writer
    if (row := refusal_of({"overwrite": overwrite, "name_taken": name_taken})) is not None:
        raise TypeError(row.reason)
    place = user_path(path, is_new=True)
    settings = WriteSettings.checked(
        io=io,
        chunk_order=chunk_order,
        partial_chunks=partial_chunks,
        live=live,
        durability=durability,
        store_within_ms=store_within_ms,
        sync_interval_ms=sync_interval_ms,
        overload=overload,
        on_full=on_full,
        on_duplicate=on_duplicate,
        name_taken="overwrite" if overwrite else name_taken,
        spill_root=None if spill_root is None else user_path(spill_root),
    )
    layout = {
        "shape": shape,
        "dtype": dtype,
        "axes": axes,
        "chunks": chunks,
        "shards": shards,
        "scales": scales,
        "units": units,
        "codec": None if codec == "blosc" else codec,
        "levels": levels,
        "channels": None
        if channels is None
        else [{"name": channel} if isinstance(channel, str) else channel for channel in channels],
        "frame_json_bytes": frame_json_bytes or None,
    }
    several = {
        "images": images,
        "plate": plate,
        "order": list(order) if isinstance(order, str) else order,
        "attributes": attributes,
    }
    acquisition = _acquisition(spec, _given(layout), _given(several))
    acquisition = settings.spec_for(with_index_for(settings.live, acquisition))
    for warning in acquisition_warnings(acquisition):
        warnings.warn(warning, LayoutWarning, stacklevel=2)
    threads = threads or default_threads()
    limits = Limits.derive(acquisition, threads=threads, memory_bytes=memory_bytes or machine_memory_bytes())
    free_name(place)
    return Writer(
        lambda pool, wake: Acquisition(place, acquisition, limits, pool, wake, settings),
        threads,
    )


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _acquisition(
    spec: ArraySpec | AcquisitionSpec | dict[str, Any] | None, layout: dict[str, Any], several: dict[str, Any]
) -> AcquisitionSpec:
    """Returns what ``create`` was asked for: ``spec``, or the array that ``layout`` describes, for the images
    of ``several``. Raises ``SpecError``, or ``TypeError`` for arguments that do not belong together."""
    if spec is not None and layout:
        raise TypeError(f"create() got a spec, and also {', '.join(layout)}, which the spec says already")
    if spec is None and layout:
        if missing := [name for name in ("shape", "dtype", "axes") if name not in layout]:
            raise TypeError(f"create() needs a spec, or shape, dtype and axes; missing: {', '.join(missing)}")
        if order := several.get("order"):
            layout["order"] = order
        spec = default_layout(**layout, images=image_count(several))
    if several and isinstance(spec, dict) and spec.keys() & {"array", "images", "plate"}:
        spec = parse_acquisition(spec)
    if several and isinstance(spec, AcquisitionSpec):
        raise TypeError(f"create() got {', '.join(several)}, which the specification has already")
    if several:
        return parse_acquisition({"array": spec, **several})
    return parse_acquisition(spec)


def resume(
    path: str | os.PathLike[str],
    *,
    threads: int | None = None,
    memory_bytes: int | None = None,
    chunk_order: WriteOrder = "arrival",
    durability: Durability = "stored",
    store_within_ms: int = 1000,
    sync_interval_ms: int = 1000,
    overload: Overload = "block",
    on_full: OnFull = "fail",
    on_duplicate: OnDuplicate = "count",
    take_over: bool = False,
) -> Writer:
    """Resumes a store whose writer died. Its stored frames are kept; the next frame is number
    ``writer.frames``.

    ``chunk_order``: of new shards; those in progress go on in the order that they have, if it is this one,
    and otherwise as chunks come.

    ``on_duplicate`` defaults to ``count``, since a program that resumes may send stored frames again. The
    frame in the store is kept, and the first such duplicate is a warning in the log.

    ``take_over`` resumes the store even while another process holds it; that process can then seal nothing
    any more. Raises ``ResumeError`` for a store that is finished, ``LockedError`` while another writer holds
    it, ``ShardFormatError`` for damaged bookkeeping, ``BudgetError``, ``StorageError``. Needs
    ``shardwright[daemon]`` (``ConfigError`` where that is not installed).
    """
    with naming_missing_extra("shardwright.resume"):
        from shardwright.acquire.limits import Limits, default_threads, machine_memory_bytes
        from shardwright.acquire.settings import WriteSettings
        from shardwright.recovery.resume import resume as take_up
        from shardwright.storage.beneath import user_path

        from .writer import Writer
    place = user_path(path)
    settings = WriteSettings.checked(
        chunk_order=chunk_order,
        durability=durability,
        store_within_ms=store_within_ms,
        sync_interval_ms=sync_interval_ms,
        overload=overload,
        on_full=on_full,
        on_duplicate=on_duplicate,
    )
    threads = threads or default_threads()
    limits_of = partial(Limits.derive, threads=threads, memory_bytes=memory_bytes or machine_memory_bytes())
    return Writer(
        lambda pool, wake: take_up(place, pool, wake, settings, limits_of, take_over=take_over),
        threads,
    )


def release_memory() -> None:
    """Gives the system the buffers that closed writers left for the next one: at most as much as was in use
    at once."""
    spare_memory.release()
