"""``shardwright verify``: decodes and checks every chunk of a store, or of all stores below a root; lists the
faults and exits with 1 if there are any."""

from __future__ import annotations

import json
from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING, Any

import typer

from shardwright.disk import beneath
from shardwright.disk.remote_path import RemotePath
from shardwright.model.display_text import format_bytes, one_line
from shardwright.model.errors import ShardwrightError
from shardwright.model.names import DOCUMENT, WORKSPACE

from .job_command import job_progress

if TYPE_CHECKING:
    from collections.abc import Iterator

    from shardwright.read.verify_store import VerifyReport


def command(
    path: str = typer.Argument(
        ...,
        help="A store, an array in it, one shard file, or an output root, for all stores in it. A store may "
        "be one file .ozx, or at an address: s3://BUCKET/KEY, http(s)://SERVER/PATH.",
        metavar="ROOT_OR_STORE",
    ),
    as_json: bool = typer.Option(False, "--json", help="Print the report as JSON."),
    threads: int | None = typer.Option(
        None, "--threads", min=1, metavar="COUNT", help="Decoding threads. One for each core unless given."
    ),
    accept: list[str] | None = typer.Option(
        None,
        "--accept",
        metavar="KEY",
        help="Put this shard on record as it is, if another program changed it and every chunk decodes; "
        "may be repeated. all: each such shard. One that is missing, or is what another key had, needs its "
        "own KEY.",
    ),
) -> None:
    """Decode and check every chunk of a store, or of each store in an output root. Lists the faults and exits
    with 1 if there are any, or if a store cannot be read. A store that is still being written is one of
    these.

    A shard that decodes and is not the recorded one was changed by another program. --accept records it, so
    that `verify`, `update` and `erase` take it as it is; never a damaged one."""
    from shardwright.read.verify_store import verify_store
    from shardwright.remote.source_path import source_path

    where = source_path(path)
    where = where if isinstance(where, RemotePath) else Path(path)
    stores, closed = _stores_in(where)
    if accept and stores:
        raise typer.BadParameter("give one store, not a folder of stores", param_hint="--accept")
    for folder in closed:
        typer.echo(f"shardwright: skipped {folder}: this user may not look into it", err=True)
    reports: list[dict[str, Any]] = []
    for store in stores or [where]:
        label = f"verify: {store.name}" if stores else "verify"
        try:
            with nullcontext() if as_json else job_progress(label, "checked") as on_progress:
                if accept:
                    from shardwright.rework.edit.accepted_shards import verify_and_accept

                    report = verify_and_accept(store, accept, threads=threads, progress=on_progress)
                else:
                    report = verify_store(store, threads=threads, progress=on_progress)
        except ShardwrightError as error:
            if not stores:
                raise
            reports.append({"path": str(store), "ok": False, "error": error.to_dict()})
            text = f"{store}: not verified: {one_line(error)}"
        else:
            reports.append(report.to_dict())
            text = "\n".join([*([f"{store}:"] if stores else []), *_lines(report)])
        if not as_json:
            typer.echo(text)
    bad = [one["path"] for one in reports if not one["ok"]]
    if as_json:
        facts = {"ok": not bad, "path": str(path), "stores": reports, "skipped": closed}
        typer.echo(json.dumps(facts if stores else reports[0]))
    elif stores:
        named = f"problems in {len(bad)}: {', '.join(bad)}" if bad else "nothing is wrong"
        typer.echo(f"{len(stores)} store{'s' if len(stores) > 1 else ''}: {named}")
    if bad:
        raise typer.Exit(1)


def _stores_in(root: Path) -> tuple[list[Path], list[str]]:
    """The stores in a folder that is none itself, finished or not, without links and what a creation has
    begun; and the folders there that this user may not look into, such as a disk's lost+found. Raises
    ``StorageError``."""
    from shardwright.disk.files import storage_errors
    from shardwright.remote.zip_path import is_archive
    from shardwright.store.new_store import is_making_folder

    if isinstance(root, RemotePath):
        return [], []
    root = beneath.user_path(root)
    # a store that has lost its zarr.json, whose images are no stores, is to be verified as what it is
    if not beneath.is_dir(root) or root.suffix == ".zarr" or _is_store(root):
        return [], []
    with storage_errors("look into", root):
        found = sorted(beneath.paths_in(root))
    folders = [path for path in found if beneath.is_dir(path)]
    # a hidden one is of no store: what macOS keeps beside each file on foreign disks is named ``._NAME``
    archives = [path for path in found if not path.name.startswith(".") and is_archive(path)]
    closed: list[str] = []
    stores = [each for each in folders if not is_making_folder(each) and _is_store(each, closed)]
    return ([], []) if any(map(_is_array, stores)) else (sorted(stores + archives), closed)


def _is_store(folder: Path, closed: list[str] | None = None) -> bool:
    """True for an array, too, and for a folder that cannot be looked into: its report says why. One that
    this user may not look into is added to ``closed`` instead, if given."""
    from shardwright.disk.typed_errors import says_closed
    from shardwright.foreign.older_nodes import is_older_node, locate

    try:
        named = any(beneath.exists(folder / name) for name in (DOCUMENT, WORKSPACE))
        return named or is_older_node(locate(folder))
    except ShardwrightError as error:
        if closed is None or not (isinstance(error, OSError) and says_closed(error)):
            return True
        closed.append(str(folder))
        return False


def _is_array(folder: Path) -> bool:
    from shardwright.read.store import read_metadata

    try:
        return read_metadata(folder, foreign=True).get("node_type") == "array"
    except ShardwrightError:
        return False


def _lines(report: VerifyReport) -> Iterator[str]:
    for where in report.accepted:
        yield f"{where}: another program had changed it; on record as it is now"
    for problem in report.problems:
        yield str(problem)
    if any(problem.is_change for problem in report.problems):
        yield (
            "shards that another program has changed are sound; `--accept KEY`, or `--accept all`, records "
            "them as they are"
            + ("" if report.checksums else " (without chunk checksums, a flipped bit may look like a change)")
        )
    if report.problems_not_kept:
        yield f"and {report.problems_not_kept} more"
    for warning in report.warnings:
        yield f"warning: {warning}"
    if report.warnings_not_kept:
        yield f"and {report.warnings_not_kept} warnings more"
    found = len(report.problems) + report.problems_not_kept
    yield (
        f"{report.shards} shards, {report.chunks} chunks: {format_bytes(report.encoded_bytes)} decoded to "
        f"{format_bytes(report.decoded_bytes)}; reading as fill value: {report.shards_absent} shards and "
        f"{report.chunks_absent} chunks; frame table: {report.frame_rows} rows; "
        + ("nothing is wrong" if report.ok else f"{found} problem{'s' if found > 1 else ''}")
    )
    if report.parity_rows:
        yield f"parity: {report.parity_rows} shard rows; `shardwright repair` restores what they have lost"
    if report.ok and report.shards_recorded < report.shards:
        yield (
            f"{report.shards - report.shards_recorded} shards are not on record: they were made by an "
            "earlier release or another program, and verify cannot find out whether they were swapped or "
            "replaced"
        )
    if report.ok and not report.checksums and report.shards_recorded < report.shards:
        yield (
            "the chunks carry no checksum (chunk_checksum: true adds one), so verify has shown that they "
            "decode, not that no bit was flipped"
        )
    if report.shards_absent_unrecorded:
        yield (
            "an absent shard is legal where every pixel is the fill value; verify cannot distinguish it from "
            "one that was deleted"
        )
