"""``shardwright check``: what it prints, as text and as JSON, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from shardwright.cli.app import main

CONFIGS = sorted(
    file
    for file in (Path(__file__).parents[2] / "configs").glob("*.yaml")
    if not file.stem.startswith("prometheus")
)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as end:
        main(["check", *arguments])
    output = capsys.readouterr()
    return int(end.value.code or 0), output.out, output.err


@pytest.mark.parametrize("file", CONFIGS, ids=lambda file: file.stem)
def test_shipped_configs_pass(file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, errors = run(capsys, str(file))
    assert (code, errors) == (0, "")
    for word in ("slot", "slab", "ring", "open shards", "shard file", "peak memory", "per hour"):
        assert word in output


def test_json_carries_the_whole_plan(capsys: pytest.CaptureFixture[str]) -> None:
    lightsheet = next(file for file in CONFIGS if file.stem == "lightsheet")
    code, output, _ = run(capsys, str(lightsheet), "--json", "--frame-rate", "50")
    plan = json.loads(output)
    assert (code, plan["ok"]) == (0, True)
    (stream,) = plan["streams"]
    assert stream["data_rate_bytes_per_s"] == 50 * 2048 * 2048 * 2
    assert stream["limits"]["slab_bytes"] == 16 * 2048 * 2048 * 2
    assert plan["memory_peak_bytes"] <= plan["memory_budget_bytes"]


def test_without_a_rate_the_table_says_how_to_give_one(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "rig.yaml"
    config.write_text(
        f"output: {{root: {tmp_path}}}\nstreams: [{{name: a, array: {{dtype: uint8, dimensions: ["
        "{name: t, chunk_size: 4}, {name: y, count: 64, chunk_size: 64}, {name: x, count: 64, chunk_size: "
        "64}]}}]"
    )
    code, output, _ = run(capsys, str(config))
    assert code == 0
    assert "--frame-rate" in output
    assert "per hour" in run(capsys, str(config), "--frame-rate", "30")[1]


@pytest.mark.parametrize("group", ["no-such-group-here", "a\0b"])
def test_a_group_that_this_machine_does_not_have_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    config = tmp_path / "rig.yaml"
    config.write_text(f"output: {{root: data}}\ningest:\n  group: {json.dumps(group)}\n")
    code, output, errors = run(capsys, str(config))
    assert (code, output) == (2, "")
    assert errors == f"shardwright: {config}:3: ingest.group: is no group of this machine; got {group!r}\n"


def test_a_wrong_field_is_one_line_and_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "rig.yaml"
    config.write_text("output: {root: data}\nmemory: {budget: 1KiB}\n")
    code, output, errors = run(capsys, str(config))
    assert (code, output) == (2, "")
    assert errors.startswith(f"shardwright: {config}:2: memory.budget: ")
    assert errors.count("\n") == 1


def test_a_wrong_field_as_json(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = tmp_path / "rig.yaml"
    config.write_text("output: {}\n")
    code, output, _ = run(capsys, str(config), "--json")
    answer = json.loads(output)
    assert (code, answer["ok"], answer["error"]["code"]) == (2, False, "config")
    assert "rig.yaml:1: output.root: is missing" in answer["error"]["message"]


def test_a_missing_file_is_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, errors = run(capsys, "nowhere.yaml")
    assert code == 2
    assert "nowhere.yaml: cannot read the configuration" in errors


def test_it_says_what_is_compacted(capsys: pytest.CaptureFixture[str]) -> None:
    timelapse, lightsheet = (
        str(next(file for file in CONFIGS if file.stem == stem)) for stem in ("timelapse-5d", "lightsheet")
    )
    assert "compaction: off" in run(capsys, lightsheet)[1]
    line = next(line for line in run(capsys, timelapse)[1].splitlines() if line.startswith("compaction: "))
    for part in ("3600 s", "morton", "zstd:5", "190.7 MiB/s", "25%"):
        assert part in line
    assert json.loads(run(capsys, timelapse, "--json")[1])["compaction"]["pause_above"] == 0.25
