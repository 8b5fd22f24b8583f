"""No exception is kept: its traceback holds every object that the failed call touched. What is kept of it is
its text (``model/error_text.py``)."""

import ast
import re
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"
_EXCEPTION = re.compile(r"\b(\w*(Error|Exception))\b")
_CLASS = re.compile(r"\btype\[[^\]]*\]")
_TAKEN = re.compile(r"\bCallable\[\[[^\]]*\]")  # what a function takes is not kept with it

# (file, what): why this one is harmless.
ARGUED = {
    ("rework/jobs/compact_store.py", "failures"): "a plan of one command, which prints it and ends",
}


def is_exception(annotation: ast.expr | None) -> bool:
    """Whether it names an exception, itself or in a container; a class of exceptions is none, nor is a
    function that takes one."""
    if annotation is None:
        return False
    text = _TAKEN.sub("", _CLASS.sub("", ast.unparse(annotation).strip("'\"")))
    return _EXCEPTION.search(text) is not None


def kept(text: str) -> set[str]:
    """Attributes that are declared to hold an exception, or are given one that was caught or handed over;
    calls that put one into a future."""
    found = set()
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef):
            found |= {
                ast.unparse(each.target)
                for each in node.body
                if isinstance(each, ast.AnnAssign) and is_exception(each.annotation)
            }
        elif (
            isinstance(node, ast.AnnAssign)
            and isinstance(node.target, ast.Attribute)
            and is_exception(node.annotation)
        ):
            found.add(node.target.attr)
        elif isinstance(node, ast.Attribute) and node.attr == "set_exception":
            found.add("set_exception")
        elif isinstance(node, ast.FunctionDef):
            arguments = [*node.args.args, *node.args.kwonlyargs]
            found |= given(
                node.body, {argument.arg for argument in arguments if is_exception(argument.annotation)}
            )
        elif isinstance(node, ast.ExceptHandler) and node.name:
            found |= given(node.body, {node.name})
    return found


def given(body: list[ast.stmt], names: set[str]) -> set[str]:
    """Attributes that one of ``names`` is assigned to."""
    assigned = [node for each in body for node in ast.walk(each) if isinstance(node, ast.Assign)]
    taken = [node for node in assigned if isinstance(node.value, ast.Name) and node.value.id in names]
    return {target.attr for node in taken for target in node.targets if isinstance(target, ast.Attribute)}


def test_no_exception_is_kept() -> None:
    found = {
        (file.relative_to(SOURCE).as_posix(), name)
        for file in SOURCE.rglob("*.py")
        for name in kept(file.read_text(encoding="utf-8"))
    }
    assert found <= set(ARGUED), "keep an ErrorText, and a Promise in place of a Future"
    assert set(ARGUED) <= found, "arguments for what is gone"


def raised_and_held(text: str) -> set[str]:
    """Names of variables that are raised and hold the exception on: it then holds itself, by its traceback
    and the frame of the function, until the garbage collector comes, and the frames of every caller with it.
    Python deletes what a handler names; any other name is deleted in a ``finally`` around the ``raise``."""
    found = set()

    def look(node: ast.AST, deleted: frozenset[str]) -> None:
        if isinstance(node, ast.ExceptHandler) and node.name:
            deleted |= {node.name}
        elif isinstance(node, ast.Try):
            names = [name for each in node.finalbody if isinstance(each, ast.Delete) for name in each.targets]
            deleted |= {name.id for name in names if isinstance(name, ast.Name)}
        elif isinstance(node, ast.Raise) and node.exc is not None:
            raised = node.exc.value if isinstance(node.exc, ast.Subscript) else node.exc
            if isinstance(raised, ast.Name) and raised.id.islower() and raised.id not in deleted:
                found.add(raised.id)
        for child in ast.iter_child_nodes(node):
            look(child, deleted)

    look(ast.parse(text), frozenset())
    return found


def test_no_raised_exception_holds_itself() -> None:
    """On Python 3.13 the frames that such a one holds are those of callers too: a writer that was forgotten
    was not sealed, since an error of its creation, long handled, held it."""
    found = {
        (file.relative_to(SOURCE).as_posix(), name)
        for file in SOURCE.rglob("*.py")
        for name in raised_and_held(file.read_text(encoding="utf-8"))
    }
    assert not found


def test_the_search_for_raised_ones_finds_them() -> None:
    assert raised_and_held("def f(error):\n    raise error") == {"error"}
    assert raised_and_held("def f():\n    if errors:\n        raise errors[0]") == {"errors"}
    assert raised_and_held("try:\n    f()\nexcept OSError as error:\n    raise error from None") == set()
    assert raised_and_held("try:\n    raise gone\nfinally:\n    del gone") == set()
    assert raised_and_held("raise StorageError\nraise failure.to_error()") == set()


def test_the_search_finds_what_it_is_for() -> None:
    assert kept(
        "class A:\n    error: StorageError | None\n    kind: type[StorageError]\n    text: ErrorText"
    ) == {"error"}
    assert kept("def f(self):\n    self.losses: deque[tuple[int, 'Exception']] = deque()") == {"losses"}
    assert kept("def f(self, why: BaseException, code: int):\n    self.why = why\n    self.code = code") == {
        "why"
    }
    assert kept(
        "try:\n    f()\nexcept OSError as error:\n    self.last = error\n    self.text = str(error)"
    ) == {"last"}
    assert kept("future.set_exception(error)") == {"set_exception"}
