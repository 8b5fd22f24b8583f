"""``shardwright refs``: writes references to the chunks of finished stores, or checks those that were
written; exits with 1 if any is stale."""

from __future__ import annotations

import json

import typer

from shardwright.model.errors import ConfigError

from .progress import show_steps


def command(
    stores: list[str] | None = typer.Argument(
        None, help="Finished stores, or images in them, also at an address.", metavar="STORE"
    ),
    to: str | None = typer.Option(
        None, "--to", metavar="TARGET", help="NAME.json, NAME.parquet (both kerchunk) or icechunk:PATH; new."
    ),
    url: list[str] = typer.Option(
        [], "--url", metavar="URL", help="Refer to a copy of each STORE: its address, as s3://BUCKET/KEY."
    ),
    concat: str | None = typer.Option(
        None, "--concat", metavar="AXIS", help="Join the images of several stores along an axis, such as t."
    ),
    check: str | None = typer.Option(
        None, "--check", metavar="TARGET", help="Say which files have changed since references were written."
    ),
    as_json: bool = typer.Option(False, "--json", help="Print what was done as JSON."),
) -> None:
    """Write references to the chunks of finished stores, which fsspec, VirtualiZarr and icechunk open as they
    lie: no byte is copied. icechunk refuses a file that has changed since; kerchunk does not notice. --check
    lists what is stale, and exits with 1 if anything is.
    """
    if (check is None) == (to is None) or bool(stores) == (check is not None):
        raise ConfigError("refs takes STORE and --to, or --check alone")
    if url and len(url) != len(stores or ()):
        raise ConfigError("--url is given once for each store", expected=len(stores or ()), got=len(url))
    from shardwright.rework.references.file_record import check_references
    from shardwright.rework.references.make_references import make_references, place_of

    with show_steps("refs", "looks at files") as on_progress:
        if check is not None:
            report = check_references(place_of(check), on_progress)
        else:
            report = make_references(url or stores or [], to or "", on_progress, axis=concat)
    if as_json:
        typer.echo(json.dumps(report))
    elif check is not None:
        for file, what in report["stale"].items():
            typer.echo(f"{file}: {what}")
        stale = len(report["stale"])
        told = f"{stale} of them stale: write the references again" if stale else "nothing is stale"
        typer.echo(f"{report['files']} files: {told}")
    else:
        for warning in report["warnings"]:
            typer.echo(f"warning: {warning}")
        typer.echo(f"{report['path']}: {report['chunks']} chunks of {report['shards']} files")
        if report["containers"]:
            typer.echo(f"  authorize_virtual_chunk_access: {', '.join(report['containers'])}")
    if not report["ok"]:
        raise typer.Exit(1)
