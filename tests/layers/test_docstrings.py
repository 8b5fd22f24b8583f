"""A docstring's first words say what the thing is or does: no question word, no parameter before it."""

import ast
import re
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"
QUESTION = re.compile(r"(What|Who|Whether|How|Why)\b")
ROOMS = {"acquire", "client", "ingest", "read", "scan"}  # each of their classes has a docstring


def faults(source: str, *, needs_all: bool) -> list[str]:
    """The names of things whose docstring begins wrongly; with ``needs_all`` also of classes without one."""
    found = []
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        is_class, name = isinstance(node, ast.ClassDef), getattr(node, "name", "the module")
        text = ast.get_docstring(node)
        if text is None:
            is_faulty = needs_all and is_class and not name.startswith("_")
        else:
            is_faulty = QUESTION.match(text) is not None or (is_class and text.startswith("`"))
        if is_faulty:
            found.append(name)
    return found


def test_first_words_say_what_the_thing_is_or_does():
    found = []
    for path in sorted(SOURCE.rglob("*.py")):
        module = path.relative_to(SOURCE)
        needs_all = module.parts[0] in ROOMS
        found += [f"{module}: {name}" for name in faults(path.read_text("utf-8"), needs_all=needs_all)]
    assert found == []


@pytest.mark.parametrize(
    ("source", "found"),
    [
        ('"""What is left."""', ["the module"]),
        ('"""The rows that are left."""', []),
        ('def a():\n    """Whether it is left."""', ["a"]),
        ('def a():\n    """``b``: the row."""', []),
        ('class A:\n    """``b``: the row."""', ["A"]),
        ('class A:\n    """A row ``b``."""\n    async def c(self):\n        """How it is read."""', ["c"]),
        ("class A: ...\nclass _B: ...\ndef c(): ...", ["A"]),
    ],
)
def test_the_rule_finds_what_it_is_for(source, found):
    assert faults(source, needs_all=True) == found


def test_only_some_rooms_need_a_docstring_for_each_class():
    assert faults("class A: ...", needs_all=False) == []
