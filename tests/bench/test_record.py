"""The record: its comparisons, the figures of invented rounds, its file, its chart and the READMEs' tables;
and a whole run on a tiny case."""

import json
import re
import subprocess
import sys
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path

import pytest

from benchmarks import __main__ as command
from benchmarks import chart, record, run, table
from benchmarks.cases import Case, flat, throughput
from benchmarks.cases.throughput import (
    COMPARISONS,
    DISK_FLOORS,
    KERNEL_FLOOR,
    PEERS,
    PLACES,
    RATIOS,
    SMALL,
    SMALL_CHUNK,
    Comparison,
    outcomes_of,
)
from benchmarks.contest import Entry, Result, compare
from benchmarks.peers import CONTENDERS
from benchmarks.record import PARTS, Machine, Record, RecordError
from benchmarks.run import outcomes_of_part

ROOT = Path(__file__).parents[2]
CASE = {comparison.name: comparison for comparison in COMPARISONS}
TINY = {"distinct": 4, "shape": (96, 64), "chunk": (2, 32, 64), "shard": (4, 96, 64)}
SMALL_CASE = Case(frames=4, **TINY)
GB = 64 * 2048 * 2048 * 2 / 1e9  # of the invented rounds


def invented(comparison, **seconds):
    """Rows of invented rounds: how many seconds each contender took for 64 frames, or that, its CPU seconds
    and its memory."""
    taking_part = [entry for entry in comparison.entries(64) if entry.label in seconds]
    rows = []
    for entry in taking_part:
        given = seconds[entry.label]
        rounds, cpu, memory = given if isinstance(given, tuple) else (given, [1.0] * len(given), 100)
        kind = "floor" if entry.label.startswith("floor") else "peer" if entry.label in PEERS else "ours"
        planned = 120 if kind == "ours" else None
        result = Result(entry.label, kind, entry.case.raw_bytes, planned, rounds, cpu, 1000, memory)
        rows.append(result.row())
    return rows


def outcome(found, name, against=None):
    (one,) = [one for one in found if one["name"] == name and against in (None, one["against"])]
    return one


def whole(outcomes=(), comparisons=None, parts=None, **further):
    """A record as it is kept, of invented numbers."""
    facts = {
        "cpu": "Test CPU",
        "cores": 2,
        "memory_bytes": 2**34,
        "kernel": "6.1",
        "filesystem": "ext4",
        "python": "3.11",
    }
    names = (
        {c.name: {"rounds": 1, "case": {"frames": 64}, "rows": []} for c in COMPARISONS}
        if comparisons is None
        else comparisons
    )
    return Record(
        date="2030-01-02T03:04:05+00:00",
        commit="0123456789abcdef",
        dirty=False,
        machine=Machine(**facts),
        software={"numpy": "2.0"},
        quick=further.get("quick", False),
        comparisons=names,
        parts={part: {"rows": []} for part in PARTS} if parts is None else parts,
        outcomes=list(outcomes),
        notes=["a note"],
    )


def test_every_figure_that_is_asked_has_a_comparison_that_proves_it():
    for asked in RATIOS:
        for place in PLACES:
            headline = CASE[f"{asked.case}/spots/{place}"]
            assert set(asked.ours) & set(headline.contenders), (
                f"{asked.name}: nobody of {asked.ours} in {headline.name}"
            )
            if place == "disk":
                assert set(asked.against) <= {*headline.contenders, "plan"}, (
                    f"{asked.name}: {headline.name} lacks some of {asked.against}"
                )


