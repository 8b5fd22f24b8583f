"""``shardwright install``: units, the user and folders of the service, and an example configuration, put in place."""

from __future__ import annotations

from pathlib import Path

import typer


def command(
    prefix: Path = typer.Option(Path("/usr/local"), "--prefix", metavar="DIR", help="Files go to DIR/lib/systemd/system and so on."),
    program: Path | None = typer.Option(None, "--program", metavar="FILE", help="The shardwright command that units run. This one, unless given."),
    root: Path | None = typer.Option(None, "--root", metavar="DIR", help="Put everything below DIR, for a package or an image; paths in files stay."),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only say what would be done."),
) -> None:
    """Put systemd units, sysusers.d and tmpfiles.d files and an example configuration in place. Nothing is started or enabled.

    The configuration goes to /etc/shardwright for the prefixes /, /usr and /usr/local, else to DIR/etc/shardwright. One that was changed is never
    overwritten: the new one is put beside it. Units are written again at each installation; changes belong into drop-ins.
    """
    from shardwright.service.installation import config_folder, install, plan_installation, this_program

    prefix = prefix.absolute()
    planned = plan_installation(prefix, program.absolute() if program else this_program(), root.absolute() if root else None)
    if not dry_run:
        install(planned)
    for file in planned:
        kept = f": it was changed; the new one {'would be' if dry_run else 'is'} {file.written}" if file.outcome == "kept" else ""
        typer.echo(f"{file.outcome:>9}  {file.target}{kept}")
    if dry_run:
        typer.echo("nothing was written")
    elif root is None:
        config = config_folder(prefix)
        typer.echo(
            "\nNext, as root:\n"
            "  systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload\n"
            f"  cp {config}/example.yaml {config}/rig1.yaml     # and edit it\n"
            "  systemctl enable --now shardwright@rig1"
        )
