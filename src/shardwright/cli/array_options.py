"""Options that describe arrays, as a user writes them: ``z=64,y=64``, ``zstd:5``, ``512MiB``. A wrong one is
a usage error with an example."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

import typer

from shardwright.model.json_text import parse_json

if TYPE_CHECKING:
    from collections.abc import Mapping

    from shardwright.array.spec import Blosc, Gzip, Method, Zstd

_SIZE = re.compile(r"([A-Za-z][A-Za-z0-9_]*)=([1-9][0-9]{0,9})")
_RANGE = re.compile(r"(-?[0-9]{1,18})|(-?[0-9]{1,18})?:(-?[0-9]{1,18})?")
FACTORS_HELP = "elements of the level below that make one, by axis: z=2,y=4,x=4. Default: y=2,x=2."
CODEC_HELP = "Codec of the new chunks: zstd:5, gzip:6, blosc:zstd:5, blosc:lz4:5:bitshuffle or none."


def parse_sizes(option: str, text: str) -> dict[str, int]:
    """Elements by axis, from ``z=64,y=64,x=64``."""
    sizes = {}
    for part in text.split(","):
        match = _SIZE.fullmatch(part.strip())
        if match is None or match[1] in sizes:
            raise typer.BadParameter(
                f"expected axes and sizes such as z=64,y=64,x=64, each axis once, got {text!r}",
                param_hint=option,
            )
        sizes[match[1]] = int(match[2])
    return sizes


def parse_region(option: str, text: str) -> dict[str, int | slice]:
    """Elements by axis, from ``t=0:10,y=5``."""
    region: dict[str, int | slice] = {}
    for part in text.split(","):
        name, equals, asked = part.strip().partition("=")
        if not equals or name in region:
            raise typer.BadParameter(
                f"expected axes and ranges such as t=0:10,y=5, each axis once, got {text!r}",
                param_hint=option,
            )
        region[name] = parse_range(option, asked)
    return region


def parse_range(option: str, text: str) -> int | slice:
    """``5``, ``0:10``, ``:10`` or ``5:``."""
    match = _RANGE.fullmatch(text.strip())
    if match is None:
        raise typer.BadParameter(
            f"expected a number or a range such as 0:10, got {text!r}", param_hint=option
        )
    if match[1] is not None:
        return int(match[1])
    return slice(*(int(end) if end else None for end in match.groups()[1:]))


def parse_factors(axes: str | None, factors: str | None) -> Mapping[str, int]:
    """Factors of levels by axis, from ``--factors z=2,y=4,x=4``, or from ``--axes y,x``, which are halved."""
    from shardwright.array.level_shapes import HALVED

    if axes is None:
        return HALVED if factors is None else parse_sizes("--factors", factors)
    if factors is not None:
        raise typer.BadParameter("halves these axes: give it or --factors", param_hint="--axes")
    names = [part.strip() for part in axes.split(",")]
    if "" in names or len(set(names)) != len(names):
        raise typer.BadParameter(f"expected axes such as y,x, each once, got {axes!r}", param_hint="--axes")
    return dict.fromkeys(names, 2)


def parse_method(text: str) -> Method:
    from shardwright.array.spec import METHODS

    for method in METHODS:
        if text == method:
            return method
    raise typer.BadParameter(f"expected {', '.join(METHODS)}, got {text!r}", param_hint="--method")


def parse_chain(option: str, text: str) -> list[Any]:
    """A codec chain as zarr.json has it. Raises typer's usage error."""
    try:
        chain = parse_json(text)
    except ValueError as error:
        raise typer.BadParameter(f"not JSON: {error}", param_hint=option) from None
    if not isinstance(chain, list):
        raise typer.BadParameter(f"expected a JSON list of codecs, got {text!r}", param_hint=option)
    return chain


def parse_codec(text: str) -> Blosc | Zstd | Gzip | None:
    """``blosc:zstd:3:bitshuffle``, ``zstd:1``, ``gzip``, ``none``. Raises typer's usage error."""
    from shardwright.array.spec import Blosc, Gzip, Zstd

    name, *rest = text.split(":")
    try:
        if name == "none" and not rest:
            return None
        if name == "zstd" and len(rest) <= 1:
            return Zstd.model_validate({"level": int(rest[0])} if rest else {})
        if name == "gzip" and len(rest) <= 1:
            return Gzip.model_validate({"level": int(rest[0])} if rest else {})
        if name == "blosc" and len(rest) <= 3:
            facts = dict(zip(("cname", "clevel", "shuffle"), rest, strict=False))
            return Blosc.model_validate(facts)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {' '.join(str(error).split())}", param_hint="--codec") from None
    raise typer.BadParameter(
        f"expected one of zstd:5, gzip:6, blosc:zstd:5, none, got {text!r}", param_hint="--codec"
    )


def parse_size(option: str, text: str) -> int:
    from shardwright.config.quantities import parse_size_bytes

    try:
        return parse_size_bytes(int(text) if text.isdecimal() else text)
    except ValueError as error:
        raise typer.BadParameter(f"{text!r}: {error}", param_hint=option) from None