def test_the_table_asks_what_was_promised():
    """The limits themselves, so that none is lowered in passing."""
    asked = {(one.name, one.measure): one.limit for one in RATIOS}
    assert asked == {
        ("in process", "gb_per_s"): 4.0,
        ("in process, copy=False", "gb_per_s"): 5.0,
        ("in process, of its floor", "gb_per_s"): 0.9,
        ("copy=False, of its floor", "gb_per_s"): 0.9,
        ("daemon, shared memory", "gb_per_s"): 0.95,
        ("in process, claim", "gb_per_s"): 0.95,
        ("daemon, claim", "gb_per_s"): 0.95,
        ("daemon, pixels in messages", "gb_per_s"): 1.5,
        ("zstd-1", "gb_per_s"): 3.0,
        ("uncompressed", "gb_per_s"): 2.0,
        ("uncompressed, of its floor", "gb_per_s"): 0.85,
        ("inner chunks of 64 KiB", "gb_per_s"): 0.6,
        ("levels while writing", "gb_per_s"): 0.75,
        ("levels, CPU seconds per GB", "cpu_s_per_gb"): 1.25,
        ("CPU seconds per GB, in process", "cpu_s_per_gb"): 1.0,
        ("CPU seconds per GB, daemon and camera", "cpu_s_per_gb"): 1.0,
        ("CPU seconds, in process", "cpu_s_per_gb"): 0.35,
        ("CPU seconds, copy=False", "cpu_s_per_gb"): 0.3,
        ("peak memory, in process", "memory_bytes"): 1.0,
        ("peak memory, daemon", "memory_bytes"): 1.0,
        ("peak memory, daemon, pixels in messages", "memory_bytes"): 1.0,
    }
    asked = {(part, one.measure, one.limit, one.at_least) for part in PARTS for one in run.PARTS[part].ASKED}
    assert asked == {
        ("latency", "p99_9_of_copy", 1.2, False),
        ("latency", "worst_rollover_of_median", 2.0, False),
        ("small", "rate_of_asked", 0.99, True),
        ("small", "frames_lost", 0.0, False),
        ("cameras", "of_one_stream", 0.9, True),
        ("overload", "taken_of_due", 0.99, True),
        ("overload", "frames_lost", 0.0, False),
        ("fair", "stored_ms_most", 1000.0, False),
        ("fair", "taken_of_due", 1.0, True),
        ("flat", "time_of_young", 1.05, False),
        ("flat", "cpu_of_young", 1.05, False),
        ("flat", "memory_of_young", 1.05, False),
        ("prediction", "off_by", 0.15, False),
        ("reading", "of_fastest", 1.0, True),
        ("reading", "of_zarr_python", 0.9, True),
        ("seen", "seen_p50_ms", 50.0, False),
        ("seen", "writer_cpu", 1.05, False),
        ("shards", "of_fastest_peer", 1.5, True),
        ("plates", "of_floor", 0.9, True),
        ("plates", "of_fastest_peer", 1.0, True),
        ("plates", "append_beyond_ms", 50.0, False),
        ("opening", "opened_of_limit", 1.0, False),
        ("opening", "closed_of_limit", 1.0, False),
        ("kernel", "of_blosc2", 1.0, True),
        ("start", "cold_s", 6.0, False),
        ("start", "warm_s", 0.5, False),
    }
    assert tuple(run.PARTS) == PARTS


def test_both_scenes_and_both_places_are_compared_and_every_contender_exists():
    for case in {ratio.case for ratio in RATIOS}:
        assert {f"{case}/spots/{place}" for place in PLACES} <= set(CASE)
    assert {"lz4/camera/disk", "lz4/camera/no-disk", "zstd/camera/no-disk"} <= set(CASE)
    for comparison in COMPARISONS:
        for entry in comparison.entries():
            assert entry.contender in CONTENDERS.values()
            assert entry.case.frames == comparison.frames
    assert set(PEERS) <= set(CASE["lz4/spots/disk"].contenders)


def test_small_chunks_are_64_kib_in_the_same_shard_and_in_the_same_run():
    by_label = {entry.label: entry.case for entry in CASE["small-chunks/spots/disk"].entries()}
    small, large = by_label["shardwright" + SMALL], by_label["shardwright"]
    assert (small.chunk_bytes, large.chunk_bytes) == (64 << 10, 2 << 20)
    assert small.chunk == SMALL_CHUNK
    assert small.shard == large.shard
    assert small.pixels == large.pixels


