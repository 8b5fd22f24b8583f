"""A module's name says what the module is: a noun, or a command's verb; no participle, no adjective alone."""

from pathlib import Path

import pytest

TREE = Path(__file__).parents[2]
NOUNS = {"encoding", "opening", "ring", "seed", "staging"}  # though they end as participles do
NOUNS |= {"binding", "bookkeeping", "covering", "fencing", "recording", "scheduling", "writing"}  # of tests
ADJECTIVES = {"done", "kept", "live", "local", "lost", "native", "open", "shown"}
ROOMS = {"foreign", "remote"}  # of what is not ours


def is_no_noun(name: str) -> bool:
    return name in ADJECTIVES or (name.endswith(("ed", "ing")) and "_" not in name and name not in NOUNS)


@pytest.mark.parametrize("folder", ["src/shardwright", "tests"])
def test_no_module_is_named_by_a_participle_or_an_adjective(folder):
    paths = [path.relative_to(TREE / folder) for path in (TREE / folder).rglob("*.py")]
    names = {path.stem.removeprefix("test_") for path in paths} | {
        room for p in paths for room in p.parts[:-1]
    }
    assert [name for name in sorted(names - ROOMS) if is_no_noun(name)] == []


@pytest.mark.parametrize(
    ("name", "found"),
    [("followed", True), ("growing", True), ("live", True), ("staging", False), ("followed_frame", False)],
)
def test_the_rule_finds_what_it_is_for(name, found):
    assert is_no_noun(name) == found
