"""``shardwright install``: installs systemd units, the service's user and folders, configurations, and
compiled kernels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from shardwright.daemon.installation import PlannedFile
    from shardwright.daemon.instance import Instance
    from shardwright.daemon.kernel_cache import CompiledKernels


def command(
    prefix: Path = typer.Option(
        Path("/usr/local"), "--prefix", metavar="DIR", help="Files go to DIR/lib/systemd/system and so on."
    ),
    program: Path | None = typer.Option(
        None,
        "--program",
        metavar="FILE",
        help="The shardwright command that units run. This one, unless given.",
    ),
    instance: str | None = typer.Option(
        None,
        "--instance",
        metavar="NAME",
        help="Also install one daemon: NAME.yaml, its folders, and drop-ins for folders elsewhere.",
    ),
    root: Path | None = typer.Option(
        None,
        "--root",
        metavar="DIR",
        help="Put everything below DIR, for a package or an image; paths in files stay.",
    ),
    dry_run: bool = typer.Option(False, "--dry-run", help="Only report what would be done."),
    as_json: bool = typer.Option(False, "--json", help="Print what was done, and the next steps, as JSON."),
) -> None:
    """Put systemd units, sysusers.d and tmpfiles.d files and an example configuration in place. Nothing is
    started or enabled.

    The configuration goes to /etc/shardwright for the prefixes /, /usr and /usr/local, else to
    DIR/etc/shardwright. An example that was changed is never overwritten: the new one is put beside it. Units
    are copied as they are packaged, at each installation; where the program or the configuration is
    elsewhere, a drop-in (installation.conf) says so. Put changes into drop-ins of your own.

    With --instance NAME there is also NAME.yaml, the example with a root and sockets of its own, for
    shardwright@NAME. Once it is there it is never touched: edit it, and run the same command again. Folders
    that it names are made for the daemon's user, and drop-ins let the services write to them.

    The kernels are compiled into /var/cache/shardwright, so that the first start of a daemon need not: not
    with --root, and not for another environment's --program. If that fails, the first start compiles them.
    """
    from shardwright.daemon.installation import install, plan_installation, this_program
    from shardwright.daemon.instance import make_folders, plan_instance
    from shardwright.daemon.kernel_cache import compile_for_units

    prefix, root = prefix.absolute(), root.absolute() if root else None
    own = program is None or program.absolute() == this_program()
    planned = plan_installation(prefix, this_program() if program is None else program.absolute(), root)
    made = None if instance is None else plan_instance(instance, prefix, root)
    files = planned if made is None else [*planned, *made.files]
    if not dry_run:
        install(files)
        make_folders(made.folders if made else [])
    kernels = None
    if not dry_run and root is None and own:
        typer.echo("compiling the kernels: this takes 5 to 30 seconds", err=True)
        kernels = compile_for_units()
    commands = [] if root is not None else _next(made, own_packages=program is None)
    if as_json:
        folders = [folder.to_dict() for folder in made.folders] if made else []
        facts = {"dry_run": dry_run, "files": [file.to_dict() for file in files], "folders": folders}
        facts["kernels"] = None if kernels is None else kernels.to_dict()
        typer.echo(json.dumps({**facts, "next": commands}))
    else:
        _print(files, made, kernels, commands, dry_run=dry_run)


def _next(made: Instance | None, *, own_packages: bool) -> list[str]:
    """The commands that remain to be run as root."""
    commands = ["systemd-sysusers && systemd-tmpfiles --create && systemctl daemon-reload"]
    if made is None:
        return [*commands, "shardwright install --instance rig1"]
    commands += made.by_hand()
    commands += [made.packages] if made.packages and own_packages else []
    return [*commands, f"systemctl enable --now shardwright@{made.name}"]


def _print(
    files: list[PlannedFile],
    made: Instance | None,
    kernels: CompiledKernels | None,
    commands: list[str],
    *,
    dry_run: bool,
) -> None:
    for file in files:
        kept = (
            f": you changed it; the new one {'would be' if dry_run else 'is'} {file.written}"
            if file.outcome == "kept"
            else ""
        )
        typer.echo(f"{file.outcome:>9}  {file.target}{kept}")
    for folder in made.folders if made else []:
        note = {
            "kept": f": it belongs to {folder.owner}; the daemon must be able to write there",
            "later": ": its user does not exist yet",
        }
        typer.echo(f"{folder.outcome:>9}  {folder.path}/{note.get(folder.outcome, '')}")
    if kernels is not None:
        done = f"not done: {kernels.why_not}; the first start does it" if kernels.why_not else "compiled"
        typer.echo(f"  kernels  {kernels.folder}/: {done}")
    if dry_run:
        typer.echo("nothing was written")
    elif commands:
        typer.echo("\n".join(["", "Next, as root:", *(f"  {command}" for command in commands)]))