def test_only_chooses_by_the_beginning_of_a_name():
    assert [c.name for c in throughput.chosen_comparisons(["zstd/spots"])] == [
        "zstd/spots/disk",
        "zstd/spots/no-disk",
    ]
    assert throughput.chosen_comparisons(["flat"]) == []
    names = throughput.names_to_choose(PARTS)
    assert all(throughput.chosen_comparisons([name]) or name in PARTS for name in names)
    assert {"lz4", "zstd/spots", "zstd/spots/disk", "flat"} <= set(names)
    assert len(throughput.chosen_comparisons(None)) == len(COMPARISONS)


def test_a_figure_is_the_median_of_ratios_within_rounds():
    rows = invented(CASE["lz4/spots/disk"], shardwright=[1.0, 2.0, 1.0], **{"acquire-zarr": [5.0, 20.0, 2.0]})
    one = outcome(outcomes_of(rows, CASE["lz4/spots/disk"]), "in process")
    assert (one["value"], one["least"], one["most"]) == pytest.approx((5.0, 2.0, 10.0), rel=1e-4)
    assert (one["limit"], one["at_least"], one["headline"]) == (4.0, True, True)
    assert rows[0]["gb_per_s"]["median"] == pytest.approx(GB, abs=1e-3)


def test_the_best_backend_is_one_for_all_rounds():
    rows = invented(
        CASE["lz4/spots/disk"],
        **{"shardwright": [1.0, 1.0, 1.0], "shardwright-mmap": [0.5, 2.0, 2.0], "acquire-zarr": [4.0] * 3},
    )
    one = outcome(outcomes_of(rows, CASE["lz4/spots/disk"]), "in process")
    assert one["ours"] == "shardwright"
    assert one["most"] == pytest.approx(4.0, rel=1e-4), "mmap's lucky round counts for nothing"


def test_the_lower_floor_is_the_lower_of_the_kernel_and_the_best_disk_floor():
    seconds = {
        "shardwright": [1.0] * 3,
        KERNEL_FLOOR: [0.5] * 3,
        "floor-direct": [0.9, 0.9, 0.9],
        "floor-mmap": [3.0] * 3,
    }
    one = outcome(
        outcomes_of(invented(CASE["lz4/spots/disk"], **seconds), CASE["lz4/spots/disk"]),
        "in process, of its floor",
    )
    assert one["against"] == "floor-direct"
    assert one["value"] == pytest.approx(0.9, rel=1e-4)
    # Where the disk is the faster one in a round, that round is held against the kernel.
    seconds["floor-direct"] = [0.9, 0.1, 0.1]
    one = outcome(
        outcomes_of(invented(CASE["lz4/spots/disk"], **seconds), CASE["lz4/spots/disk"]),
        "in process, of its floor",
    )
    assert one["against"] == KERNEL_FLOOR
    assert (one["value"], one["most"]) == pytest.approx((0.5, 0.9), rel=1e-4)


def test_cpu_is_held_against_each_peer_and_less_is_better():
    seconds = {
        "shardwright": ([1.0] * 3, [0.5] * 3, 100),
        "acquire-zarr": ([1.0] * 3, [1.0] * 3, 100),
        "zarrs": ([1.0] * 3, [0.4] * 3, 100),
    }
    found = outcomes_of(invented(CASE["lz4/spots/disk"], **seconds), CASE["lz4/spots/disk"])
    one, other = (
        outcome(found, "CPU seconds per GB, in process", name) for name in ("acquire-zarr", "zarrs")
    )
    assert (one["value"], other["value"]) == pytest.approx((0.5, 1.25), rel=1e-4)
    assert not one["at_least"]
    itself = outcome(found, "CPU seconds, in process")
    row = invented(CASE["lz4/spots/disk"], **seconds)[0]
    assert (itself["against"], itself["value"]) == ("", row["cpu_s_per_gb"]["median"])


