"""The entry points for writing in one's own process: ``create`` and ``resume`` make a ``Writer`` of plain
arguments, ``save`` a whole store; ``release_memory``.

Their dependencies are imported when they are called: on a computer with the client alone the functions exist,
and raise an error that names the missing package.
"""

from __future__ import annotations

import inspect
import math
import warnings
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from shardwright.array.acquisition_spec import (
    AcquisitionSpec,
    image_count,
    in_chunks_as,
    in_ome_version,
    parse_acquisition,
    with_index_for,
)
from shardwright.array.atlas_block import check_profile
from shardwright.array.default_layout import are_colors, check_units, default_layout
from shardwright.array.frame_check import color_hint
from shardwright.array.ome import acquisition_warnings
from shardwright.disk.spare_memory import spare_memory
from shardwright.model.display_text import format_bytes
from shardwright.model.errors import (
    BudgetError,
    FrameShapeError,
    LayoutWarning,
    SpecError,
    StorageError,
    StorageFullError,
)
from shardwright.model.extras import naming_missing_extra
from shardwright.model.names import checked_new_store
from shardwright.model.progress_teller import check_on_progress
from shardwright.model.write_options import check_options, refusal_of
from shardwright.model.write_settings import WriteSettings, check_second_root

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterator

    import numpy.typing as npt

    from shardwright.acquire.limits import Limits
    from shardwright.array.acquisition_spec import Image
    from shardwright.array.plate import Plate
    from shardwright.array.spec import ArraySpec, Channel, Codec, Levels
    from shardwright.model.progress_teller import OnProgress
    from shardwright.model.receipt import Receipt
    from shardwright.model.write_options import (
        Durability,
        LiveMode,
        OmeVersion,
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
    ome_version: OmeVersion | None = None,
    settings: WriteSettings | None = None,
    on_progress: OnProgress | None = None,
    **older: Any,
) -> Writer:
    """Makes a store and a writer of it in this process.

    ======  ========================================================================
    what    path, spec, shape, dtype, axes, images, plate, order
    layout  chunks, shards, codec, levels
    names   scales, units, channels, attributes, frame_json_bytes, ome_version
    safety  overwrite, durability, on_full, settings
    speed   threads, memory_bytes, overload, live, on_progress
    ======  ========================================================================

    Parameters
    ----------
    path : str or path
        Of the store, such as ``"run.ome.zarr"``. It must not exist yet, except as an empty folder, whose mode
        the store takes, or as the remains of a creation that was killed. If no store can be made, the folder
        is still there.
    spec : ArraySpec, AcquisitionSpec or dict, optional
        What is stored, or the JSON of it, in place of ``shape``, ``dtype`` and all that describes the array.
    shape : sequence of int or None
        The lengths of the axes, the frame's rows and columns last. One of None ends with the newest frame; if
        it is not the first one, frames must name their index, which may then be ragged: stacks of another
        depth each time.
    dtype : dtype or str
        Of the pixels, such as ``"uint16"``.
    axes : str or sequence of str, optional
        A name for each length of ``shape``, the slowest first. Left out, by their number: ``"yx"``,
        ``"tyx"``, ``"tcyx"``, ``"tczyx"``. So a stack needs ``axes="zyx"``, and stacks ``axes="tzyx"``.
        ``"tyxc"``: frames of a colour camera, (rows, columns, 3 or 4), which are stored by channel.
    images : list of str, or dict of str and ArraySpec, optional
        The names of several images, all with that array, or each with its own.
    plate : Plate or dict, optional
        Makes an image for each field of its wells.
    order : sequence of str, optional
        The frame axes as frames come, of several images with "p" where these change: ``("t", "p", "z",
        "c")``. The axes themselves are then given as they are stored: ``axes="tczyx", order=("t", "z",
        "c")``. An index is in the order of acquisition.

    chunks, shards : dict of str and int, optional
        Elements of an inner chunk and of a shard file by axis, such as ``shards={"t": 64}``; what is not
        named is chosen (``default_layout``). ``shards=False``: each chunk is a file.
    codec : str, Blosc, Zstd or Gzip
        ``"blosc"`` (also ``"lz4"``) is the fastest, ``"zstd"`` and ``"gzip"`` make smaller files; "none":
        uncompressed.
    levels : int, Levels or dict, optional
        As many of lower resolution are written beside the image (``Levels`` says how they are made).

    scales : dict of str and float, optional
        The size of a pixel or the time of a step by axis.
    units : dict of str and str, optional
        Of the scales by axis: OME-Zarr's words, such as "micrometer" and "second", or "um", "s" and the like.
    channels : sequence of str, Channel or dict, optional
        Their names, or what else is known of each (``Channel``), such as a colour.
    attributes : dict, optional
        JSON for the zarr.json of the store's group; ``Writer.update_metadata`` adds to it later.
    frame_json_bytes : int
        Room for metadata of each frame that are no numbers (``ArraySpec``).
    ome_version : {"0.5", "0.6"}, optional
        Of the metadata of the store (``WriteSettings``).

    overwrite : bool
        Short for ``WriteSettings(name_taken="overwrite")``: the new store takes the name of an old one, which
        is removed as a whole once the first frame of the new one is durable; until then it is kept aside, and
        gets its name back if no frame comes. Only a finished store of ours is overwritten, on a filesystem
        that can exchange two names.
    durability : {"stored", "durable"}, optional
        When a frame counts as safe: it survives the death of this process, or a power cut as well.
    on_full : {"fail", "block", "spill"}, optional
        On a full disk the writer fails, waits for room, or goes on in ``settings.spill_root``.
    settings : WriteSettings, optional
        All else of how it is written. What is given beside it counts. With its ``name_taken="increment"`` the
        store may become ``NAME_2``, see ``Writer.path``.

    threads : int, optional
        That compress; by default the number of cores and two.
    memory_bytes : int, optional
        The most memory in use; by default that of this machine.
    overload : {"block", "degrade", "drop", "fail"}, optional
        When frames come faster than they are stored ``append`` waits, compresses less and then waits, drops
        the frame, or fails.
    live : {"none", "index", "append"}, optional
        Whether other programs see frames in the files before their shard is complete (``WriteSettings``).
        ``sw.open`` and ``sw.follow`` always do.
    on_progress : callable, optional
        Called with the number of frames stored and of all, None if nobody knows: at most twice a second. The
        last call comes once everything is sealed, before ``close`` returns, which waits 2 s for it at most.
        From a thread of its own, so that it delays no frame; if it fails, that is logged and it is not called
        again.

    Returns
    -------
    Writer
        Whose buffers stay in the process for the next one, see ``release_memory``. A store that is closed
        without a frame is removed, also where there was an empty folder.

    Raises
    ------
    SpecError
        For a specification or settings that cannot be, or do not go together.
    OutputExistsError, LockedError, InvalidNameError
        The name is taken; a job repacks the store that has it; it is no name of a store.
    BudgetError
        The layout needs more memory than there may be.
    StorageError
        The filesystem refuses, lacks what the settings need, or has no room (``StorageFullError``).
    ConfigError
        ``shardwright[daemon]`` is not installed.

    A layout that some readers cannot open, or read slowly, gives a ``LayoutWarning``. Options that were
    arguments of their own in release 0.2 work for one release, with a warning that shows the new spelling.

    Examples
    --------
    >>> with sw.create("run.ome.zarr", shape=(None, 2048, 2048), dtype="uint16") as writer:
    ...     for frame in camera:
    ...         writer.append(frame)
    """
    with naming_missing_extra("shardwright.create"):
        from shardwright.acquire.acquisition import Acquisition
        from shardwright.acquire.limits import Limits, default_threads, machine_memory_bytes
        from shardwright.disk.beneath import user_path
        from shardwright.disk.files import free_bytes
        from shardwright.disk.filesystems import nearest_folder
        from shardwright.read.frame_parquet import check_parquet
        from shardwright.recovery.leftovers import free_name

        from .empty_folder import in_place_of_empty_folder
        from .writer import Writer
    check_on_progress(on_progress)
    given = {
        "durability": durability,
        "overload": overload,
        "on_full": on_full,
        "live": live,
        "ome_version": ome_version,
    }
    write = _settings(create, _OLDER_OF_CREATE, settings, given, older, on_duplicate="fail")
    write = _settings_of_new(write, overwrite=overwrite)
    store_path = checked_new_store(user_path(path, is_new=True))
    if write.spill_root is not None:
        second_root = user_path(write.spill_root)
        check_second_root(second_root, store_path.parent, store_path.name)
        write = replace(write, spill_root=second_root)
    layout = {
        "shape": shape,
        "dtype": dtype,
        "axes": axes,
        "chunks": chunks,
        "shards": shards,
        "scales": scales,
        "units": units,
        "codec": _codec_if_chosen(codec),
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
    acquisition = _as_written(_acquisition(spec, _given(layout), _given(several)), write, ome_version)
    if write.frame_parquet:
        check_parquet()
    for warning in acquisition_warnings(acquisition, write.profile):
        warnings.warn(warning, LayoutWarning, stacklevel=_users_level())
    threads = threads or default_threads()
    memory_bytes = memory_bytes or machine_memory_bytes()
    limits = Limits.derive(acquisition, threads=threads, memory_bytes=memory_bytes)
    free_name(store_path)
    try:
        return in_place_of_empty_folder(
            store_path,
            lambda: Writer(
                lambda pool, wake: Acquisition(store_path, acquisition, limits, pool, wake, write),
                threads,
                on_progress,
                memory_bytes,
            ),
        )
    except StorageFullError as error:
        with suppress(StorageError, BudgetError, SpecError):
            free = free_bytes(nearest_folder(store_path))
            _explain_room(error, acquisition, limits, free, by_shape=shape is not None)
        raise


def _settings_of_new(write: WriteSettings, *, overwrite: bool) -> WriteSettings:
    """Returns the settings of a new store, ``overwrite`` among them. Raises ``SpecError``, ``TypeError`` for
    those that do not go together."""
    if (row := refusal_of({"overwrite": overwrite, "name_taken": write.name_taken})) is not None:
        raise TypeError(row.reason)
    check_options(on_full=write.on_full, spill_root=write.spill_root is not None)
    return replace(write, name_taken="overwrite") if overwrite else write


def _codec_if_chosen(codec: Codec | str | None) -> Codec | str | None:
    """Returns None for the default. Raises ``SpecError`` for None."""
    if codec is None:
        raise SpecError(
            "codec=None could mean two things",
            expected='codec="none" for chunks as they are, or codec="blosc", the default',
            got="None",
        )
    return None if codec == "blosc" else codec


def _as_written(
    acquisition: AcquisitionSpec, write: WriteSettings, ome_version: OmeVersion | None
) -> AcquisitionSpec:
    """Returns what is stored, as the settings say how. ``ome_version``: what ``create`` was given. Raises
    ``SpecError``."""
    if None not in (ome_version, acquisition.ome_version) and ome_version != acquisition.ome_version:
        raise SpecError(
            "create() got another ome_version than the specification has",
            expected=acquisition.ome_version,
            got=ome_version,
        )
    acquisition = in_ome_version(write.ome_version, acquisition)
    for array in acquisition.distinct_arrays:
        check_units(array)
    acquisition = in_chunks_as(write.partial_chunks, with_index_for(write.live, acquisition))
    check_profile(write.profile, acquisition)
    return acquisition


def _explain_room(
    error: StorageFullError, spec: AcquisitionSpec, limits: Limits, free: int, *, by_shape: bool
) -> None:
    """Adds to the error of a disk that is too small for the first shards how much they take, and shards that
    fit, where the caller gave a shape."""
    needed = spec.grids.open_shard_rows * limits.shard_row_bytes
    if free >= needed:
        return  # a quota, or other files: the error says which
    error.expected, error.got = f"{format_bytes(needed)} for the first shards", f"{format_bytes(free)} free"
    if not by_shape or len(spec.distinct_arrays) > 1:
        return
    several = {"images": [image.name for image in spec.images], "plate": spec.plate, "order": spec.order}
    (array,) = spec.distinct_arrays
    while needed > free:
        longest = max(array.dimensions[:-2], key=lambda d: d.shard_chunks, default=None)
        if longest is None or longest.shard_chunks == 1:
            return
        half = longest.model_copy(update={"shard_size_chunks": longest.shard_chunks // 2})
        dimensions = tuple(half if d is longest else d for d in array.dimensions)
        array = array.model_copy(update={"dimensions": dimensions})
        spec = parse_acquisition({"array": array, **several})
        limits = type(limits).derive(spec, threads=limits.threads)
        needed = spec.grids.open_shard_rows * limits.shard_row_bytes
    shards = {d.name: d.shard_size for d in array.dimensions[:-2]}
    error.hint = f"Free some space, or choose shards={shards}: {format_bytes(needed)} for the first ones"


_PIECE_BYTES = 8 << 20  # of an array that is saved, read at once
_MOST_PIECE_BYTES = 256 << 20  # likewise, where its chunks have more frames
# arguments of their own in release 0.2
_OLDER_OF_RESUME = frozenset({"store_within_ms", "sync_interval_ms"})
_OLDER_OF_CREATE = _OLDER_OF_RESUME | {"io", "spill_root"}


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
            stacklevel=_users_level(),
        )
    chosen = replace(settings or WriteSettings(), **_given(given), **older)
    return replace(chosen, on_duplicate=chosen.on_duplicate or on_duplicate)


def _users_level() -> int:
    """Returns the ``stacklevel`` of a warning of the caller that points at the line of the user."""
    level, frame = 1, inspect.currentframe()
    frame = None if frame is None else frame.f_back
    while frame is not None and frame.f_globals is globals():
        level, frame = level + 1, frame.f_back
    return level


def _given(arguments: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in arguments.items() if value is not None}


def _acquisition(
    spec: ArraySpec | AcquisitionSpec | dict[str, Any] | None, layout: dict[str, Any], several: dict[str, Any]
) -> AcquisitionSpec:
    """Returns what ``create`` was asked for: ``spec``, or the array that ``layout`` describes, for the images
    of ``several``. Raises ``SpecError``, or ``TypeError`` for arguments that do not belong together."""
    if spec is not None and layout:
        raise TypeError(f"create() got a spec, and also {', '.join(layout)}, which the spec says already")
    images = several.get("images", ())
    # each may bring its array
    own = isinstance(images, Mapping) or (
        isinstance(images, Sequence) and any(not isinstance(image, str) for image in images)
    )
    if spec is None and not {"shape", "dtype"} <= layout.keys() and (layout or not own):
        others = "".join(f", {name}=..." for name in several)
        raise SpecError(
            "create() is not told what to store",
            expected="shape and dtype, or a spec",
            got=", ".join([*layout, *several]) or "a path alone",
            hint=f'`sw.create("run.ome.zarr", shape=(None, 512, 512), dtype="uint16"{others})` takes as many '
            "as come",
        )
    if spec is None and layout:
        if order := several.get("order"):
            layout["order"] = order
        spec = default_layout(**layout, images=image_count(several))
        if order and spec.interleaved and "c" not in order:
            several["order"] = [*order, "c"]
    if several and isinstance(spec, dict) and spec.keys() & {"array", "images", "plate"}:
        spec = parse_acquisition(spec)
    if several and isinstance(spec, AcquisitionSpec):
        raise TypeError(f"create() got {', '.join(several)}, which the specification has already")
    if several:
        return parse_acquisition({"array": spec, **several})
    return parse_acquisition(spec)


def save(
    path: str | os.PathLike[str],
    frames: Any,
    *,
    axes: str | Sequence[str] | None = None,
    shape: Sequence[int | None] | None = None,
    **options: Any,
) -> Receipt:
    """Saves frames that are there as a store, in one call: creates it, appends each frame, and closes it.

    Parameters
    ----------
    path : str or path
        As of ``create``.
    frames : array, or iterable of arrays
        An array of two axes or more, the frames' rows and columns last, or ``axes`` that end with "yxc"; it
        may lie in a file (NumPy, zarr,
        h5py) or be computed (dask), and is read piece by piece. Or an iterable of frames (rows, columns),
        such as a list or a generator.
    axes : str or sequence of str, optional
        As of ``create``: without it ``"yx"``, ``"tyx"``, ``"tcyx"``, ``"tczyx"``. Needed where an array ends
        with an axis of 3 or 4, which may be colours.
    shape : sequence of int or None, optional
        Of an iterable; unless given, of as many frames as come: ``(None, rows, columns)``. An array has its
        own.
    **options
        All further ones of ``create`` but ``dtype`` and ``spec``, which the frames say; of an array neither
        ``order``, ``images`` nor ``plate``.

    Returns
    -------
    Receipt
        The account of the store. Every frame is durable.

    Raises
    ------
    FrameShapeError, FrameDtypeError
        For frames that are not alike. Those before stay in the store, which is sealed.
    SpecError, OutputExistsError, StorageError
        These and all others as ``create`` and ``Writer.append``.

    Examples
    --------
    >>> receipt = sw.save("stack.ome.zarr", np.zeros((20, 64, 64), "uint16"), axes="zyx")
    >>> receipt.frames_stored
    20
    """
    is_array = hasattr(frames, "shape") and hasattr(frames, "dtype")
    _check_of_save(_given({"shape": shape, **options}), is_array=is_array)
    options.pop("dtype", None)  # None
    if is_array:
        shape, dtype = frames.shape, frames.dtype
        if axes is None and 2 < len(shape) < 6 and shape[-1] in (3, 4):
            colors = f"{'tz'[: len(shape) - 3]}yxc"
            raise SpecError(
                "the last axis of this array may be its colours",
                expected="axes, since frames have their rows and columns last",
                got=f"the shape {tuple(shape)}",
                hint=f'If so, give axes="{colors}". If it has {shape[-1]} columns, give the axes that it '
                'has, such as axes="tyx"',
            )
        with create(path, shape=shape, dtype=dtype, axes=axes, **options) as writer:
            for piece in _pieces(frames, len(writer.spec.given_shape)):
                writer.append_many(_native(piece))
        return writer.receipt
    try:
        several = iter(frames)
    except TypeError:
        raise _no_frames(repr(frames)[:80]) from None
    first = _frame(next(several, None))
    if first.ndim != 2 and not (axes and first.ndim == 3 and are_colors(axes, first.shape)):
        got = "none" if first.dtype == object else f"the first one with the shape {first.shape}"
        raise _no_frames(got, color_hint(first.shape[:2], first.shape))
    count = None
    with suppress(TypeError):  # no length, or one that is not known
        count = len(frames)
    with create(
        path, shape=shape or (count, *first.shape), dtype=first.dtype, axes=axes, **options
    ) as writer:
        for frame in chain([first], several):
            writer.append(_native(_frame(frame)))
    return writer.receipt


def _check_of_save(options: dict[str, Any], *, is_array: bool) -> None:
    """Raises ``SpecError`` for options of ``create`` that follow from the frames."""
    if taken := [name for name in ("dtype", "spec", *(["shape"] if is_array else ())) if name in options]:
        raise SpecError(
            f"save() got {taken[0]}",
            expected="what the frames are, without it",
            hint="Change them first, such as by frames.astype(...) or frames.reshape(...); `create` takes it",
        )
    if taken := sorted(options.keys() & {"order", "images", "plate"}) if is_array else []:
        raise SpecError(
            f"save() of an array got {taken[0]}",
            expected="the axes alone, which are its order",
            hint="`create` and `append` write several images, or frames in another order",
        )


def _no_frames(got: str, hint: str | None = None) -> FrameShapeError:
    return FrameShapeError(
        "these are no frames to save",
        expected="an array, or an iterable of frames (rows, columns)",
        got=got,
        hint=hint,
    )


def _frame(value: Any) -> np.ndarray:
    """Raises ``FrameShapeError`` for lists whose rows are not of one length."""
    try:
        return np.asarray(value)
    except ValueError:
        raise _no_frames(f"one whose rows differ in length, a {type(value).__name__}") from None


def _native(pixels: np.ndarray) -> np.ndarray:
    return pixels.astype(pixels.dtype.newbyteorder("="), copy=False)


def _pieces(stack: Any, frame_axes: int = 2) -> Iterator[np.ndarray]:
    """Yields all frames of an array in their order, a count before the ``frame_axes`` of each, some
    ``_PIECE_BYTES`` at once, and whole chunks of it unless they have more than ``_MOST_PIECE_BYTES``: each
    chunk is then read once."""
    if len(stack.shape) == frame_axes:
        yield np.asarray(stack[...])[None]
        return
    *outer, count = stack.shape[:-frame_axes]
    frame_bytes = max(1, math.prod(stack.shape[-frame_axes:]) * np.dtype(stack.dtype).itemsize)
    step, most = max(1, _PIECE_BYTES // frame_bytes), max(1, _MOST_PIECE_BYTES // frame_bytes)
    depth = _chunk_frames(stack, frame_axes)
    step = min(most, depth * max(1, step // depth))
    for index in np.ndindex(*outer):
        for first in range(0, count, step):
            yield np.asarray(stack[(*index, slice(first, first + step))])


def _chunk_frames(stack: Any, frame_axes: int) -> int:
    """Returns the frames in a chunk of an array of zarr, h5py or dask, which has a tuple of chunks by axis; 1
    where it has no chunks."""
    try:
        size = stack.chunks[-frame_axes - 1]
        return max(1, int(size[0] if isinstance(size, tuple) else size))
    except (AttributeError, LookupError, TypeError, ValueError):
        return 1


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
    on_progress: OnProgress | None = None,
    **older: Any,
) -> Writer:
    """Resumes a store whose writer died, or goes on with a finished one. Its stored frames are kept; the next
    frame is number ``writer.frames``. Until a finished one ends again, other readers of its files find what
    they found before.

    Parameters
    ----------
    path
        Of the store.
    threads, memory_bytes
        As of ``create``.
    durability, overload, on_full
        As in ``settings``, in place of what it says.
    settings
        How it is written from now on. ``io``, ``partial_chunks``, ``live``, ``name_taken``, ``profile``,
        ``frame_parquet`` and ``spill_root`` were decided when the store was made, and stay.
    take_over
        Resume the store even while another process holds it, which can then seal nothing any more.
    on_progress
        As of ``create``; frames that were stored before count.

    Raises
    ------
    ResumeError
        There is none, or a finished one to which nothing can be added: the message says why.
    LockedError
        Another writer, or a job, holds it.
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
        from shardwright.recovery.resume import check_packages
        from shardwright.recovery.resume import resume as take_up

        from .writer import Writer
    check_on_progress(on_progress)
    given = {"durability": durability, "overload": overload, "on_full": on_full}
    write = _settings(resume, _OLDER_OF_RESUME, settings, given, older, on_duplicate="count")
    store_path = user_path(path)
    check_packages(store_path)
    threads = threads or default_threads()
    memory_bytes = memory_bytes or machine_memory_bytes()
    limits_of = partial(Limits.derive, threads=threads, memory_bytes=memory_bytes)
    return Writer(
        lambda pool, wake: take_up(
            store_path, pool, wake, write, limits_of, take_over=take_over, goes_on=True
        ),
        threads,
        on_progress,
        memory_bytes,
    )


def release_memory() -> None:
    """Gives the system the buffers that closed writers left for the next one: at most as much as was in use
    at once."""
    spare_memory.release()
