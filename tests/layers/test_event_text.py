"""Every event that the code emits has one sentence, and each fact of the sentence is a fact of the event
wherever it is emitted. Names and facts are read from the code, so that it holds for an event that no other
test causes, too."""

from __future__ import annotations

import ast
import re
from pathlib import Path
from string import Formatter
from typing import TYPE_CHECKING, NamedTuple

import pytest

import shardwright
from shardwright.acquire.notifications import _EVENT_OF_STATUS
from shardwright.model.event_text import _OPTIONAL, SENTENCES, facts_in, sentence
from shardwright.model.receipt import _TROUBLE, COUNTS

from .test_event_facts import EMITTERS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

SOURCE = Path(shardwright.__file__).parent
# Functions that pass on what others emit: name and facts are theirs.
FORWARDERS = {"session.tell", "session.advance", "driver._collect", "assemble._pass_on", "assemble._tell"}
# Where the name is that of a table's row.
NAMED_IN_TABLES = {"notifications.take_events": set(_EVENT_OF_STATUS.values())}


class Facts(NamedTuple):
    """The names of facts: ``sure`` ones are always there."""

    sure: frozenset[str] = frozenset()
    maybe: frozenset[str] = frozenset()

    @classmethod
    def of(cls, sure: Iterable[str] = (), maybe: Iterable[str] = ()) -> Facts:
        return cls(frozenset(sure), frozenset(sure) | frozenset(maybe))

    def __or__(self, other: Facts) -> Facts:
        return Facts(self.sure | other.sure, self.maybe | other.maybe)

    def either(self, other: Facts) -> Facts:
        return Facts(self.sure & other.sure, self.maybe | other.maybe)


ERROR = Facts.of(("code", "message"), ("expected", "got", "hint", "exception"))
# What is made elsewhere, by the expression that brings it in.
KNOWN = {
    "error.to_dict()": ERROR,
    "why.as_facts()": ERROR,
    **dict.fromkeys(("error.as_reason()", "report.error.as_reason()"), Facts.of(("reason",), ("hint",))),
    "client.facts": Facts.of(("host", "pid"), ("client_key",)),
    "needs.facts": Facts.of((), ("ring_fill", "free_bytes")),
    "receipt.counts": Facts.of(COUNTS),
    "receipt.incomplete_facts(is_there=is_there)": Facts.of(("frames_received",), (*_TROUBLE, "hint")),
    "self._server.reload_clients()": Facts.of(("added", "removed")),
}
OF_SESSIONS = Facts.of(("name", "stream", "path"))


class Site(NamedTuple):
    """A call that emits an event."""

    where: str
    event: str
    facts: Facts


class Module:
    """One file, and what its expressions are worth."""

    def __init__(self, file: Path) -> None:
        self.file = file
        self.tree = ast.parse(file.read_text())
        self.functions = {
            node.name: node for node in ast.walk(self.tree) if isinstance(node, ast.FunctionDef)
        }

    def calls(
        self, node: ast.AST | None = None, function: ast.FunctionDef | None = None
    ) -> Iterator[tuple[ast.FunctionDef, ast.Call]]:
        """Yields each call of an emitter, with the innermost function around it."""
        for child in ast.iter_child_nodes(node or self.tree):
            if function is not None and isinstance(child, ast.Call) and is_emitter(child):
                yield function, child
            yield from self.calls(child, child if isinstance(child, ast.FunctionDef) else function)

    def names(self, function: ast.FunctionDef, node: ast.expr) -> set[str]:
        """The names that an expression may have; none for a parameter or a loop's variable."""
        match node:
            case ast.Constant():
                return {node.value}
            case ast.IfExp():
                return self.names(function, node.body) | self.names(function, node.orelse)
            case ast.Name():
                return set().union(*(self.names(function, value) for value in assigned(function, node.id)))
        raise AssertionError(f"{self.file}: the name of an event: {ast.unparse(node)}")

    def facts(self, function: ast.FunctionDef, node: ast.expr) -> Facts:
        match node:
            case _ if ast.unparse(node) in KNOWN:
                return KNOWN[ast.unparse(node)]
            case ast.Dict():
                found = Facts()
                for key, value in zip(node.keys, node.values, strict=True):
                    found |= Facts.of((key.value,)) if key is not None else self.facts(function, value)
                return found
            case ast.IfExp():
                return self.facts(function, node.body).either(self.facts(function, node.orelse))
            case ast.Name():
                values = [self.facts(function, value) for value in assigned(function, node.id)]
                return one_of(values) | Facts.of((), put_into(function, node.id))
            case ast.Call(func=ast.Name(id=name) | ast.Attribute(attr=name)) if name in self.functions:
                callee = self.functions[name]
                returned = [each.value for each in ast.walk(callee) if isinstance(each, ast.Return)]
                return one_of([self.facts(callee, value) for value in returned])
            case ast.DictComp():
                (table,) = (
                    each
                    for each in self.tree.body
                    if isinstance(each, ast.Assign)
                    and ast.unparse(each.targets[0]) == ast.unparse(node.generators[0].iter)
                )
                return Facts.of((), ast.literal_eval(table.value))
        raise AssertionError(f"{self.file}:{node.lineno}: facts of an event: {ast.unparse(node)}")