def test_memory_is_held_against_the_plan_and_a_peer_and_not_where_files_are_memory():
    seconds = {"shardwright": ([1.0], [1.0], 130), "acquire-zarr": ([1.0], [1.0], 140)}
    found = outcomes_of(invented(CASE["lz4/spots/disk"], **seconds), CASE["lz4/spots/disk"])
    one, other = (outcome(found, "peak memory, in process", name) for name in ("plan", "acquire-zarr"))
    assert (one["value"], other["value"]) == pytest.approx((130 / 120, 130 / 140), rel=1e-4)
    in_memory = outcomes_of(invented(CASE["lz4/spots/no-disk"], **seconds), CASE["lz4/spots/no-disk"])
    assert not [one for one in in_memory if one["name"].startswith("peak memory")]


def test_a_contender_that_failed_gives_no_figure_and_stops_no_other():
    comparison = CASE["lz4/spots/disk"]
    rows = invented(comparison, shardwright=[1.0], zarrs=[2.0])
    rows.append({"name": "acquire-zarr", "kind": "peer", "error": "no such codec"})
    names = [one["name"] for one in outcomes_of(rows, comparison)]
    assert "in process" not in names
    assert "CPU seconds per GB, in process" in names
    assert "failed: no such codec" in table.table(rows, throughput.COLUMNS)


def test_a_part_gives_each_figure_of_each_row():
    rows = [
        {"name": "one", "headline": True, "rate_of_asked": 1.0, "frames_lost": 0},
        {"name": "two", "headline": False, "rate_of_asked": 0.98, "frames_lost": 1},
    ]
    found = outcomes_of_part("small", rows)
    shown = [(one["name"], one["measured_in"], one["value"], one["headline"]) for one in found]
    assert shown == [
        ("rate_of_asked", "small/one", 1.0, True),
        ("rate_of_asked", "small/two", 0.98, False),
        ("frames_lost", "small/one", 0, True),
        ("frames_lost", "small/two", 1, False),
    ]


def test_records_are_appended_and_loaded_again(tmp_path):
    path = tmp_path / "RECORD.jsonl"
    first, second = whole(), whole(quick=True)
    record.append(first, path)
    record.append(second, path)
    assert record.load(path) == [first, second]
    assert record.newest(path) == first, "a trial is no measurement"
    assert [json.loads(line)["quick"] for line in path.read_text().splitlines()] == [False, True]
    record.append(whole(comparisons={}), path)
    assert record.newest(path) == first, "nor is a part the whole"
    older = whole(parts={})  # from before the parts were added
    for name, each in (("older", older), ("part", whole(comparisons={}))):
        record.append(each, tmp_path / name)
    (tmp_path / "both").write_text((tmp_path / "older").read_text() + (tmp_path / "part").read_text())
    assert record.newest(tmp_path / "both") == older


def test_a_record_in_several_pieces(tmp_path, monkeypatch):
    """What is run again replaces what was there, the rest is taken over; in the table's order, and only
    within a commit."""

    def of(name, value):
        return {"name": value, "measured_in": name, "headline": True}

    earlier = whole(
        [of("zstd/spots/disk", 1), of("flat/in-process", 2)],
        {"zstd/spots/disk": {"rows": [1]}},
        {"flat": {"rows": [1]}},
    )
    later = whole(
        [of("lz4/spots/disk", 3), of("flat/in-process", 4)],
        {"lz4/spots/disk": {"rows": [2]}},
        {"flat": {"rows": [2]}},
    )
    both = record.joined(earlier, later)
    assert list(both.comparisons) == ["lz4/spots/disk", "zstd/spots/disk"]
    assert both.parts == later.parts
    assert [one["name"] for one in both.outcomes] == [3, 1, 4]

    to = tmp_path / "RECORD.jsonl"
    with pytest.raises(SystemExit, match="no record to continue"):
        command.last_to_continue(to, quick=False)
    record.append(earlier, to)
    monkeypatch.setattr(run, "commit", lambda: ("another", False))
    with pytest.raises(SystemExit, match="another commit"):
        command.last_to_continue(to, quick=False)
    monkeypatch.setattr(run, "commit", lambda: (earlier.commit, False))
    assert command.last_to_continue(to, quick=False) == earlier


