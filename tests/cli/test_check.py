"""``shardwright check``: what it prints, as text and as JSON, and how it refuses."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import yaml

from shardwright.cli.app import main
from shardwright.cli.check import stream_rows
from shardwright.client.curve import make_key_pair
from shardwright.config.load import load_config
from shardwright.config.plan import make_plan

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


def result_of(answer: dict[str, object], check: str) -> list[tuple[str, str]]:
    return [(f["result"], f["found"]) for f in answer["findings"] if f["check"] == check]


def here(stem: str, folder: Path) -> str:
    """A shipped configuration with an output root, sockets and keys of this test."""
    config = yaml.safe_load(next(file for file in CONFIGS if file.stem == stem).read_text(encoding="utf-8"))
    config["output"] = {"root": str(folder / "data"), "create": True, "in_memory": True}
    config["ingest"]["endpoints"] = [
        f"ipc://{folder}/in.sock" if endpoint.startswith("ipc:") else "tcp://127.0.0.1:*"
        for endpoint in config["ingest"]["endpoints"]
    ]
    if "curve" in config["ingest"]:
        make_key_pair(folder, "rig")
        (folder / "clients").mkdir()
        config["ingest"]["curve"] = {
            "secret_key": str(folder / "rig.key_secret"),
            "clients": str(folder / "clients"),
        }
    path = folder / f"{stem}.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("stem", [file.stem for file in CONFIGS])
def test_shipped_configs_pass(stem: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = here(stem, folder)
    before = sorted(folder.rglob("*"))
    code, output, errors = run(capsys, path)
    assert (code, errors) == (0, "")
    for word in ("slot", "slab", "ring", "open shards", "shard file", "peak memory", "per hour"):
        assert word in output
    assert "the disk lasts" in output
    assert "nothing was measured: --measure finds out whether this machine keeps up" in output
    assert output.splitlines()[-1].startswith("will run here")
    assert sorted(folder.rglob("*")) == before, "nothing is left behind"


def test_an_array_without_shards_has_chunk_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = Path(here("demo", folder))
    config = yaml.safe_load(path.read_text())
    (stream,) = config["streams"]
    for dimension in stream["array"]["dimensions"]:
        dimension["shard_size_chunks"] = None
    path.write_text(yaml.safe_dump(config))
    assert run(capsys, str(path))[0] == 0
    (plan,) = make_plan(load_config(path)).streams
    rows = {label: (value, meaning) for label, value, meaning in stream_rows(plan)}
    assert rows["chunk file"][1].startswith("1 chunk; ")
    assert {"open chunks", "chunk files"} <= rows.keys()
    assert not any("shard" in label for label in rows)


def test_it_says_which_images_and_levels_there_are(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = here("plate", folder)
    plate, cameras = make_plan(load_config(Path(path))).streams
    rows = {label: (value, meaning) for label, value, meaning in stream_rows(plate)}
    assert rows["images"] == ("384", "plate screen: 8 x 12 wells, 4 fields in each; order p, z, c")
    assert rows["levels"] == ("2", "mean along y by 2, x by 2; smallest: c 3, z 4, y 360, x 360")
    assert rows["raw data"] == ("0.30 TB/hour", "before compression; 0.39 TB/hour with levels")
    rows = {label: (value, meaning) for label, value, meaning in stream_rows(cameras)}
    assert rows["images"][0] == "2"
    assert rows["images"][1].startswith("fluorescence, overview; 2 arrays, that with the largest frames")
    arrays = [(value, meaning) for label, value, meaning in stream_rows(cameras) if label == "array"]
    assert [meaning.partition("(")[2] for _, meaning in arrays] == ["fluorescence)", "overview)"]
    assert "levels" not in rows
    answer = json.loads(run(capsys, path, "--json")[1])
    frames = 20 * 1440 * 1440 * 2 * 1.3125 + 100 * 2048 * 2048 * 2
    assert f" at {frames / 1e6:,.0f} MB/s" in result_of(answer, "output.root: free space")[0][1]
    plan, keep_up = answer["plan"], answer["keep_up"]
    assert [stream["images"] for stream in plan["streams"]] == [384, 2]
    free = (
        plan["disk_free_bytes"]
        - plan["disk_reserved_bytes"]
        - load_config(Path(path)).config.output.low_water
    )
    assert keep_up["hours"] == pytest.approx(free / frames / 3600)


def test_json_carries_the_whole_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = run(capsys, here("lightsheet", folder), "--json", "--frame-rate", "50")
    answer = json.loads(output)
    assert (code, answer["ok"], answer.keys()) == (0, True, {"ok", "findings", "plan", "keep_up"})
    plan = answer["plan"]
    (stream,) = plan["streams"]
    rate = 50 * 2048 * 2048 * 2
    assert stream["data_rate_bytes_per_s"] == rate
    assert stream["limits"]["slab_bytes"] == 16 * 2048 * 2048 * 2
    assert plan["memory_peak_bytes"] <= plan["memory_budget_bytes"]
    (camera,) = answer["keep_up"]["streams"]
    assert (answer["keep_up"]["held"], answer["keep_up"]["measured"]) == ("unknown", None)
    assert (camera["needed_bytes_per_s"], camera["held"]) == (rate, "unknown")
    assert camera["hours"] == answer["keep_up"]["hours"] > 0
    for finding in answer["findings"]:
        assert finding.keys() == {"check", "result", "found", "advice"}


def test_a_configuration_that_will_not_run_here_still_has_its_numbers(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = Path(here("lightsheet", folder))
    path.write_text(path.read_text().replace("create: true", "create: false"))
    code, output, errors = run(capsys, str(path))
    assert (code, errors) == (1, "")
    assert f"output root {folder}/data does not exist" in output
    assert "output.create: true makes it at each start" in output
    assert "peak memory" in output
    assert output.splitlines()[-1].startswith("will not run here: output.root")
    assert not (folder / "data").exists()


def test_without_a_rate_the_table_says_how_to_give_one(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = folder / "rig.yaml"
    config.write_text(
        f"output: {{root: {folder}, in_memory: true}}\ningest: {{endpoints: ['ipc://./in.sock']}}\n"
        "streams: [{name: a, array: {dtype: uint8, dimensions: ["
        "{name: t, chunk_size: 4}, {name: y, count: 64, chunk_size: 64}, {name: x, count: 64, chunk_size: "
        "64}]}}]"
    )
    code, output, _ = run(capsys, str(config))
    assert code == 0
    assert "--frame-rate" in output
    assert "per hour" in run(capsys, str(config), "--frame-rate", "30")[1]


@pytest.mark.parametrize("group", ["no-such-group-here", "a\0b"])
def test_a_group_that_this_machine_does_not_have_is_named(
    folder: Path, capsys: pytest.CaptureFixture[str], group: str
) -> None:
    config = folder / "rig.yaml"
    config.write_text(
        f"output: {{root: data}}\ningest:\n  group: {json.dumps(group)}\n  endpoints: ['ipc://./in.sock']\n"
    )
    code, output, errors = run(capsys, str(config), "--json")
    assert (code, errors) == (1, "")
    found = f"{config}:3: ingest.group: is not a group of this machine; got {group!r}"
    assert ("bad", found) in result_of(json.loads(output), "plan")


def test_a_wrong_field_is_the_answer(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "rig.yaml"
    config.write_text(
        "output: {root: data}\nmemory: {budget: 1KiB}\ningest: {endpoints: ['ipc://./in.sock']}\n"
    )
    code, output, errors = run(capsys, str(config))
    assert (code, errors) == (1, "")
    assert f" {config}:2: memory.budget: " in output
    assert output.splitlines()[-1].startswith("will not run here: ")


def test_the_same_advice_is_given_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "rig.yaml").write_text("output: 7\nlog: 8\nworkers: 9\n")
    code, told, _ = run(capsys, str(folder / "rig.yaml"))
    assert (code, told.count("is not valid"), told.count("Correct that line of the file.")) == (1, 3, 1)


def test_a_wrong_field_as_json(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = folder / "rig.yaml"
    config.write_text("output: {}\n")
    code, output, _ = run(capsys, str(config), "--json")
    answer = json.loads(output)
    assert (code, answer["ok"], answer["plan"], answer["keep_up"]) == (1, False, None, None)
    ((result, found),) = result_of(answer, "configuration")
    assert (result, "rig.yaml:1: output.root: is missing" in found) == ("bad", True)


def test_a_missing_file_is_the_answer(capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = run(capsys, "nowhere.yaml")
    assert code == 1
    assert "nowhere.yaml: cannot read the configuration" in output


@pytest.mark.parametrize(
    "options", [["--frames", "f.npy"], ["--beside"], ["--measure", "--reload"], ["--no"]]
)
def test_a_wrong_command_line_is_code_2(options: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    code, output, _ = run(capsys, "nowhere.yaml", *options)
    assert (code, output) == (2, "")


@pytest.mark.parametrize("name", ["doctor", "plan"])
def test_it_is_the_only_such_command(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main([name, "rig.yaml"])
    assert end.value.code == 2
    assert f"No such command '{name}'" in capsys.readouterr().err


def test_it_says_what_is_compacted(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    timelapse, lightsheet = here("timelapse-5d", folder), here("lightsheet", folder)
    assert "compaction: off" in run(capsys, lightsheet)[1]
    line = next(line for line in run(capsys, timelapse)[1].splitlines() if line.startswith("compaction: "))
    for part in ("3600 s", "morton", "zstd:5", "190.7 MiB/s", "25%"):
        assert part in line
    assert json.loads(run(capsys, timelapse, "--json")[1])["plan"]["compaction"]["pause_above"] == 0.25