def is_emitter(call: ast.Call) -> bool:
    return getattr(call.func, "attr", getattr(call.func, "id", "")) in EMITTERS and len(call.args) == 2


def one_of(found: list[Facts]) -> Facts:
    assert found, "an expression that is not known"
    first, *others = found
    for other in others:
        first = first.either(other)
    return first


def assigned(function: ast.FunctionDef, name: str) -> list[ast.expr]:
    """The values that a function assigns to a variable."""
    return [
        node.value
        for node in ast.walk(function)
        if isinstance(node, ast.Assign | ast.AnnAssign | ast.NamedExpr) and node.value is not None
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and target.id == name
    ]


def put_into(function: ast.FunctionDef, name: str) -> list[str]:
    """The keys that a function sets in a dict one by one."""
    return [
        node.slice.value
        for node in ast.walk(function)
        if isinstance(node, ast.Subscript)
        and isinstance(node.ctx, ast.Store)
        and ast.unparse(node.value) == name
    ]


def sites() -> tuple[list[Site], set[str]]:
    """Every call that emits an event, and the functions that only pass events on."""
    found, forwarders = [], set()
    emits = re.compile(rf"\b({'|'.join(EMITTERS)})\(")
    for module in (Module(file) for file in sorted(SOURCE.rglob("*.py")) if emits.search(file.read_text())):
        for function, call in module.calls():
            where = f"{module.file.stem}.{function.name}"
            names = module.names(function, call.args[0]) or NAMED_IN_TABLES.get(where, set())
            if not names:
                forwarders.add(where)
                continue
            facts = module.facts(function, call.args[1])
            if ast.unparse(call.func).endswith(".tell"):
                facts |= OF_SESSIONS
            if module.file.parent.name in ("acquire", "writer"):
                facts |= Facts.of(("path",), ("image", "hint"))  # by ``tell`` or ``_warn_of``; by ``note``
            found += [Site(f"{where}:{call.lineno}", name, facts) for name in sorted(names)]
    return found, forwarders


SITES, PASSED_ON = sites()
# Of facts, by the way in which a sentence shows them; all others are counts or texts.
VALUES = {"": "text", "level": "faster", "index": [3], "stores": ["/a"], "words": "io_error"}


def is_a_fact(name: str, facts: frozenset[str]) -> bool:
    made_of = {"store": {"name", "path"}, "why": {"message", "error"}}.get(name, {name})
    return bool(made_of & facts)


def test_who_only_passes_events_on_is_known() -> None:
    assert PASSED_ON == FORWARDERS


def test_every_event_has_one_sentence_and_every_sentence_an_event() -> None:
    assert {site.event for site in SITES} == SENTENCES.keys()
    assert len(SITES) > len(SENTENCES) > 60, "the emitters are known by name"


@pytest.mark.parametrize("site", SITES, ids=lambda site: f"{site.event}-{site.where}")
def test_no_fact_of_a_sentence_is_missing(site: Site) -> None:
    shown_as = {name: how or "" for _, name, how, _ in Formatter().parse(SENTENCES[site.event]) if name}
    for facts in site.facts:
        # raises ``LookupError`` where one is missing
        text = sentence(site.event, {name: VALUES.get(shown_as.get(name, ""), 2) for name in facts})
        assert not set("{}[]") & set(text)


@pytest.mark.parametrize("event", SENTENCES)
def test_what_may_be_left_out_is_a_fact_somewhere(event: str) -> None:
    facts = frozenset().union(*(site.facts.maybe for site in SITES if site.event == event))
    optional = [name for part in _OPTIONAL.findall(SENTENCES[event]) for name in facts_in(part)]
    assert [name for name in optional if not is_a_fact(name, facts)] == []
