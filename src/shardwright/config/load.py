"""Reads a YAML file into a checked ``Config``, and the keys that it names: every fault is one ``ConfigError``
with file, line, field, the expected and the actual value.

All wrong fields are reported at once. A rule between fields is checked once each of them is right."""

from __future__ import annotations

import json
import os
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import ValidationError

from shardwright.array.spec import own_message
from shardwright.model.errors import ConfigError, StorageError
from shardwright.model.write_options import DTYPES
from shardwright.wire.key_files import read_secret_key

from .json_schema import field_schema, has, known_keys
from .model import VERSION, Config
from .source import FieldPath, Source

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from pydantic_core import ErrorDetails

    from shardwright.ingest.transport.allow_list import Access

# Messages of our own validators begin with the field at fault, and may end with the expected and the actual
# value.
_NAMED_FIELD = re.compile(r"(?P<field>[a-z_][a-z_0-9.\[\]]*): (?P<problem>.*)", re.DOTALL)
_EXPECTED_GOT = re.compile(
    r"(?P<problem>.*?)[,;] expected (?P<expected>.*?)(?:, got (?P<got>.*))?$", re.DOTALL
)
_GOT = re.compile(r"(?P<problem>.*?)[,;] got (?P<got>.*)$", re.DOTALL)
MOST_ERRORS = 50  # that one answer names
_STRUCTURES = {  # pydantic's words depend on whether a validator has made Python values of the JSON
    "tuple_type": "a list",
    "model_type": "a mapping",
    "model_attributes_type": "a mapping",
    "dict_type": "a mapping",
}


@dataclass(frozen=True)
class LoadedConfig:
    """A configuration and its file; ``source.error`` names a field's line when a later check fails."""

    config: Config
    source: Source


def load_config(path: Path) -> LoadedConfig:
    """Reads and checks one YAML file. Relative paths in it count from its folder. Raises ``ConfigError``."""
    return _checked(Source.read(path), path.resolve().parent)


def parse_config(text: str, *, file: str = "<text>", folder: Path | None = None) -> LoadedConfig:
    """Checks YAML text as ``load_config`` does; relative paths count from ``folder``, else from the working
    directory."""
    return _checked(Source.parse(text, file), folder or Path.cwd())


def _checked(source: Source, folder: Path) -> LoadedConfig:
    if not isinstance(source.data, dict):
        raise source.error(
            (), "not a configuration", expected="keys such as output: {root: FOLDER}", got=_shown(source.data)
        )
    _refuse_other_versions(source)
    try:
        # Through JSON, so that strict rules (no "100" for 100) still accept lists for tuples, exactly as the
        # JSON Schema says.
        config = Config.model_validate_json(
            json.dumps(source.data), strict=True, context={"folder": str(folder)}
        )
    except ValidationError as error:
        raise _all_errors(source, error) from None
    _refuse_other_dtype_spellings(source)
    return LoadedConfig(config, source)


def _refuse_other_versions(source: Source) -> None:
    """Raises ``ConfigError`` for another version of the format, before any field is checked, since its fields
    may differ."""
    version = source.data.get("version", VERSION)
    if isinstance(version, int) and not isinstance(version, bool) and version != VERSION:
        raise source.error(
            ("version",),
            "another version of the configuration's format",
            expected=VERSION,
            got=version,
            hint="Use the shardwright release that it was written for.",
        )


def _refuse_other_dtype_spellings(source: Source) -> None:
    """Raises ``ConfigError`` for a dtype such as ``<u2``, which ArraySpec takes. A file has one spelling of
    each, so that the schema and editors can check it."""
    wrong = [
        (("streams", i, *path, "dtype"), array["dtype"])
        for i, stream in enumerate(source.data.get("streams", ()))
        for path, array in _arrays_of(stream)
        if array["dtype"] not in DTYPES
    ]
    if wrong:
        raise _together(
            source.error(path, "is not valid", expected=f"one of {', '.join(DTYPES)}", got=repr(dtype))
            for path, dtype in wrong
        )


