"""Tables at the widths that terminals have: nothing is cut that is to be read or copied, whatever the length
of names and the size of counts."""

from __future__ import annotations

import io
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import pytest
from rich.console import Console
from tests.cli.test_status_view import ACQUISITION, STREAM, snapshot

from shardwright.cli import camera, progress
from shardwright.cli.app import COMMANDS, main
from shardwright.cli.check import _print_report
from shardwright.cli.fitted_table import FittedTable, TableColumn, show
from shardwright.cli.progress import show_progress, show_steps
from shardwright.cli.status_view import acquisitions_view, status_view
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan
from shardwright.diagnose.check_report import CheckReport
from shardwright.diagnose.start import Finding
from shardwright.model.receipt import COUNTS, Receipt
from shardwright.simulate.camera_loop import CameraRun

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

WIDTHS = (80, 100)
COUNT = 123_456_789_012
NAMES = (
    "embryo-42",
    "2026-11-27-zebrafish-heart-regeneration-position-17-of-384-second-day-after-amputation",
)
LONG_PATH = "/mnt/lightsheet-array-2/experiments/" + NAMES[1] + "/raw-data-of-the-second-camera"


@pytest.fixture(params=WIDTHS)
def width(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> int:
    monkeypatch.setenv("COLUMNS", str(request.param))
    monkeypatch.delenv("LINES", raising=False)
    return int(request.param)


def many(facts: dict[str, Any]) -> dict[str, Any]:
    """The same facts with counts as of weeks of fast cameras."""
    return {
        name: COUNT if isinstance(value, int) and not isinstance(value, bool) else value
        for name, value in facts.items()
    }


def full_status(name: str) -> dict[str, Any]:
    acquisition = {**many(ACQUISITION), "name": name, "state": "disk_full", "degrade_level": "uncompressed"}
    return snapshot(
        state="disk_full",
        config=LONG_PATH + "/rig.yaml",
        endpoints=[f"ipc://{LONG_PATH}/in.sock", "tcp://10.1.2.3:5555"],
        acquisitions=[acquisition, {**acquisition, "stream": "another-camera-of-the-rig"}],
        streams={"another-camera-of-the-rig": {**many(STREAM), "frame_json_dropped": COUNT}},
    )


@pytest.mark.parametrize("name", NAMES)
def test_status_and_acquisitions(width: int, name: str, capsys: pytest.CaptureFixture[str]) -> None:
    status = full_status(name)
    show(status_view(status))
    told = capsys.readouterr().out
    for whole in (
        name,
        "disk full",
        f"{COUNT:,}",
        status["config"],
        *status["endpoints"],
        *status["streams"],
    ):
        assert whole in told
    assert "…" not in told
    show(acquisitions_view(status))
    told = capsys.readouterr().out
    assert told.count(name) == 2
    assert told.count(f"{COUNT:,}") >= 2 * 3, "received, stored and missing of each"
    assert "…" not in told
    assert all(len(line) <= max(width, len(name)) for line in told.splitlines())
    assert "no room for" in told


def test_a_wide_terminal_shows_every_column(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")
    show(acquisitions_view(full_status(NAMES[1])))
    header, *rows = capsys.readouterr().out.splitlines()
    assert " ".join(header.split()) == (
        "acquisition stream state received of stored durable missing rate data ring chunks for client"
    )
    assert len(rows) == 2


@pytest.mark.usefixtures("width")
def test_the_receipt_of_a_camera(capsys: pytest.CaptureFixture[str]) -> None:
    receipt = Receipt.from_dict({"path": LONG_PATH, **dict.fromkeys(COUNTS, COUNT)})
    camera._print_receipt(receipt, CameraRun(COUNT, 1.5, COUNT, 3), "shm")
    told = capsys.readouterr().out
    assert LONG_PATH in told
    assert told.count(f"{COUNT:,}") == len(COUNTS)
    assert "…" not in told


@pytest.mark.usefixtures("width")
def test_check(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / NAMES[1] / "rig.yaml"
    config.parent.mkdir()
    config.write_text(
        f"output: {{root: data, create: true, in_memory: true}}\ningest: {{endpoints: ['ipc://{tmp_path}/i']}}\n"
        "streams: [{name: " + NAMES[1] + ", frame_rate_hz: 1000000, array: {dtype: uint8, dimensions: ["
        "{name: t, chunk_size: 4}, {name: y, count: 64, chunk_size: 64}, {name: x, count: 64, "
        "chunk_size: 64}]}}]"
    )
    advice = f"It belongs to user 0; give it to this one: chown daemon {LONG_PATH}"
    finding = Finding("output root", "bad", f"output root {LONG_PATH} cannot be written", advice)
    _print_report(config, CheckReport((finding,), make_plan(load_config(config))), "start")
    told = capsys.readouterr().out
    for whole in (
        f" {LONG_PATH} ",
        f"chown daemon {LONG_PATH}",
        NAMES[1],
        str(config),
        "900,000,000 per hour",
    ):
        assert whole in " ".join(told.split())
    assert told.count(LONG_PATH) == 2, "a path is never broken"
    assert "…" not in told


@pytest.mark.parametrize("name", ["", *sorted(COMMANDS)])
def test_help(width: int, name: str, capsys: pytest.CaptureFixture[str], monkeypatch: Any) -> None:
    monkeypatch.setenv("TERMINAL_WIDTH", str(width))
    with pytest.raises(SystemExit):
        main([name, "--help"] if name else ["--help"])
    told = capsys.readouterr().out
    assert max(map(len, told.splitlines())) <= width
    assert "…" not in told


@pytest.mark.usefixtures("width")
def test_progress(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    with show_steps(f"compact: {NAMES[1]}[2]", "packed") as step:
        step(123_456, 234_567)
    with show_progress(f"recover: {NAMES[1]}[2]", "checked", COUNT) as add:
        add(COUNT // 2)
    told = capsys.readouterr().err
    for whole in ("123456/234567", "57.5/115.0 GiB", "[2]"):
        assert whole in told
    assert "…" not in told


def test_a_log_gets_no_total_before_it_is_known(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    lines: list[Callable[[], object]] = []

    @contextmanager
    def kept(_interval_s: float, line: Callable[[], object]) -> Iterator[None]:
        lines.append(line)
        yield

    monkeypatch.setattr(progress, "_every", kept)
    with show_steps("update", "shards") as step:
        lines[0]()
        step(0, 7)
        lines[0]()
    assert capsys.readouterr().err.splitlines() == ["update: shards 0/?", "update: shards 0/7"]


def test_columns_go_by_rank_and_come_back_in_their_order() -> None:
    table = FittedTable(
        TableColumn("a"), TableColumn("b", rank=2), TableColumn("c", rank=1), TableColumn("d", is_number=True)
    )
    table.add_row("name", "b" * 20, "c" * 10, "1,234")

    def drawn(width: int) -> list[str]:
        out = io.StringIO()
        Console(file=out, width=width).print(table, soft_wrap=True)
        return out.getvalue().splitlines()

    assert drawn(45) == [f"a     b{' ' * 19}  c{' ' * 9}      d", f"name  {'b' * 20}  {'c' * 10}  1,234"]
    assert drawn(44) == ["a     c               d", f"name  {'c' * 10}  1,234", "no room for b"]
    assert drawn(22) == ["a         d", "name  1,234", "no room for b, c"]
    assert drawn(10) == ["a", "      d", "name", "  1,234", "no room for b, c"]


def test_text_wraps_between_words_only() -> None:
    table = FittedTable(TableColumn(), TableColumn(wraps=True))
    table.add_row(
        "what", "output root /a-path/that-is/much-longer-than-what/is-left cannot be written\nand so on"
    )
    out = io.StringIO()
    Console(file=out, width=36).print(table, soft_wrap=True)
    assert out.getvalue().splitlines() == [
        "what  output root",
        "      /a-path/that-is/much-longer-than-what/is-left",
        "      cannot be written",
        "      and so on",
    ]