def test_slow_peers_take_part_in_the_first_rounds(tmp_path):
    taking_part = [
        Entry("often", CONTENDERS["zarr-python"], SMALL_CASE),
        Entry("seldom", CONTENDERS["zarr-python"], SMALL_CASE, most_rounds=1),
    ]
    often, seldom = compare(taking_part, 2, tmp_path / "work")
    assert (len(often.seconds), len(seldom.seconds)) == (2, 1)


def test_a_line_that_is_no_record_is_named(tmp_path):
    path = tmp_path / "RECORD.jsonl"
    record.append(whole(), path)
    with path.open("a") as file:
        file.write(json.dumps({**json.loads(path.read_text()), "extra": 1}) + "\n")
    with pytest.raises(RecordError, match="line 2 is no record of version 1"):
        record.load(path)
    with pytest.raises(RecordError, match="tools/bench record"):
        record.load(tmp_path / "nothing.jsonl")
    (tmp_path / "empty.jsonl").touch()
    with pytest.raises(RecordError, match="is empty"):
        record.newest(tmp_path / "empty.jsonl")


def test_the_top_level_is_fixed():
    names = [
        "version",
        "date",
        "commit",
        "dirty",
        "machine",
        "software",
        "quick",
        "comparisons",
        "parts",
        "outcomes",
        "notes",
    ]
    assert list(json.loads(whole().model_dump_json())) == names
    assert all(f"    {name}" in record.__doc__ or name in record.__doc__ for name in names)


def drawn(made):
    return ET.fromstring(chart.draw(made))


def test_the_chart_draws_who_ran_fastest_first_and_floors_last():
    comparison = CASE["lz4/spots/disk"]
    rows = invented(
        comparison,
        **{
            "shardwright": [1.0, 2.0],
            "acquire-zarr": [0.5, 0.6],
            "zarrs": [4.0, 5.0],
            KERNEL_FLOOR: [0.1, 0.1],
        },
    )
    rows.append({"name": "zarr-python", "kind": "peer", "error": "broken"})
    made = whole(comparisons={comparison.name: {"rounds": 2, "case": {"frames": 64}, "rows": rows}})
    svg = drawn(made)
    space = "{http://www.w3.org/2000/svg}"
    names = [element.text for element in svg.iter(f"{space}text") if element.get("text-anchor") == "end"]
    assert names == ["acquire-zarr", "shardwright", "zarrs", KERNEL_FLOOR]
    widths = [float(element.get("width")) for element in svg.iter(f"{space}rect")][3:]  # after the legend's
    medians = [next(row for row in rows if row["name"] == name)["gb_per_s"]["median"] for name in names]
    assert [width / widths[0] for width in widths] == pytest.approx(
        [median / medians[0] for median in medians], rel=0.01
    )
    assert len(list(svg.iter(f"{space}line"))) == len(names), "a whisker each"
    assert "prefers-color-scheme: dark" in chart.draw(made)
    assert "Test CPU" in svg.find(f"{space}title").text


def test_a_record_without_comparisons_has_no_chart(tmp_path):
    with pytest.raises(RecordError, match="no comparison to draw"):
        chart.draw(whole())


def test_a_whisker_reaches_from_the_least_to_the_most():
    rows = invented(CASE["zstd/spots/disk"], shardwright=[1.0, 2.0, 4.0])
    svg = drawn(whole(comparisons={"zstd/spots/disk": {"rounds": 3, "case": {"frames": 64}, "rows": rows}}))
    (line,) = svg.iter("{http://www.w3.org/2000/svg}line")
    _, _, _, bar = svg.iter("{http://www.w3.org/2000/svg}rect")
    left, right = float(line.get("x1")) - float(bar.get("x")), float(line.get("x2")) - float(bar.get("x"))
    assert right / left == pytest.approx(4, rel=0.01)
    assert float(bar.get("width")) / left == pytest.approx(2, rel=0.01)