def _arrays_of(stream: dict[str, Any]) -> list[tuple[FieldPath, dict[str, Any]]]:
    """Returns (path, array) for the array of a valid stream and for those of its images."""
    images = stream.get("images", ())
    own: list[tuple[FieldPath, Any]] = (
        [((name,), array) for name, array in images.items()]
        if isinstance(images, dict)
        else [((k, "array"), each.get("array")) for k, each in enumerate(images) if isinstance(each, dict)]
    )
    return [
        (("array",), stream["array"]),
        *((("images", *path), array) for path, array in own if array is not None),
    ]


def _all_errors(source: Source, error: ValidationError) -> ConfigError:
    """Returns the first error in the file, with those of the other fields (``others``) by their lines."""
    found = [(_field_path(source.data, item), item) for item in error.errors(include_url=False)]
    # A list with a bad item is reported as too short as well: the deeper error is the cause.
    causes = [
        (path, item)
        for path, item in found
        if not any(other[: len(path)] == path != other for other, _ in found)
    ]
    # On one line, an unknown key comes first: it is often the misspelt form of a missing one.
    causes.sort(key=lambda cause: (source.line_of(cause[0]), cause[1]["type"] != "extra_forbidden"))
    first = dict(reversed(causes))  # error of each field
    alike: dict[Any, list[FieldPath]] = {}  # an alias repeats each mistake of its anchor
    for path in dict(causes):
        alike.setdefault((source.line_of(path), path[-1:], first[path]["type"]), []).append(path)
    return _together(
        _translated(source, paths[0], first[paths[0]], len(paths) - 1) for paths in alike.values()
    )


def _together(errors: Iterable[ConfigError]) -> ConfigError:
    """Returns the first of the errors, which carries the others. There must be one."""
    first, *others = errors
    if left_out := len(others[MOST_ERRORS - 1 :]):
        last = others[MOST_ERRORS - 2]
        last.hint = " ".join(filter(None, (last.hint, f"({left_out} more fields are wrong.)")))
    first.others = tuple(other.to_dict() for other in others[: MOST_ERRORS - 1])
    return first


def _field_path(data: Any, item: ErrorDetails) -> FieldPath:
    """Returns pydantic's location without the parts that are not in the file (tags of unions, names of
    types)."""
    path: list[str | int] = []
    last = len(item["loc"]) - 1
    for i, part in enumerate(item["loc"]):
        if isinstance(data, dict) and isinstance(part, int) and part < len(data):
            part = list(data)[part]  # noqa: PLW2901  (images by their names, which became a list)
        if has(data, part):
            data = data[part]
        elif not (i == last and item["type"] == "missing"):
            continue
        path.append(part)
    return tuple(path)


def _translated(source: Source, path: FieldPath, item: ErrorDetails, more: int) -> ConfigError:
    """``more``: other fields of this line that are wrong in the same way."""
    error = _translated_one(source, path, item)
    if more:
        error.hint = f"({more} more {'fields' if more > 1 else 'field'} of this line: the same.)"
    return error


def _translated_one(source: Source, path: FieldPath, item: ErrorDetails) -> ConfigError:
    kind, message, facts = item["type"], own_message(item), item.get("ctx", {})
    # a token may be where it does not belong
    may_be_secret = path[:1] == ("notify",) and path[2:3] != ("events",)
    got = "another value" if may_be_secret else _shown(item["input"])
    if kind == "missing":
        return source.error(path, "is missing", expected=_description(source, path))
    if kind == "extra_forbidden":
        return source.error(
            path,
            "is not a known key",
            expected=f"one of {', '.join(known_keys(path[:-1], source.data))}",
        )
    if kind == "value_error":
        return _from_own_validator(source, path, message, got)
    if kind in _STRUCTURES:
        return source.error(path, "is not valid", expected=_STRUCTURES[kind], got=got)
    if kind == "union_tag_invalid":
        return source.error(
            (*path, "name"),
            "is not valid",
            expected=f"one of {facts['expected_tags']}",
            got=repr(facts["tag"]),
        )
    if kind == "string_pattern_mismatch":
        return source.error(path, "is not valid", expected=f"text that matches {facts['pattern']}", got=got)
    if kind in ("too_short", "too_long"):
        bound = f"at least {facts['min_length']}" if kind == "too_short" else f"at most {facts['max_length']}"
        return source.error(path, "is not valid", expected=f"{bound} items", got=facts["actual_length"])
    expected = message.removeprefix("Input should be ").removeprefix("a valid ")
    return source.error(path, "is not valid", expected=expected, got=got)


