"""``shardwright inspect``: shows the shards, slots and gaps of a store or of one shard, as tables or JSON."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

from shardwright.model.errors import ShardFormatError

if TYPE_CHECKING:
    from rich.console import Console
    from rich.table import Table

    from shardwright.read.inspect_shards import ShardReport, Totals
    from shardwright.read.store import Store, StoredArray


def command(
    path: Path = typer.Argument(
        ..., help="A store, an array in it, or one shard file.", metavar="STORE_OR_SHARD"
    ),
    as_json: bool = typer.Option(False, "--json", help="Print everything as JSON."),
    chunks: bool = typer.Option(
        False, "--chunks", help="List every chunk: slot, bytes, gap, how it was encoded."
    ),
    missing: bool = typer.Option(
        False, "--missing", help="List the frames that are missing from the image instead, and why."
    ),
) -> None:
    """Show the shards, slots and gaps of a store or of one shard. Reads indexes and the first bytes of
    chunks; `verify` checks all of them."""
    from shardwright.read.store import open_store

    from .missing import print_missing

    store = open_store(path)
    if store.broken_references and not store.arrays:
        name, reason = next(iter(store.broken_references.items()))
        raise ShardFormatError(f"dataset {name!r} of {store.root} leads to no readable array: {reason}")
    if missing:
        print_missing(store, as_json)
    elif as_json:
        _print_json(store, chunks)
    else:
        _print_tables(store, chunks)


def _print_json(store: Store, chunks: bool) -> None:
    from shardwright.read.inspect_shards import Totals, describe_array, inspect_shards

    arrays = []
    for array in store.arrays:
        totals, shards = Totals(), []
        for shard in inspect_shards(store, array, chunks=chunks):
            totals.add(shard)
            shards.append(shard.to_dict())
        arrays.append({**describe_array(array), "totals": totals.to_dict(), "shards": shards})
    typer.echo(
        json.dumps(
            {
                "path": str(store.root),
                "work_in_progress": store.work_in_progress,
                "broken_references": store.broken_references,
                "arrays": arrays,
            }
        )
    )


def _print_tables(store: Store, chunks: bool) -> None:
    from rich.console import Console

    from shardwright.config.quantities import format_bytes
    from shardwright.read.inspect_shards import Totals, inspect_shards

    console = Console(highlight=False, markup=False)
    for array in store.arrays:
        _print_array(console, array)
        totals = Totals()
        table = _table("shard", "file", "on disk", "index", "chunks", "aligned", "gaps", "ratio")
        details = []
        for shard in inspect_shards(store, array, chunks=chunks):
            totals.add(shard)
            table.add_row(
                shard.key,
                format_bytes(shard.file_bytes),
                format_bytes(shard.allocated_bytes),
                "ok" if shard.index_checksum_ok else "BAD",
                f"{shard.chunks_present - shard.chunks_cropped}/{shard.chunks_in_shape}",
                f"{shard.chunks_page_aligned}/{shard.chunks_present}",
                format_bytes(shard.gap_bytes),
                f"{shard.ratio:.2f}",
            )
            if chunks or shard.problems:
                details.append(shard)
        console.print(table)
        for shard in details:
            _print_shard(console, shard, chunks)
        _print_totals(console, array, totals)
    for name, reason in store.broken_references.items():
        console.print(f"dataset {name!r} leads to no readable array: {reason}")
    if store.work_in_progress:
        console.print(
            "work in progress: an acquisition is still running, or ended without sealing its last shards"
        )


def _table(*columns: str) -> Table:
    """Numbers never wrap; only the last column does when the terminal is narrow."""
    from rich.table import Table

    table = Table(box=None, header_style="bold")
    for name in columns:
        table.add_column(name, no_wrap=name != columns[-1])
    return table


def _forms(forms: dict[str, int]) -> str:
    return ", ".join(f"{count} {form}" for form, count in forms.items()) or "-"


def _print_array(console: Console, array: StoredArray) -> None:
    from shardwright.config.quantities import format_bytes

    def times(sizes: tuple[int, ...]) -> str:
        return "x".join(map(str, sizes))

    axes = f" ({','.join(str(name) for name in array.dimension_names)})" if array.dimension_names else ""
    codecs = " -> ".join(
        str(codec["name"]) if isinstance(codec, dict) else str(codec) for codec in array.codec_metadata
    )
    console.print(str(array.path), style="bold", soft_wrap=True)
    console.print(f"shape  {times(array.shape)}{axes} {array.dtype.name}, fill value {array.fill_value}")
    console.print(
        f"shard  {times(array.shard_shape)}, {array.chunks_per_shard} inner chunks, index at the "
        f"{array.index_location}"
    )
    console.print(f"chunk  {times(array.chunk_shape)}, {format_bytes(array.chunk_bytes)}, {codecs}\n")


def _print_shard(console: Console, shard: ShardReport, chunks: bool) -> None:
    if chunks:
        table = _table("chunk", "grid", "offset", "bytes", "aligned", "gap after", "encoded as")
        table.title = shard.key
        for chunk in shard.chunk_reports:
            place = "/".join(map(str, chunk.coordinates))
            aligned = "yes" if chunk.page_aligned else "no"
            table.add_row(
                str(chunk.chunk),
                place,
                str(chunk.offset),
                str(chunk.nbytes),
                aligned,
                str(chunk.gap_bytes),
                chunk.form,
            )
        console.print()
        console.print(table)
    for problem in shard.problems:
        console.print(f"{shard.key}: {problem}", style="red", soft_wrap=True)


def _print_totals(console: Console, array: StoredArray, totals: Totals) -> None:
    from shardwright.config.quantities import format_bytes

    inside = totals.chunks_present - totals.chunks_cropped
    console.print(
        f"\nchunks encoded as: {_forms(totals.forms)}\n{totals.shards} of {array.shards_in_shape} shards, "
        f"{inside} of {totals.chunks_in_shape} chunks in them; {format_bytes(totals.decoded_bytes)} encoded "
        f"as {format_bytes(totals.encoded_bytes)} (ratio {totals.ratio:.2f}); "
        f"{format_bytes(totals.gap_bytes)} in gaps, {format_bytes(totals.allocated_bytes)} on disk"
        + (
            f"; {totals.chunks_cropped} chunks lie outside the shape: the array was cropped"
            if totals.chunks_cropped
            else ""
        )
        + (f"; problems: {totals.problems}" if totals.problems else ""),
        soft_wrap=True,
    )
