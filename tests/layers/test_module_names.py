"""A module's name says what the module is: a noun, or a command's verb; no participle, no adjective alone."""

from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"
NOUNS = {"encoding", "opening", "ring", "seed", "staging"}  # though they end as participles do
ADJECTIVES = {"done", "kept", "live", "local", "lost", "native", "open", "shown"}
ROOMS = {"foreign", "remote"}  # of what is not ours


def is_no_noun(name: str) -> bool:
    return name in ADJECTIVES or (name.endswith(("ed", "ing")) and "_" not in name and name not in NOUNS)


def test_no_module_is_named_by_a_participle_or_an_adjective():
    names = {path.stem for path in SOURCE.rglob("*.py")} | {p.name for p in SOURCE.rglob("*") if p.is_dir()}
    assert [name for name in sorted(names - ROOMS) if is_no_noun(name)] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("followed", True), ("growing", True), ("live", True), ("staging", False), ("followed_frame", False)],
)
def test_the_rule_finds_what_it_is_for(name, found):
    assert is_no_noun(name) == found
