"""``shardwright serve``: runs the daemon."""

from __future__ import annotations

import faulthandler
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import Literal

import typer


def command(
    config: Path = typer.Argument(..., help="The YAML file.", metavar="CONFIG"),
    log_format: Literal["auto", "console", "json"] | None = typer.Option(
        None, help="In place of log.format in CONFIG."
    ),
) -> None:
    """Run the daemon until SIGTERM or SIGINT, after which it seals all open acquisitions; another one, a
    second later or more, ends it at once and leaves them to the next start.

    Without a terminal, SIGHUP reads CONFIG again and applies the sections that can change while cameras send:
    log, compaction, output.low_water. On a terminal SIGHUP ends the daemon, as the terminal is gone. A
    signal that is ignored at the start, as SIGHUP under nohup, stays ignored.

    Events go to standard output, one a line; `ready` names the endpoints. Exits with 0 after a signal, 3 if
    not all that was open could be sealed then (a full disk: the next start resumes it), 2 for a
    configuration that cannot work, 1 for any other error, also one that may be gone at the next start, such
    as a port in use or a missing disk.
    """
    from shardwright.disk.allocation_reserve import have_one_heap

    have_one_heap()  # before anything that starts threads is imported

    from shardwright.config.load import load_config

    loaded = load_config(config)

    from shardwright.daemon.assemble import Daemon
    from shardwright.daemon.events import EventLog
    from shardwright.daemon.lifecycle import Lifecycle
    from shardwright.daemon.service_manager import take_manager

    faulthandler.enable()  # a disk that dies under a mapped shard is a SIGBUS: say where, then die
    log = loaded.config.log
    events = EventLog(
        form=log_format or log.format,
        level=log.level,
        repeat_lines=log.repeat_lines,
        repeat_every_s=log.repeat_every_s,
    )
    manager = take_manager(on_failure=lambda why: events.emit("notify_failed", {"error": why}))
    daemon, life = Daemon(loaded, events, manager, log_format), Lifecycle(events)
    try:
        code = daemon.run(life)
    finally:
        life.end()
    raise typer.Exit(code)
