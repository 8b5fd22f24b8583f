"""``shardwright inspect``: shows the shards, slots and gaps of a store or of one shard, as tables or JSON;
with ``--missing`` the places of an image that no stored frame fills."""

from __future__ import annotations

import json
from collections import Counter
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer
from rich.text import Text

from shardwright.model.display_text import format_bytes
from shardwright.model.errors import ConfigError, ShardFormatError, StorageError
from shardwright.model.frame_status import OLDER_STATUS, STATUS

from .fitted_table import FittedTable, TableColumn, show

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.model.frame_status import FrameStatus
    from shardwright.read.frame_table import FinishedPart
    from shardwright.read.inspect_shards import ShardReport, Totals
    from shardwright.read.missing_frames import MissingFrames, MissingRange
    from shardwright.read.store import Store, StoredArray


def command(
    path: str = typer.Argument(
        ...,
        help="A store (its folder, or one file .ozx), an array in it, or one shard file; its path, or s3:// "
        "or http(s)://.",
        metavar="STORE_OR_SHARD",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    chunks: bool = typer.Option(
        False, "--chunks", help="List every chunk: slot, bytes, gap, how it was encoded."
    ),
    missing: bool = typer.Option(
        False, "--missing", help="List the frames that are missing from the image instead, and why."
    ),
    standalone: bool = typer.Option(
        False,
        "--standalone",
        help="Take a lone shard file, without any zarr.json: it describes itself (`compact --describe`).",
    ),
    to: Path | None = typer.Option(
        None, "--to", metavar="FILE.npy", help="With --standalone: decode it into a new file of NumPy."
    ),
) -> None:
    """Show the shards, slots and gaps of a store or of one shard. Reads indexes and the first bytes of
    chunks; `verify` checks all of them. With --standalone all chunks are read, and compared with what the
    file says of itself."""
    from shardwright.read.store import open_store

    if standalone:
        _print_alone(Path(path), to, as_json)
        return
    if to is not None:
        raise ConfigError("--to needs --standalone", hint="`shardwright rechunk` makes a new store of values")
    store = open_store(path)
    if store.broken_references and not store.arrays:
        name, reason = next(iter(store.broken_references.items()))
        raise ShardFormatError(f"dataset {name!r} of {store.root} leads to no readable array: {reason}")
    if missing:
        _print_missing(store, as_json)
    elif as_json:
        _print_json(store, chunks)
    else:
        _print_tables(store, chunks)


def _print_alone(path: Path, to: Path | None, as_json: bool) -> None:
    """Print the facts of a lone shard; exit code 1 if something is wrong with it."""
    from shardwright.read.standalone_shard import inspect_alone

    facts = inspect_alone(path, to)
    if as_json:
        typer.echo(json.dumps({"ok": not facts["problems"], **facts}))
    else:
        for name, value in facts.items():
            typer.echo(f"{name:16}{value if isinstance(value, str) else json.dumps(value)}")
    if facts["problems"]:
        raise typer.Exit(1)


def _arrays(store: Store) -> Iterator[tuple[Store, StoredArray]]:
    """Yields each array, with its image."""
    for image in store.images:
        for array in image.arrays:
            yield image, array


def _print_json(store: Store, chunks: bool) -> None:
    from shardwright.read.inspect_shards import Totals, describe_array, inspect_shards

    arrays = []
    for image, array in _arrays(store):
        totals, shards = Totals(), []
        for shard in inspect_shards(store, array, chunks=chunks):
            totals.add(shard)
            shards.append(shard.to_dict())
        facts = {"image": image.image_name, **describe_array(array)}
        arrays.append({**facts, "totals": totals.to_dict(), "shards": shards})
    typer.echo(
        json.dumps(
            {
                "path": str(store.root),
                "work_in_progress": store.work_in_progress,
                "broken_references": store.broken_references,
                "receipts": [part._asdict() for part in _receipts(store)],
                "arrays": arrays,
            }
        )
    )


def _print_tables(store: Store, chunks: bool) -> None:
    from shardwright.read.inspect_shards import Totals, inspect_shards

    for image, array in _arrays(store):
        _print_array(image, array)
        totals, details, table = Totals(), [], _shards_table(array)
        for shard in inspect_shards(store, array, chunks=chunks):
            totals.add(shard)
            table.add_row(*_shard_cells(array, shard))
            if chunks or shard.problems:
                details.append(shard)
        show(table)
        for shard in details:
            _print_shard(shard, chunks)
        _print_totals(array, totals)
    for name, reason in store.broken_references.items():
        show(f"dataset {name!r} leads to no readable array: {reason}")
    for number, part in enumerate(_receipts(store), 1):
        counts = ", ".join(
            f"{count} {name.removeprefix('frames_')}" for name, count in _frames_in(part).items()
        )
        failed = part.counts.get("encode_checks_failed")
        checks = f"; encode checks failed: {failed}" if failed else ""
        show(f"receipt {number}: frames {counts}; clients up to {part.client_epoch}{checks}")
    if store.work_in_progress:
        show("work in progress: an acquisition is still running, or ended without sealing its last shards")


def _receipts(store: Store) -> tuple[FinishedPart, ...]:
    """Returns the receipts of the parts of an acquisition; none where the frame table does not tell."""
    from shardwright.read.frame_table import open_frame_table

    with suppress(ShardFormatError, StorageError):  # which `verify` reports
        table = open_frame_table(store)
        return () if table is None else table.receipts
    return ()


def _frames_in(part: FinishedPart) -> dict[str, int]:
    names = ("frames_received", "frames_stored", "frames_missing", "frames_late", "frames_lost")
    return {name: part.counts[name] for name in names if part.counts.get(name)}


def _shards_table(array: StoredArray) -> FittedTable:
    return FittedTable(
        TableColumn("shard" if array.is_sharded else "chunk"),
        TableColumn("file", rank=2),
        TableColumn("on disk", rank=1),
        TableColumn("index"),
        TableColumn("chunks"),
        TableColumn("aligned", rank=5),
        TableColumn("gaps", rank=3),
        TableColumn("ratio", rank=4),
    )


def _shard_cells(array: StoredArray, shard: ShardReport) -> tuple[str, ...]:
    return (
        shard.key,
        format_bytes(shard.file_bytes),
        format_bytes(shard.allocated_bytes),
        _index_state(array, shard),
        f"{shard.chunks_present - shard.chunks_cropped}/{shard.chunks_in_shape}",
        f"{shard.chunks_page_aligned}/{shard.chunks_present}",
        format_bytes(shard.gap_bytes),
        f"{shard.ratio:.2f}",
    )


def _forms(forms: dict[str, int]) -> str:
    return ", ".join(f"{count} {form}" for form, count in forms.items()) or "-"


def _index_state(array: StoredArray, shard: ShardReport) -> str:
    if not array.is_sharded:
        return "none"
    return "ok" if shard.index_checksum_ok else "BAD"


def _named(image: Store) -> str:
    return "" if image.image_name is None else f", image {image.image_name}"


def _print_array(image: Store, array: StoredArray) -> None:
    from shardwright.read.inspect_shards import costs_of

    def times(sizes: tuple[int, ...]) -> str:
        return "x".join(map(str, sizes))

    axes = f" ({','.join(str(name) for name in array.dimension_names)})" if array.dimension_names else ""
    codecs = " -> ".join(array.chain.names)
    show(Text(f"{array.path}{_named(image)}", "bold"))
    if array.spelling is not None:
        show(f"{array.spelling}: it is read, not changed")
    show(
        f"shape  {times(array.shape)}{axes} {array.dtype.name}, fill value {str(array.fill_value)[:80]}",
        f"shard  {times(array.shard_shape)}, {array.chunks_per_shard} inner chunks, index at the "
        f"{array.index_location}{', an HDF5 file as well' if array.container else ''}"
        if array.is_sharded
        else "shard  none: each chunk is a file",
        f"chunk  {times(array.chunk_shape)}, {format_bytes(array.chunk_bytes)}, {codecs}",
        *(Text(f"slow to read: {cost.text}", "yellow") for cost in costs_of(array)),
        "",
    )


def _print_shard(shard: ShardReport, chunks: bool) -> None:
    if chunks:
        table = FittedTable(
            TableColumn("chunk"),
            TableColumn("grid"),
            TableColumn("offset"),
            TableColumn("bytes"),
            TableColumn("aligned", rank=2),
            TableColumn("gap after", rank=1),
            TableColumn("encoded as"),
        )
        for chunk in shard.chunk_reports:
            coordinates = "/".join(map(str, chunk.coordinates))
            aligned = "yes" if chunk.page_aligned else "no"
            table.add_row(
                str(chunk.chunk),
                coordinates,
                str(chunk.offset),
                str(chunk.nbytes),
                aligned,
                str(chunk.gap_bytes),
                chunk.form,
            )
        show("", Text(shard.key, "bold"), table)
    show(*(Text(f"{shard.key}: {problem}", "red") for problem in shard.problems))


def _print_totals(array: StoredArray, totals: Totals) -> None:
    inside = totals.chunks_present - totals.chunks_cropped
    files = (
        f"{totals.shards} of {array.shards_in_shape} shards, {inside} of {totals.chunks_in_shape} chunks in "
        f"them"
        if array.is_sharded
        else f"{inside} of {array.shards_in_shape} chunks"
    )
    show(
        f"\nchunks encoded as: {_forms(totals.forms)}\n{files}; {format_bytes(totals.decoded_bytes)} encoded "
        f"as {format_bytes(totals.encoded_bytes)} (ratio {totals.ratio:.2f}); "
        f"{format_bytes(totals.gap_bytes)} in gaps, {format_bytes(totals.allocated_bytes)} on disk"
        + (
            f"; {totals.chunks_cropped} chunks lie outside the shape: the array was cropped"
            if totals.chunks_cropped
            else ""
        )
        + (f"; {totals.described} shards describe themselves" if totals.described else "")
        + (f"; problems: {totals.problems}" if totals.problems else "")
    )


def _print_missing(store: Store, as_json: bool) -> None:
    """Print the missing frames range by range, so that a list of any length costs no memory. Raises
    ``ShardFormatError`` when the store has no frame table."""
    from shardwright.read.frame_table import open_frame_table
    from shardwright.read.missing_frames import MissingFrames

    if store.group is None or not store.arrays:
        raise ShardFormatError(
            f"{store.root} is not a store with a frame table",
            hint="Give the path of the whole store, the folder above the image",
        )
    table = open_frame_table(store)
    if table is None:
        hint = (
            "It is written when the acquisition ends; `shardwright recover` ends one that was interrupted"
            if store.work_in_progress
            else None
        )
        raise ShardFormatError(f"{store.root} has no frame table", hint=hint)
    images = [image for image in store.images if image.arrays]
    if as_json and store.collection is not None:
        typer.echo("[")
    for number, image in enumerate(images):
        array = image.arrays[0]
        part = table.of(store, array)
        facts = {}
        if store.collection is not None:
            facts = {"array": array.path.relative_to(store.root).as_posix(), "image": image.image_name}
        if as_json:
            typer.echo(",\n" if number else "", nl=False)
            _print_missing_json({"path": str(store.root), **facts}, MissingFrames(part, array))
            continue
        if facts:
            typer.echo(f"{facts['array']}{_named(image)}:")
        _print_missing_text(part.axes, MissingFrames(part, array))
    if as_json and store.collection is not None:
        typer.echo("]")


class _Tally:
    """Counts the frames of the ranges that it yields."""

    def __init__(self, missing: MissingFrames) -> None:
        self.inside = self.beyond = 0
        self.by_status: Counter[str] = Counter()
        self._missing = missing

    def ranges(self) -> Iterator[MissingRange]:
        for found in self._missing.ranges():
            inside = max(0, min(found.last + 1, self._missing.places) - found.first)
            self.inside += inside
            self.beyond += found.count - inside
            self.by_status[_why(found)] += found.count
            yield found


def _why(found: MissingRange) -> str:
    if found.status is None or found.reason is None:
        return "never came"
    return f"{found.status.name.lower()} ({found.reason.name.lower()})"


def _by_both_names(status: FrameStatus | None) -> dict[str, str | None]:
    return dict.fromkeys((STATUS, OLDER_STATUS), None if status is None else status.name.lower())


def _as_dict(found: MissingRange, missing: MissingFrames) -> dict[str, Any]:
    return {
        "first": found.first,
        "last": found.last,
        "first_index": missing.index_of(found.first),
        "last_index": missing.index_of(found.last),
        **_by_both_names(found.status),
        "reason": None if found.reason is None else found.reason.name.lower(),
    }


def _print_missing_json(facts: dict[str, Any], missing: MissingFrames) -> None:
    """Print one object, piece by piece: first ``facts`` of the store and of the image, then the ranges, then
    their sums."""
    tally = _Tally(missing)
    typer.echo(f'{json.dumps(facts)[:-1]}, "places": {missing.places}, "missing": [', nl=False)
    for i, found in enumerate(tally.ranges()):
        typer.echo((",\n" if i else "\n") + json.dumps(_as_dict(found, missing)), nl=False)
    unplaced = [
        {**_by_both_names(status), "reason": reason.name.lower(), "frames": n}
        for (status, reason), n in missing.unplaced.items()
    ]
    totals = {
        "frames_missing": tally.inside,
        "frames_missing_beyond": tally.beyond,
        "frames_without_place": unplaced,
    }
    typer.echo(f"],\n{json.dumps(totals)[1:]}")


def _print_missing_text(axes: list[str], missing: MissingFrames) -> None:
    tally = _Tally(missing)
    for found in tally.ranges():
        first, last = (
            " ".join(f"{axis}={i}" for axis, i in zip(axes, missing.index_of(p), strict=True))
            for p in (found.first, found.last)
        )
        where = (
            f"frame {found.first} ({first})"
            if found.count == 1
            else (f"frames {found.first} to {found.last} ({first} to {last})")
        )
        typer.echo(f"{where}: {_why(found)}")
    if tally.by_status:
        beyond = f", and {tally.beyond} behind its end" if tally.beyond else ""
        summary = ", ".join(f"{count} {why}" for why, count in tally.by_status.most_common())
        typer.echo(f"{tally.inside} of {missing.places} frames of the image are missing{beyond}: {summary}")
    else:
        typer.echo(f"no frame is missing: all {missing.places} places of the image are stored")
    for (status, reason), count in missing.unplaced.items():
        typer.echo(
            f"{count} frame{'s' if count > 1 else ''} without a place: {status.name.lower()} "
            f"({reason.name.lower()})"
        )