def some_outcomes():
    found = []
    for place, slow in (("disk", 3.0), ("no-disk", 9.0)):
        comparison = CASE[f"lz4/spots/{place}"]
        found += outcomes_of(
            invented(comparison, **{"shardwright": [1.0], "acquire-zarr": [slow]}), comparison
        )
    return found


def test_the_digest_shows_what_is_asked_with_the_disk_and_without():
    text = table.digest(whole(some_outcomes()))
    (row,) = [line for line in text.splitlines() if line.startswith("| in process |")]
    cells = ["in process", "at least 4x acquire-zarr", "3.00", "9.00", "**not reached** / acquire-zarr"]
    assert [cell.strip() for cell in row.split("|")[1:6]] == cells
    assert "Test CPU, 2 cores, 16 GiB, ext4, Linux 6.1; 2030-01-02, commit 012345678" in text


def test_the_digest_has_one_row_for_a_figure_and_it_is_the_worst():
    comparison = CASE["lz4/spots/disk"]
    rows = invented(
        comparison,
        **{
            "shardwright": ([1.0], [0.5], 100),
            "acquire-zarr": ([1.0], [1.0], 90),
            "zarrs": ([1.0], [0.6], 300),
        },
    )
    ways = (("in-process", "disk", 0.5), ("daemon-shm", "disk", 1.5), ("in-process", "no-disk", 0.25))
    parts = [
        {
            "name": f"{way} {place}",
            "headline": place == "disk",
            "p99_9_of_copy": value,
            "worst_rollover_of_median": 1.0,
        }
        for way, place, value in ways
    ]
    outcomes = [*outcomes_of(rows, comparison), *outcomes_of_part("latency", parts)]
    shown = [
        [cell.strip() for cell in line.split("|")[1:6]]
        for line in table.digest(whole(outcomes)).splitlines()[4:]
        if "shard's change" not in line
    ]
    by_name = {cells[0]: cells[2:] for cells in shown}
    assert len(by_name) == len(shown)
    assert by_name["CPU seconds per GB, in process"] == ["0.83", "", "reached / zarrs"]
    assert by_name["peak memory, in process"] == ["1.11", "", "**not reached** / acquire-zarr"]
    assert by_name["latency, in-process"] == ["0.50", "0.25", "reached"]
    assert by_name["latency, daemon-shm"] == ["1.50", "", "**not reached**"]


def test_other_work_on_the_machine_is_said():
    quiet, busy = (
        {"lz4/spots/disk": {"rows": [], "rounds": 1, "case": {"frames": 64}, "cores_busy_before": cores}}
        for cores in (0.1, 1.5)
    )
    words = "1.5 cores were busy with other work"
    assert words in table.digest(whole(comparisons=busy, parts={}))
    assert words in table.text(whole(comparisons=busy, parts={}))
    assert "other work" not in table.digest(whole(comparisons=quiet, parts={})) + table.text(
        whole(comparisons=quiet, parts={})
    )


def test_a_busy_machine_is_seen():
    """Somebody computes without a pause: at least a good part of one core, on a machine that may be slowed
    down by others."""
    with subprocess.Popen([sys.executable, "-c", "while True: pass"]) as other:
        try:
            assert run.cores_busy(2.0) > 0.3
        finally:
            other.kill()


def test_the_digest_takes_its_place_in_the_readme(tmp_path):
    readme, everything, source = tmp_path / "README.md", tmp_path / "ALL.md", tmp_path / "RECORD.jsonl"
    made = whole(some_outcomes())
    record.append(made, source)
    for path in (readme, everything):
        path.write_text(f"before\n{table.BEGIN}\nold\n{table.END}\nafter\n")
    for path, text in ((readme, table.summary(made)), (everything, table.digest(made))):
        table.renew(readme, everything, source)
        once = path.read_text()
        table.renew(readme, everything, source)
        assert path.read_text() == once
        assert once.startswith("before\n")
        assert once.endswith("\nafter\n")
        assert table.digest_of(once) == text
    everything.write_text("no marks")
    with pytest.raises(RecordError, match="no place for the digest"):
        table.renew(readme, everything, source)