def _from_own_validator(source: Source, path: FieldPath, message: str, got: str) -> ConfigError:
    if message.startswith("expected "):
        expected, _, own_got = message.removeprefix("expected ").partition(", got ")
        return source.error(path, "is not valid", expected=expected, got=own_got or got)
    if named := _NAMED_FIELD.fullmatch(message):
        path = (
            *path,
            *(int(part) if part.isdigit() else part for part in re.findall(r"\w+", named["field"])),
        )
        message = named["problem"]
    if parts := _EXPECTED_GOT.fullmatch(message):
        return source.error(path, parts["problem"], expected=parts["expected"], got=parts["got"])
    if parts := _GOT.fullmatch(message):
        return source.error(path, parts["problem"], got=parts["got"])
    return source.error(path, message)


def _description(source: Source, path: FieldPath) -> str:
    """Returns the schema's description of a missing field."""
    schema = field_schema(path, source.data)
    return str(schema.get("description") or schema.get("type") or "a value").rstrip(".")


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return f"a mapping with the keys {', '.join(map(str, value))}"[:120] if value else "an empty mapping"
    if value is None:
        return "nothing"
    return (repr(value) if isinstance(value, str) else json.dumps(value))[:120]


def load_access(loaded: LoadedConfig) -> Access | None:
    """Reads and checks the keys that a configuration names; None where TCP needs no keys. Raises
    ``ConfigError`` with the field's line for a key or folder that cannot be used, ``StorageError`` for one
    that is not there: its disk may be mounted a moment later."""
    from shardwright.ingest.transport.allow_list import Access, AllowList
    from shardwright.ingest.transport.endpoints import has_curve

    curve = loaded.config.ingest.curve
    if curve is None:
        return None
    if not has_curve():
        hint = "Install the pyzmq wheel from the package index"
        raise loaded.source.error(
            ("ingest", "curve"),
            "this build of ZeroMQ has no CURVE",
            expected="libzmq with libsodium",
            got="none",
            hint=hint,
        )
    field = "secret_key"
    try:
        secret_key = read_secret_key(curve.secret_key)
        field = "clients"
        return Access(secret_key, AllowList.read(curve.clients))
    except ConfigError as error:
        subject = loaded.source.error(("ingest", "curve", field), error.message).message
        is_there = os.path.exists(getattr(curve, field))  # noqa: PTH110  (also False where a disk does not answer)
        kind = ConfigError if is_there else StorageError
        raise kind(subject, expected=error.expected, got=error.got, hint=error.hint) from None


def access_warnings(loaded: LoadedConfig, access: Access | None) -> Iterator[str]:
    """Warns of clients that may connect against the user's intent, or cannot connect. ``access``:
    the keys that ``load_access`` returned."""
    ingest = loaded.config.ingest
    open_endpoints = [endpoint for endpoint in ingest.endpoints if endpoint.startswith("tcp://")]
    if ingest.insecure and open_endpoints:
        yield (
            f"ingest.insecure: anyone who can reach {', '.join(open_endpoints)} may write stores and "
            f"fill the disk, and nothing is encrypted; use ingest.curve (`shardwright keygen`), unless "
            f"only this machine and its cameras' computers are on this network"
        )
    elif access is not None and open_endpoints and not access.clients.names:
        yield (
            f"no client can connect over TCP: {access.clients.folder} holds no public key; put the "
            f"NAME.key of each camera's computer there"
        )
