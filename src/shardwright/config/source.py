"""Turns YAML text into plain data and the line of every field.

A safe loader over YAML's composed nodes: the YAML 1.2 core rules that editors use (``off`` and ``no`` are
strings, ``1e-3`` is a number), no duplicate keys, no merge keys, no tags. Anchors and aliases work; their
expansion is bounded.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Unpack

import yaml

from shardwright.model.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.model.errors import ErrorFacts

FieldPath = tuple[str | int, ...]
MAX_FILE_BYTES = 1 << 20
MAX_NODES = 100_000
_TAG = "tag:yaml.org,2002:"


class _CoreLoader(yaml.SafeLoader):
    """SafeLoader with the scalar rules of YAML 1.2's core schema in place of YAML 1.1's."""

    yaml_implicit_resolvers = {}  # noqa: RUF012  (PyYAML's own way: the class's table)


for _kind, _pattern, _first in (
    ("null", r"^(?:~|null|Null|NULL|)$", ["~", "n", "N", ""]),
    ("bool", r"^(?:true|True|TRUE|false|False|FALSE)$", list("tTfF")),
    ("int", r"^(?:[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+)$", list("-+0123456789")),
    (
        "float",
        r"^(?:[-+]?(?:\.[0-9]+|[0-9]+(?:\.[0-9]*)?)(?:[eE][-+]?[0-9]+)?|[-+]?\.(?:inf|Inf|INF)|\.(?:nan|NaN|NAN))$",
        list("-+.0123456789"),
    ),
    ("merge", r"^(?:<<)$", ["<"]),
):
    _CoreLoader.add_implicit_resolver(_TAG + _kind, re.compile(_pattern), _first)


def dotted(path: FieldPath) -> str:
    """Returns ``("streams", 0, "name")`` as ``streams[0].name``."""
    text = ""
    for part in path:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text


@dataclass
class Source:
    """One configuration file: its plain data, and the line of each field."""

    file: str
    data: Any = None
    lines: dict[FieldPath, int] = field(default_factory=dict)

    def line_of(self, path: FieldPath) -> int:
        """Returns the line of ``path``, or of the nearest enclosing field in the file."""
        while path and path not in self.lines:
            path = path[:-1]
        return self.lines.get(path, 1)

    def error(self, path: FieldPath, problem: str, **facts: Unpack[ErrorFacts]) -> ConfigError:
        """Returns a ``ConfigError`` that names the file, the line and the field."""
        where = f"{self.file}:{self.line_of(path)}"
        subject = f"{where}: {dotted(path)}: {problem}" if path else f"{where}: {problem}"
        return ConfigError(subject, **facts)

    @classmethod
    def read(cls, path: Path) -> Source:
        """Reads a file. Raises ``ConfigError`` for one that cannot be read or is not valid YAML."""
        try:
            with path.open("rb") as file:
                raw = file.read(MAX_FILE_BYTES + 1)
        except OSError as error:
            raise ConfigError(
                f"{path}: cannot read the configuration",
                got=error.strerror,
                hint="Give the path of a YAML file.",
            ) from None
        if len(raw) > MAX_FILE_BYTES:
            raise ConfigError(
                f"{path}: too long for a configuration", expected=f"at most {MAX_FILE_BYTES} bytes"
            )
        return cls.parse(raw, str(path))

    @classmethod
    def parse(cls, text: bytes | str, file: str) -> Source:
        source = cls(file)
        try:
            node = yaml.compose(text, Loader=_CoreLoader)
        except yaml.MarkedYAMLError as error:
            line = error.problem_mark.line + 1 if error.problem_mark else 1
            raise ConfigError(f"{file}:{line}: not YAML: {error.problem or error.context}") from None
        # the last two: of a number that no character has (\U00110000), or that is too long for a version
        except (yaml.YAMLError, RecursionError, ValueError, OverflowError) as error:
            raise ConfigError(f"{file}:1: not YAML: {' '.join(str(error).split())[:200]}") from None
        if node is None:
            raise ConfigError(f"{file}:1: the file is empty", expected="at least output: {root: FOLDER}")
        source.data = _Builder(source).build(node, ())
        return source


def _whole(text: str) -> str | None:
    """Returns the text with one character for each pair of surrogates, by which JSON escapes those above
    U+FFFF. None if half of a pair is left, which no file's name and no JSON can have."""
    try:
        return text.encode("utf-16-le", "surrogatepass").decode("utf-16-le")
    except UnicodeDecodeError:
        return None


class _Builder:
    """Turns composed nodes into plain data and notes each field's line."""

    def __init__(self, source: Source) -> None:
        self.source = source
        self.nodes = 0
        # the nodes around the current one: an alias to one of them would be endless
        self.open: list[yaml.Node] = []

    def build(self, node: yaml.Node, path: FieldPath) -> Any:
        self.source.lines.setdefault(path, node.start_mark.line + 1)
        self.nodes += 1
        if self.nodes > MAX_NODES or node in self.open:
            raise self.source.error(
                path, "aliases expand without end", expected=f"at most {MAX_NODES} values"
            )
        self.open.append(node)
        try:
            if isinstance(node, yaml.MappingNode):
                return self._mapping(node, path)
            if isinstance(node, yaml.SequenceNode) and node.tag == _TAG + "seq":
                return [self.build(child, (*path, i)) for i, child in enumerate(node.value)]
            return self._scalar(node, path)
        finally:
            self.open.pop()

    def _mapping(self, node: yaml.MappingNode, path: FieldPath) -> dict[str, Any]:
        if node.tag != _TAG + "map":
            raise self._tag_error(node, path)
        built: dict[str, Any] = {}
        for key_node, value_node in node.value:
            line = key_node.start_mark.line + 1
            raw = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            key = None if raw is None else _whole(raw)
            if key_node.tag != _TAG + "str" or key is None:
                self.source.lines[(*path, str(key))] = line
                raise self.source.error(
                    (*path, str(key)), "is not a usable key", expected="plain text", got=repr(raw)
                )
            if key in built:
                first = self.source.lines[(*path, key)]
                self.source.lines[(*path, key)] = line
                raise self.source.error(
                    (*path, key), f"is given twice, first on line {first}", expected="each key once"
                )
            self.source.lines[(*path, key)] = line
            built[key] = self.build(value_node, (*path, key))
        return built

    def _scalar(self, node: yaml.Node, path: FieldPath) -> Any:
        kind, text = node.tag.removeprefix(_TAG), node.value
        if not isinstance(text, str):
            raise self._tag_error(node, path)
        if kind == "null":
            return None
        if kind == "str":
            if (whole := _whole(text)) is None:
                raise self.source.error(path, "has half of a pair of surrogates", got=repr(text)[:80])
            return whole
        if len(text) > 40:
            raise self.source.error(path, "is too long a number", expected="at most 40 digits")
        word = text.lower()
        try:
            if kind == "bool":
                return {"true": True, "false": False}[word]
            if kind == "int":
                return int(word, {"0o": 8, "0x": 16}.get(word[:2], 10))
            if kind == "float":
                return float(word.replace(".inf", "inf").replace(".nan", "nan"))
        except (KeyError, ValueError):
            pass  # an explicit tag on a text of another kind
        raise self._tag_error(node, path)

    def _tag_error(self, node: yaml.Node, path: FieldPath) -> ConfigError:
        return self.source.error(
            path, "has a tag", expected="plain YAML without tags", got=node.tag.replace(_TAG, "!!")
        )