def test_what_is_committed_is_the_newest_record():
    """RECORD.jsonl, chart.svg and both READMEs tell the same."""
    newest = record.newest()
    assert chart.PATH.read_text(encoding="utf-8") == chart.draw(newest)
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    assert table.digest_of(readme) == table.summary(newest)
    assert table.digest_of(table.ALL.read_text(encoding="utf-8")) == table.digest(newest)
    assert f"]({chart.PATH.relative_to(ROOT)})" in readme


def test_the_command_draws_a_chart_elsewhere_and_leaves_the_readmes(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table, "renew", lambda: pytest.fail("the READMEs belong to the checked-in record"))
    assert command.main(["chart", "--to", str(tmp_path / "chart.svg")]) == 0
    assert (tmp_path / "chart.svg").read_text(encoding="utf-8") == chart.draw(record.newest())
    with pytest.raises(SystemExit, match="cannot be read"):
        command.main(["chart", "--record", str(tmp_path / "none.jsonl"), "--to", str(tmp_path / "chart.svg")])


def test_every_checked_in_record_can_be_shown():
    for made in record.load():
        shown = table.text(made)
        assert all(one["name"] in shown for one in made.outcomes)
        assert all(row["name"] in shown for one in made.comparisons.values() for row in one["rows"])
        assert all(row["name"] in shown for part in made.parts.values() for row in part["rows"])


def test_records_name_no_folder_of_the_machine():
    text = record.PATH.read_text(encoding="utf-8")
    assert not re.search(r"/(?:root|home|tmp|work|dev)/", text)


def test_a_tiny_run_makes_a_record(tmp_path, monkeypatch, capsys):
    tiny = Comparison(
        "lz4", "spots", "disk", ("shardwright", "acquire-zarr", KERNEL_FLOOR, DISK_FLOORS[0]), 8, 2, TINY
    )
    in_memory = replace(tiny, place="no-disk", contenders=("shardwright",), rounds=1)

    def broken(places, quick):
        raise OSError(f"{places.disk} broke")

    monkeypatch.setattr(throughput, "chosen_comparisons", lambda only: [tiny, in_memory])
    monkeypatch.setattr(flat, "measure", broken)
    to = tmp_path / "made.jsonl"
    options = ["--only", "flat", "--to", str(to), "--folder", str(tmp_path), "--json"]
    code = command.main(["record", *options])
    assert code == 1, "a part failed"
    (made,) = record.load(to)
    assert json.loads(capsys.readouterr().out) == json.loads(to.read_text())
    assert set(made.comparisons) == {"lz4/spots/disk", "lz4/spots/no-disk"}
    assert all(one["took_s"] >= 0 and one["cores_busy_before"] >= 0 for one in made.comparisons.values())
    rows = made.comparisons["lz4/spots/disk"]["rows"]
    assert [len(row["gb_per_s"]["rounds"]) for row in rows] == [2] * 4
    assert {one["name"] for one in made.outcomes} >= {
        "in process",
        "in process, of its floor",
        "peak memory, in process",
    }
    assert made.parts["flat"]["error"] == "FOLDER broke"
    assert not made.is_whole
    assert not (tmp_path / "work").exists()
    assert "failed: FOLDER broke" in table.text(made)


def test_the_folder_in_memory_must_be_one(on_disk):
    if run.filesystem_of(on_disk) in ("tmpfs", "ramfs"):
        pytest.skip("the tests' own folder is in memory here")
    with pytest.raises(SystemExit, match="is on a disk"):
        command.main(["flat", "--folder", str(on_disk), "--memory-folder", str(on_disk)])


def test_the_filesystem_is_that_of_the_deepest_mount():
    assert run.filesystem_of(Path("/proc/self")) == "proc"
    assert run.filesystem_of(Path("/dev/shm")) == "tmpfs"
