"""One name, one thing: no two classes and no two modules of the program have the same name."""

import ast
from collections import defaultdict
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"
PYTHONS_OWN = {"__init__", "__main__"}  # Python gives these names


def classes(path: Path) -> list[str]:
    """The names of all classes in a module, nested ones too; without underscores, which only say who may use
    one."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    return [node.name.strip("_") for node in ast.walk(tree) if isinstance(node, ast.ClassDef)]


def used_twice(named: list[tuple[str, Path]]) -> dict[str, list[str]]:
    """The names that stand for more than one thing, with the modules that use them."""
    places = defaultdict(list)
    for name, path in named:
        places[name].append(str(path))
    return {name: found for name, found in places.items() if len(found) > 1}


def test_no_two_classes_have_the_same_name():
    modules = sorted(SOURCE.rglob("*.py"))
    assert used_twice([(name, path.relative_to(SOURCE)) for path in modules for name in classes(path)]) == {}


def test_no_two_modules_have_the_same_name():
    """The modules of cli have the names of the commands: no other module may."""
    modules = [path.relative_to(SOURCE) for path in sorted(SOURCE.rglob("*.py"))]
    assert used_twice([(path.stem, path) for path in modules if path.stem not in PYTHONS_OWN]) == {}


def test_the_search_finds_what_it_is_for(tmp_path):
    (tmp_path / "a.py").write_text("class Row:\n    class _Inner: ...\n")
    (tmp_path / "b.py").write_text("class _Row: ...\n")
    named = [(name, path) for path in sorted(tmp_path.iterdir()) for name in classes(path)]
    assert list(used_twice(named)) == ["Row"]
