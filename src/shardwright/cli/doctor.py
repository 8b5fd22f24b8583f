"""``shardwright doctor``: whether this machine is fit for a configuration, and what to do where it is not."""

from __future__ import annotations

import json
from pathlib import Path  # noqa: TC003  (typer reads the annotation)
from typing import TYPE_CHECKING

import typer

if TYPE_CHECKING:
    from shardwright.diagnose.finding import Finding

_STYLES = {"ok": "green", "warn": "yellow", "bad": "bold red"}


def command(
    config: Path = typer.Argument(..., help="The YAML file.", metavar="CONFIG"),
    as_json: bool = typer.Option(False, "--json", help="Print the findings as JSON."),
) -> None:
    """Check this machine for a configuration: disks, memory, limits, kernel, clock, permissions, libraries;
    each finding with what to do.

    Run it as the daemon's user. Writes nothing but files of at most 60 MiB without a name in each output
    root, gone afterwards. Exits with 1 when something is bad, and 2 when the configuration cannot be read.
    """
    from shardwright.config.load import load_config
    from shardwright.diagnose.checks import examine
    from shardwright.diagnose.facts import gather

    findings = list(examine(gather(load_config(config))))
    bad = sum(finding.result == "bad" for finding in findings)
    if as_json:
        typer.echo(json.dumps({"ok": not bad, "findings": [finding.to_dict() for finding in findings]}))
    else:
        _print_findings(findings)
    if bad:
        raise typer.Exit(1)


def _print_findings(findings: list[Finding]) -> None:
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table("", "check", "found, and what to do", box=None, header_style="bold")
    for finding in findings:
        advice = Text(f"\n{finding.advice}", style="italic") if finding.advice else Text()
        table.add_row(
            Text(finding.result, style=_STYLES[finding.result]),
            finding.check,
            Text(finding.found).append(advice),
        )
    console = Console(highlight=False, markup=False)
    console.print(table)
    counts = {result: sum(finding.result == result for finding in findings) for result in _STYLES}
    console.print(f"{counts['ok']} ok, {counts['warn']} to be looked at, {counts['bad']} bad")
