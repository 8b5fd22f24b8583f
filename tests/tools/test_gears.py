"""The two gears: their table names what there is, and what takes long is named."""

from __future__ import annotations

import ast
from pathlib import Path
from types import SimpleNamespace

import pytest
from tests.harness import durations
from tests.harness.gears import KEPT, LONG, MOST_S, ROOT, SLOW, WHOLE, is_left_out, is_whole


def _tests_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("place", [*WHOLE, *sorted(KEPT), *LONG, *SLOW])
def test_a_place_that_is_named_is_there(place: str) -> None:
    file, _, name = place.partition("::")
    assert (ROOT / file).exists()
    assert not name or name in _tests_of(ROOT / file)


def test_a_place_is_named_once() -> None:
    """None is within another one, which would say it all."""
    assert not [place for place in WHOLE if is_whole(str(Path(place).parent)) and "::" not in place]
    assert not [place for place in WHOLE if "::" in place and is_whole(place.partition("::")[0])]
    assert all(is_whole(str(Path(kept.partition("::")[0]).parent)) for kept in KEPT), (
        "else there is nothing to keep"
    )
    assert not [place for place in LONG if is_whole(place)]


def test_every_test_that_is_marked_slow_is_named() -> None:
    """Where all cases of it are; a mark of some stands at their parameters."""
    files = {path.relative_to(ROOT).as_posix(): path for path in (ROOT / "tests").rglob("test_*.py")}
    assert {
        f"{file}::{node.name}"
        for file, path in files.items()
        if "@pytest.mark.slow" in (text := path.read_text())
        for node in ast.walk(ast.parse(text))
        if isinstance(node, ast.FunctionDef) and "pytest.mark.slow" in map(ast.unparse, node.decorator_list)
    } == SLOW.keys()


def test_a_test_is_of_one_gear_by_its_place() -> None:
    assert is_whole("tests/power/test_power_cuts.py::test_any[a-b]")
    assert not is_whole("tests/wire/test_messages.py::test_any")
    assert all(not is_whole(f"{kept}[a parameter]") for kept in KEPT if "::" in kept)


def test_a_file_of_the_other_gear_is_not_even_imported() -> None:
    assert is_left_out(ROOT / "tests/power", "not slow and not whole")
    assert not is_left_out(ROOT / "tests/power", "not slow")
    assert not is_left_out(ROOT / "tests/crash/test_kills.py", "not slow and not whole"), "some of it is kept"
    assert not is_left_out(ROOT / "tests/crash", "not slow and not whole")


def test_no_recorded_test_of_a_few_minutes_takes_long() -> None:
    """``./tools/test --all --record-durations`` renews the record."""
    rows = durations.read()
    files = {path.relative_to(ROOT).as_posix() for path in (ROOT / "tests").rglob("test_*.py")}
    assert {row.file for row in rows} == files, "the record is renewed where files come or go"
    long = {f"{row.file}::{name}" for row in rows for name in row.long}
    assert not [test for test in long if not is_whole(test) and test not in LONG]
    # A row written by hand may say how long and not what: then no test of it is asked about. Of a file
    # of both gears the longest may be a test of ``--all``, which is not named.
    unnamed = {row.file for row in rows if row.gear == "test" and row.longest_s > MOST_S and not row.long}
    assert not unnamed, "name the tests of these files that take more than MOST_S"


def test_the_record_has_the_gear_of_each_file() -> None:
    divided = {place.partition("::")[0] for place in (*WHOLE, *KEPT) if "::" in place}

    def gear_of(file: str) -> str:
        """Tests that are slow are not recorded."""
        if file not in divided:
            return "all" if is_whole(file) else "test"
        tests = {f"{file}::{name}" for name in _tests_of(ROOT / file) if name.startswith("test_")}
        gears = {is_whole(test) for test in tests - SLOW.keys()}
        return "both" if len(gears) == 2 else "all" if True in gears else "test"

    rows = durations.read()
    assert {row.file: row.gear for row in rows} == {row.file: gear_of(row.file) for row in rows}
    assert not [name for row in rows for name in row.long if is_whole(f"{row.file}::{name}")]


def test_a_run_names_its_long_tests() -> None:
    """But for those of ``LONG``, and each once."""
    named = next(iter(LONG))
    parts = (("a.py::x", 1.5), ("a.py::x", 1.5), ("a.py::y", 1.5), ("a.py::z[1]", 4.0), ("a.py::z[2]", 5.0))
    reports = [SimpleNamespace(nodeid=test, duration=took_s) for test, took_s in (*parts, (named, 60.0))]
    said = durations.unnamed_long(reports)
    assert [line.partition(";")[0] for line in said] == [
        "LONG: a.py::x took 3.0 s",
        "LONG: a.py::z took 5.0 s",
    ]


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorder = durations.Recorder()
    for test, seconds in {"a.py::x": 0.5, "a.py::y[1]": 2.5, "b.py::z": 1.0}.items():
        recorder.add(test, seconds, is_whole=test == "a.py::x")
    recorder.write(tmp_path / "record")
    assert durations.read(tmp_path / "record") == [
        durations.Row("a.py", "both", 2, 3.0, 2.5, ("y",)),
        durations.Row("b.py", "test", 1, 1.0, 1.0, ()),
    ]
