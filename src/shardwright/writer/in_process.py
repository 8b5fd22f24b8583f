"""The entry points for writing in one's own process: ``create`` and ``resume`` make a ``Writer`` of plain
arguments; ``release_memory``.

Their dependencies are imported when they are called: on a computer with the client alone the functions exist,
and raise an error that names the missing package.
"""

from __future__ import annotations

import warnings
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

from shardwright.array.acquisition_spec import (
    AcquisitionSpec,
    image_count,
    in_chunks_as,
    parse_acquisition,
    with_index_for,
)
from shardwright.array.default_layout import default_layout
from shardwright.array.ome import acquisition_warnings
from shardwright.disk.spare_memory import spare_memory
from shardwright.model.errors import LayoutWarning
from shardwright.model.extras import naming_missing_extra
from shardwright.model.write_options import check_options, refusal_of
from shardwright.model.write_settings import WriteSettings

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Mapping, Sequence

    import numpy.typing as npt

    from shardwright.array.acquisition_spec import Image, Plate
    from shardwright.array.spec import ArraySpec, Channel, Codec, Levels
    from shardwright.model.write_options import (
        Durability,
        LiveMode,
        OnDuplicate,
        OnFull,
        Overload,
    )

    from .writer import Writer


def create(
    path: str | os.PathLike[str],
    spec: ArraySpec | AcquisitionSpec | dict[str, Any] | None = None,
    *,
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
    images: Sequence[str | Image] | Mapping[str, ArraySpec] | None = None,
    plate: Plate | dict[str, Any] | None = None,
    order: Sequence[str] | None = None,
    attributes: Mapping[str, Any] | None = None,
    threads: int | None = None,
    memory_bytes: int | None = None,
    durability: Durability | None = None,
    overload: Overload | None = None,
    on_full: OnFull | None = None,
    overwrite: bool = False,
    live: LiveMode | None = None,
    settings: WriteSettings | None = None,
    **older: Any,
) -> Writer:
    """Makes a store and a writer of it in this process.

    Parameters
    ----------
    path
        Of the store. It must not exist yet, except for the remains of a creation that was killed.
    spec
        What is stored, or the JSON of it. Without it give ``shape``, ``dtype`` and ``axes``, and whatever
        else the experiment fixes.

    shape, dtype, axes
        Of the array; the axes from the slowest to the fastest. A length of None ends with the newest frame;
        if it is not the first one, frames must name their index, which may then be ragged: stacks of another
        depth each time.
    chunks, shards
        By axis; what is not named is chosen (``default_layout``). ``shards=False``: each chunk is a file.
    scales, units
        By axis.
    codec
        Or its name; "none": uncompressed.
    levels
        As many of lower resolution are written beside the image (``Levels`` says how they are made).
    channels
        Their names, or what else is known of each (``Channel``).
    frame_json_bytes
        Room for metadata of each frame that are no numbers (``ArraySpec``).

    images, plate
        Several images: their names, all with that array, or a mapping of names to arrays; ``plate`` makes one
        for each field of its wells.
    order
        The frame axes as frames come, of several images with "p" where these change: ``("t", "p", "z",
        "c")``. The axes themselves are then given as they are stored: ``axes="tczyx", order=("t", "z",
        "c")``. An index is in the order of acquisition.
    attributes
        JSON for the zarr.json of the store's group; ``Writer.update_metadata`` adds to it later.

    threads
        That compress; ``default_threads`` unless given.
    memory_bytes
        The most memory in use; that of this machine unless given.
    durability, overload, on_full, live
        As in ``settings``, in place of what it says.
    overwrite
        Short for ``WriteSettings(name_taken="overwrite")``: the new store takes the name of an old one, which
        is removed as a whole once the first frame of the new one is durable; until then it is kept aside, and
        gets its name back if no frame comes. Only a finished store of ours is overwritten, on a filesystem
        that can exchange two names.
    settings
        All else of how it is written: ``WriteSettings``. With its ``name_taken="increment"`` the store may
        become ``NAME_2``, see ``Writer.path``.

    Returns
    -------
    Writer
        Whose buffers stay in the process for the next one, see ``release_memory``. A store that is closed
        without a frame is removed.

    Raises
    ------
    SpecError
        For a specification or settings that cannot be, or do not go together.
    OutputExistsError, LockedError
        The name is taken; a job repacks the store that has it.
    BudgetError
        The layout needs more memory than there may be.
    StorageError
        The filesystem refuses, or lacks what the settings need.
    ConfigError
        ``shardwright[daemon]`` is not installed.

    A layout that some readers cannot open, or read slowly, gives a ``LayoutWarning``. Options that were
    arguments of their own in release 0.2 work for one release, with a warning that shows the new spelling.

    Examples
    --------
    >>> with sw.create("run.ome.zarr", shape=(None, 2048, 2048), dtype="uint16", axes="tyx") as writer:
    ...     for frame in camera:
    ...         writer.append(frame)
    """
    with naming_missing_extra("shardwright.create"):
        from shardwright.acquire.acquisition import Acquisition
        from shardwright.acquire.limits import Limits, default_threads, machine_memory_bytes
        from shardwright.disk.beneath import user_path
        from shardwright.recovery.leftovers import free_name

        from .writer import Writer
    given = {"durability": durability, "overload": overload, "on_full": on_full, "live": live}
    write = _settings(create, _OLDER_OF_CREATE, settings, given, older, on_duplicate="fail")
    if (row := refusal_of({"overwrite": overwrite, "name_taken": write.name_taken})) is not None:
        raise TypeError(row.reason)
    check_options(on_full=write.on_full, spill_root=write.spill_root is not None)
    store_path = user_path(path, is_new=True)
    write = replace(
        write,
        name_taken="overwrite" if overwrite else write.name_taken,
        spill_root=None if write.spill_root is None else user_path(write.spill_root),
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
    acquisition = in_chunks_as(write.partial_chunks, with_index_for(write.live, acquisition))
    for warning in acquisition_warnings(acquisition):
        warnings.warn(warning, LayoutWarning, stacklevel=2)
    threads = threads or default_threads()
    limits = Limits.derive(acquisition, threads=threads, memory_bytes=memory_bytes or machine_memory_bytes())
    free_name(store_path)
    return Writer(
        lambda pool, wake: Acquisition(store_path, acquisition, limits, pool, wake, write),
        threads,
    )


# arguments of their own in release 0.2
_OLDER_OF_RESUME = frozenset({"chunk_order", "store_within_ms", "sync_interval_ms", "on_duplicate"})
_OLDER_OF_CREATE = _OLDER_OF_RESUME | {"io", "partial_chunks", "name_taken", "spill_root"}


def _settings(
    function: Callable[..., Any],
    known: frozenset[str],
    settings: WriteSettings | None,
    given: dict[str, Any],
    older: dict[str, Any],
    *,
    on_duplicate: OnDuplicate,
) -> WriteSettings:
    """Returns the settings with what is given beside them in place of their own. ``older``: spelled as in
    release 0.2, of which ``function`` knew those. ``on_duplicate``: what it does where nobody says. Raises
    ``SpecError``, ``TypeError``."""
    name = function.__name__
    if unknown := sorted(older.keys() - known):
        raise TypeError(f"{name}() got an unexpected keyword argument {unknown[0]!r}")
    if older:
        spelled = ", ".join(f"{option}={value!r}" for option, value in older.items())
        warnings.warn(
            f"write {name}(..., settings=sw.WriteSettings({spelled})): the next release takes "
            f"{', '.join(older)} there alone",
            DeprecationWarning,
            stacklevel=3,
        )
    chosen = replace(settings or WriteSettings(), **_given(given), **older)
    return replace(chosen, on_duplicate=chosen.on_duplicate or on_duplicate)


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
    durability: Durability | None = None,
    overload: Overload | None = None,
    on_full: OnFull | None = None,
    settings: WriteSettings | None = None,
    take_over: bool = False,
    **older: Any,
) -> Writer:
    """Resumes a store whose writer died. Its stored frames are kept; the next frame is number
    ``writer.frames``.

    Parameters
    ----------
    path
        Of the unfinished store.
    threads, memory_bytes
        As of ``create``.
    durability, overload, on_full
        As in ``settings``, in place of what it says.
    settings
        How it is written from now on. ``io``, ``partial_chunks``, ``live``, ``name_taken`` and ``spill_root``
        were decided when the store was made, and stay.
    take_over
        Resume the store even while another process holds it, which can then seal nothing any more.

    Raises
    ------
    ResumeError
        The store is finished.
    LockedError
        Another writer holds it.
    ShardFormatError
        Its bookkeeping is damaged.
    SpecError, BudgetError, StorageError, ConfigError
        As of ``create``.

    Examples
    --------
    >>> with sw.resume("run.ome.zarr") as writer:
    ...     for number in range(writer.frames, 10):
    ...         writer.append(frame(number))
    """
    with naming_missing_extra("shardwright.resume"):
        from shardwright.acquire.limits import Limits, default_threads, machine_memory_bytes
        from shardwright.disk.beneath import user_path
        from shardwright.recovery.resume import resume as take_up

        from .writer import Writer
    given = {"durability": durability, "overload": overload, "on_full": on_full}
    write = _settings(resume, _OLDER_OF_RESUME, settings, given, older, on_duplicate="count")
    store_path = user_path(path)
    threads = threads or default_threads()
    limits_of = partial(Limits.derive, threads=threads, memory_bytes=memory_bytes or machine_memory_bytes())
    return Writer(
        lambda pool, wake: take_up(store_path, pool, wake, write, limits_of, take_over=take_over),
        threads,
    )


def release_memory() -> None:
    """Gives the system the buffers that closed writers left for the next one: at most as much as was in use
    at once."""
    spare_memory.release()
