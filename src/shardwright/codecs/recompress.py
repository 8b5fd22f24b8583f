"""The codec by which finished chunks are compressed once more: as users name it (``zstd:5``), and which of
these an array's metadata cover, so that readers need no new metadata.

    blosc array     any compressor, level and filter of Blosc: each chunk's own header says how to decode it
    zstd, gzip      another level
"""

from __future__ import annotations

import re
from typing import Any

from shardwright.array.spec import Blosc, Gzip, Zstd
from shardwright.model.errors import ConfigError

from .parameters import BLOSC_COMPRESSORS

DEFAULT_LEVEL = 5
AS_CONFIGURED = "codec"  # in place of a compressor's name: as the array's metadata say
_NAME = re.compile(r"([^:]+)(?::([0-9]{1,9}))?")  # int refuses a number of thousands of digits


def parse_recompress(text: str) -> dict[str, Any]:
    """``zstd:5`` as ``pack_shard`` takes it; ``clevel`` None: ``DEFAULT_LEVEL``. Raises ``ConfigError``."""
    match = _NAME.fullmatch(text)
    if match is None or (match[1] == AS_CONFIGURED and match[2]):
        raise ConfigError(
            "recompress does not name a codec",
            expected="CNAME or CNAME:LEVEL, such as zstd:5, or codec alone",
            got=f"{text:.80}",
        )
    return {"cname": match[1], "clevel": int(match[2]) if match[2] else None, "shuffle": None}


def codec_within(compressor: str | None, cname: str, level: int, shuffle: str) -> Blosc | Zstd | Gzip | None:
    """The codec ``cname`` for an array whose chunks are compressed by ``compressor``; None where its metadata
    do not cover it. Raises ``ValueError`` for a level or filter that does not exist."""
    if compressor == "blosc" and cname in BLOSC_COMPRESSORS:
        return Blosc.model_validate({"cname": cname, "clevel": level, "shuffle": shuffle})
    if compressor == cname == "zstd":
        return Zstd.model_validate({"level": level})
    if compressor == cname == "gzip":
        return Gzip.model_validate({"level": level})
    return None


def is_covered(codec: Blosc | Zstd | Gzip | None, wish: dict[str, Any]) -> bool:
    """Returns whether the metadata of an array with ``codec`` cover a ``wish`` of ``parse_recompress``."""
    cname, level = wish["cname"], wish["clevel"]
    if cname == AS_CONFIGURED:
        return True
    try:
        within = codec_within(
            None if codec is None else codec.name, cname, DEFAULT_LEVEL if level is None else level, "shuffle"
        )
    except ValueError:
        return False
    return within is not None
