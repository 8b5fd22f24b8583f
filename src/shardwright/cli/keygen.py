"""``shardwright keygen``: makes a pair of keys for the daemon, or for one camera's computer."""

from __future__ import annotations

import json
from pathlib import Path

import typer


def command(
    name: str = typer.Argument(
        ...,
        metavar="NAME",
        help="Name of the owner, such as rig or camera-1. The daemon's events name a client by it.",
    ),
    folder: Path = typer.Option(Path(), "--to", help="Folder to write both files to.", metavar="FOLDER"),
    as_json: bool = typer.Option(False, "--json", help="Print the paths as JSON."),
) -> None:
    """Make NAME.key, which may be given to anyone, and NAME.key_secret, which stays on its computer, readable
    by its owner only.

    The daemon needs a pair, and so does each client. Put the client's NAME.key into the folder that
    ingest.curve.clients names, and give the client the daemon's NAME.key. Existing keys are never replaced.
    """
    from shardwright.client.curve import make_key_pair

    public, secret = make_key_pair(folder, name)
    if as_json:
        typer.echo(json.dumps({"public": str(public), "secret": str(secret)}))
        return
    typer.echo(f"{public}  public: give it to the other side")
    typer.echo(f"{secret}  secret: stays where it is used")
