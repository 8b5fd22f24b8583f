"""The JSON Schema accepts what the loader accepts, and the committed copy is the current one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from shardwright.config.json_schema import DIALECT, json_schema, schema_text
from shardwright.config.load import load_config, parse_config
from shardwright.config.source import Source
from shardwright.model.errors import ConfigError

CONFIGS = Path(__file__).parents[2] / "configs"
SHIPPED = sorted(file for file in CONFIGS.glob("*.yaml") if not file.stem.startswith("prometheus"))


def accepted_by_schema(document: Any) -> bool:
    return jsonschema.Draft202012Validator(json_schema()).is_valid(document)


def accepted_by_loader(document: Any) -> bool:
    try:
        parse_config(yaml.safe_dump(document))
    except ConfigError:
        return False
    return True


PLANE = [{"name": "y", "count": 64, "chunk_size": 32}, {"name": "x", "count": 64, "chunk_size": 32}]
OTHER = {
    "dtype": "uint8",
    "dimensions": PLANE,
    "levels": 2,
    "channels": [{"name": "DAPI", "color": "0000FF"}],
}


def with_array(**fields: Any) -> dict[str, Any]:
    return {
        "output": {"root": "d"},
        "streams": [{"name": "a", "array": {"dtype": "uint16", "dimensions": PLANE, **fields}}],
    }


def with_stream(**fields: Any) -> dict[str, Any]:
    document = with_array()
    document["streams"][0] |= fields
    return document


def test_the_schema_is_a_valid_schema_of_its_dialect() -> None:
    assert json_schema()["$schema"] == DIALECT
    jsonschema.Draft202012Validator.check_schema(json_schema())


def test_the_committed_schema_is_what_the_command_prints() -> None:
    assert (CONFIGS / "shardwright.schema.json").read_text() == schema_text(), (
        "run: shardwright schema > configs/shardwright.schema.json"
    )


def test_there_are_shipped_configs() -> None:
    assert {file.stem for file in SHIPPED} >= {"demo", "lightsheet", "timelapse-5d", "small-fast", "plate"}


@pytest.mark.parametrize("file", SHIPPED, ids=lambda file: file.stem)
def test_shipped_configs_fit_schema_and_loader(file: Path) -> None:
    is_one_of_init = file.stem == "minimal"  # beside what a user gets from it there is no schema
    schema = "# yaml-language-server: $schema=shardwright.schema.json\n"
    assert file.read_text().startswith(schema) != is_one_of_init
    jsonschema.Draft202012Validator(json_schema()).validate(Source.read(file).data)
    assert load_config(file).config.streams


AGREED = [
    (True, {"output": {"root": "d"}}),
    (False, {}),
    (False, {"output": {}}),
    (False, {"output": {"root": ""}}),
    (False, {"output": {"root": "d", "more": 1}}),
    *(
        (True, {"output": {"root": "d"}, "memory": {"budget": b}})
        for b in (1, 2**33, "4GiB", "1.5 GiB", "500MB", "8kB")
    ),
    *(
        (False, {"output": {"root": "d"}, "memory": {"budget": b}})
        for b in (0, -1, True, None, "4", "4G", "GiB", 1.5)
    ),
    *((True, {"output": {"root": "d"}, "workers": {"threads": t}}) for t in ("auto", 1, 64)),
    *((False, {"output": {"root": "d"}, "workers": {"threads": t}}) for t in ("Auto", 0, None, "1", True)),
    *(
        (True, {"output": {"root": "d"}, "ingest": {"endpoints": [e], "insecure": True}})
        for e in ("ipc://a", "ipc:///a/b", "tcp://*:1", "tcp://[::1]:5555", "tcp://eth0:*")
    ),
    *(
        (False, {"output": {"root": "d"}, "ingest": {"endpoints": e}})
        for e in ([], ["ipc://"], ["ipc://@a"], ["tcp://a"], ["udp://a:1"], [5], "ipc://a", None)
    ),
    *(
        (True, {"output": {"root": "d"}, "compaction": c})
        for c in (
            {},
            {
                "enabled": True,
                "order": "morton",
                "recompress": "zstd:5",
                "rate": "50MB",
                "workers": 2,
                "after_s": 0.5,
                "pause_above": 0.9,
            },
            {"recompress": "lz4hc"},
            {"recompress": "codec"},
            {"recompress": "zstd:19"},
            {"recompress": "lz4:0"},
            {"recompress": None, "rate": None},
        )
    ),
    *(
        (False, {"output": {"root": "d"}, "compaction": c})
        for c in (
            {"order": "hilbert"},
            {"recompress": "zstd:"},
            {"recompress": "codec:1"},
            {"recompress": "lzma:5"},
            {"rate": 0},
            {"workers": 0},
            {"after_s": -1},
            {"pause_above": 0},
            {"pause_above": 1},
            {"to": "s3://b/p"},
        )
    ),
    *(
        (True, {"output": {"root": "d"}, "notify": [{"events": ["disk_low"], **way}]})
        for way in (
            {"command": ["sendmail", "-t"], "message": "Subject: {event}\n\n{text}\n", "timeout_s": 0.5},
            {"post": "https://ntfy.example:8443/rig?a=b", "headers_file": "headers"},
            {"post": "http://[::1]", "command": None},
        )
    ),
    *(
        (False, {"output": {"root": "d"}, "notify": notify})
        for notify in (
            {},
            [{"command": ["a"]}],
            [{"events": [], "command": ["a"]}],
            [{"events": ["ready"], "command": ["a"]}],
            [{"events": ["disk_low"], "command": "a b"}],
            [{"events": ["disk_low"], "command": []}],
            [{"events": ["disk_low"], "command": ["a\0"]}],
            [{"events": ["disk_low"], "post": "ftp://a/b"}],
            [{"events": ["disk_low"], "post": "http://a:b@c/"}],
            [{"events": ["disk_low"], "post": "http://a/ b"}],
            [{"events": ["disk_low"], "command": ["a"], "timeout_s": 0}],
            [{"events": ["disk_low"], "command": ["a"]}] * 9,
        )
    ),
    (False, {"output": {"root": "d"}, "version": 2}),
    (True, with_array()),
    *(
        (True, with_array(codec=c))
        for c in (
            {},
            None,
            "none",
            "blosc",
            "zstd",
            "gzip",
            {"clevel": 5},
            {"name": "zstd"},
            {"name": "zstd", "level": -7},
            {"name": "gzip", "level": 9},
        )
    ),
    *(
        (False, with_array(codec=c))
        for c in (
            "lzma",
            "",
            {"level": 1},
            {"name": "zstd", "clevel": 1},
            {"name": "lzma"},
            {"clevel": 10},
            [],
            5,
        )
    ),
    *((True, with_array(dtype=d)) for d in ("bool", "int8", "float16", "float64")),
    *((False, with_array(dtype=d)) for d in ("<u2", "float", "uint12", 5, None)),
    *((False, with_array(chunk_checksum=c)) for c in (1, "true", None)),
    (True, with_array(attributes={"a": [1, {"b": None}]})),
    (False, with_array(dimensions=[])),
    *(
        (True, with_array(levels=levels))
        for levels in (0, 2, None, {"count": 2}, {"count": 2, "method": "max", "factors": {"y": 4, "x": 1}})
    ),
    *(
        (False, with_array(levels=levels))
        for levels in (-1, 33, True, "2", {}, {"count": 0}, [2], {"count": 1, "factors": {"y": 9}})
    ),
    *((True, with_array(channels=[c])) for c in ({"name": "DAPI"}, {"name": "a", "window": [0, 4095.5]})),
    *((True, with_array(channels=[{"label": "a", "color": c}])) for c in ("#0000ff", "00FF00", "Green")),
    *((False, with_array(channels=[{"name": "a", "color": c}])) for c in ("greenish", "##0000ff", "#00f")),
    (False, with_array(channels=[{"name": "a", "label": "a"}])),
    *((True, with_array(codec=c)) for c in ("lz4", "LZ4HC", "None")),
    *(
        (False, with_array(channels=c))
        for c in (["DAPI"], [{"name": ""}], [{"name": "a", "color": "reddish"}])
    ),
    (True, with_array(frame_json_bytes=512)),
    (False, with_array(frame_json_bytes=-1)),
    *(
        (True, with_stream(images=images))
        for images in (
            [],
            ["pos0", "pos1"],
            ["camA", {"name": "camB", "array": OTHER, "attributes": {"side": "left"}}],
            {"camA": None, "camB": OTHER},
        )
    ),
    *(
        (False, with_stream(images=images))
        for images in (
            2,
            "pos0",
            [""],
            [5],
            ["n" * 129],
            {"": None},
            {"camB": {"dtype": "uint8"}},
            {"camB": "uint8"},
            [{"name": "a", "arry": OTHER}],
            [{"name": "a", "array": {**OTHER, "dtype": "<u1"}}],
            {"a": {**OTHER, "dtype": "<u1"}},
            [{"name": "a", "attributes": {"ome": {}}}],
            *(
                [{"name": "a", "path": path}]
                for path in ("", "/a", "a//b", "../a", "a/.b", "a b", "a" * 129, 5)
            ),
        )
    ),
    *((True, with_stream(images=[{"name": "a", "path": path}])) for path in ("Pos0", "w.1/Pos-0_1", None)),
    *(
        (True, with_stream(plate=plate, **more))
        for plate, more in (
            ({"rows": 2, "columns": 3}, {}),
            ({"rows": ["A", "B"], "columns": 3, "fields": 4, "name": "screen"}, {}),
            ({"rows": 64, "columns": ["1", "12"]}, {}),
            ({"rows": 2, "columns": 2}, {"images": [{"name": "A/1/0", "attributes": {"dose": 5}}]}),
            ({"rows": 2, "columns": 2, "fields": ["left", "right"]}, {}),
            ({"rows": 1, "columns": 1, "acquisitions": [{"id": 0, "start": 5, "end": None}]}, {}),
            ({"rows": 1, "columns": 1, "acquisitions": [{"id": 0, "end": "2026-03-05T09:30:00+01:00"}]}, {}),
            ({"rows": 1, "columns": 1, "acquisitions": [{"id": 4, "fields": ["0"], "name": "day"}]}, {}),
        )
    ),
    *(
        (False, with_stream(plate={"rows": 1, "columns": 1, **more}))
        for more in (
            *(
                {"fields": fields}
                for fields in (0, True, None, "a", [], [1], ["a", "a"], ["a_b"], ["a" * 17])
            ),
            *({"acquisitions": each} for each in (1, [1], [{}], [{"id": -1}], [{"id": 0, "name": ""}])),
            *(
                {"acquisitions": [{"id": 0, "start": at}]}
                for at in (-1, 0.5, "2026-03-05", "2026-03-05T09:30")
            ),
        )
    ),
    *(
        (False, with_stream(plate={"rows": rows, "columns": 2}))
        for rows in (0, 65, "AB", "A", True, None, [], [1], ["A", "A"], ["../x"])
    ),
    (False, with_stream(plate={"rows": 2})),
    *(
        (accepted, with_array(dimensions=[{**d, "shard_size_chunks": s} for d in PLANE]))
        for accepted, s in ((True, None), (True, 1), (False, 0), (False, False), (False, "none"))
    ),
    (True, with_stream(images=["a", "b"], order=["p"])),
    (False, with_stream(images=["a", "b"], order="p")),
    (True, with_stream(attributes={"sample": {"id": 7, "tags": ["a"]}})),
    *((False, with_stream(attributes=a)) for a in ({"ome": {}}, {"shardwright": 1}, [], "a")),
]


@pytest.mark.parametrize(("accepted", "document"), AGREED)
def test_schema_and_loader_agree(accepted: bool, document: dict[str, Any]) -> None:
    assert accepted_by_schema(document) is accepted
    assert accepted_by_loader(document) is accepted
