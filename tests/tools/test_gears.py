"""The two gears: their table names what there is, and what takes long is named."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
from tests.harness import durations
from tests.harness.gears import KEPT, LONG, ROOT, WHOLE, is_left_out, is_whole


def _tests_of(file: Path) -> set[str]:
    return {node.name for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.FunctionDef)}


@pytest.mark.parametrize("place", [*WHOLE, *sorted(KEPT), *LONG])
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


def test_the_record_is_read_as_it_was_written(tmp_path: Path) -> None:
    recorder = durations.Recorder()
    for test, seconds in {"a.py::x": 0.5, "a.py::y[1]": 2.5, "b.py::z": 1.0}.items():
        recorder.add(test, seconds, is_whole=test == "a.py::x")
    recorder.write(tmp_path / "record")
    assert durations.read(tmp_path / "record") == [
        durations.Row("a.py", "both", 2, 3.0, 2.5, ("y",)),
        durations.Row("b.py", "test", 1, 1.0, 1.0, ()),
    ]
