"""Good and bad YAML: what the loader makes of it, and that every refusal names the line and the field."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from shardwright.array.spec import Levels
from shardwright.config.load import MOST_ERRORS, load_config, parse_config
from shardwright.model.errors import ConfigError, ShardwrightError, error_from_dict

if TYPE_CHECKING:
    from shardwright.array.acquisition_spec import AcquisitionSpec

GOOD = """\
version: 1
output: {root: ./data}
ingest:
  endpoints: ["ipc://./x.sock", "tcp://127.0.0.1:5555"]
  max_message_bytes: 16MiB
  heartbeat_ms: 500
  insecure: true
workers: {threads: 3}
memory: {budget: 1.5GiB}
streams:
  - name: cam0
    frame_rate_hz: 1e2
    ring_frames: auto
    array:
      dtype: uint16
      fill_value: 7
      codec: {name: blosc, cname: zstd}
      dimensions:
        - {name: t, chunk_size: 16}
        - &side {name: y, count: 64, chunk_size: 32}
        - {name: x, count: 64, chunk_size: 32}
"""


def test_a_good_file(tmp_path: Path) -> None:
    file = tmp_path / "rig.yaml"
    file.write_text(GOOD)
    config = load_config(file).config
    assert config.output.root == tmp_path / "data"
    assert config.ingest.endpoints == (f"ipc://{tmp_path}/x.sock", "tcp://127.0.0.1:5555")
    assert config.ingest.max_message_bytes == 16 * 2**20
    assert config.memory.budget == 3 * 2**29
    assert config.workers.count == 3
    (stream,) = config.streams
    assert stream.frame_rate_hz == 100.0
    assert stream.array.frame_shape == (64, 64)
    assert stream.array.fill_value == 7


def test_a_stream_names_its_axes_as_they_are_stored_and_the_order_of_the_frames() -> None:
    axes = "        - {name: t, chunk_size: 16}\n"
    more = (
        axes + "        - {name: c, count: 2, chunk_size: 1}\n        - {name: z, count: 9, chunk_size: 1}\n"
    )
    text = GOOD.replace(axes, more).replace(
        "    array:", "    images: [a, b]\n    order: [t, p, z, c]\n    array:"
    )
    (stream,) = parse_config(text).config.streams
    (array,) = stream.acquisition.distinct_arrays
    assert [d.name for d in array.dimensions] == ["t", "z", "c", "y", "x"]
    assert array.storage_order == ("t", "c", "z", "y", "x")
    old = text.replace("order: [t, p, z, c]", "order: [t, p, c, z]").replace(
        "dtype: uint16", "dtype: uint16\n      storage_order: [t, z, c, y, x]"
    )
    (array,) = parse_config(old).config.streams[0].acquisition.distinct_arrays
    assert array.storage_order == ("t", "z", "c", "y", "x")
    with pytest.raises(ConfigError, match="every frame axis of every image once"):
        parse_config(text.replace("[t, p, z, c]", "[t, p, z]"))


CAM_B = """{dtype: uint8, dimensions: [{name: t, chunk_size: 4}, {name: y, count: 32, chunk_size: 32},
       {name: x, count: 32, chunk_size: 32}], levels: {count: 2, method: max, factors: {y: 4, x: 4}},
       channels: [{name: GFP, color: "00FF00", window: [90, 200.5]}], frame_fields: []}"""


def acquisition_with(stream: str = "", array: str = "") -> AcquisitionSpec:
    text = GOOD.replace("    array:", f"{stream}    array:").replace(
        "      fill_value: 7\n", f"      fill_value: 7\n{array}"
    )
    return parse_config(text).config.streams[0].acquisition


@pytest.mark.parametrize(
    "images",
    [
        f"images: [camA, {{name: camB, array: {CAM_B}}}]",
        f"images: [{{name: camA}}, {{name: camB, array: {CAM_B}}}]",
        f"images: {{camA: null, camB: {CAM_B}}}",
        f"order: [t, p]\n    images: {{camA: null, camB: {CAM_B}}}",
    ],
)
def test_two_cameras_of_other_pixels_and_levels(images: str) -> None:
    spec = acquisition_with(f"    {images}\n")
    one, two = spec.arrays
    assert spec.names == ("camA", "camB")
    assert (one.dtype, one.level_count, two.dtype, two.frame_shape) == ("uint16", 0, "uint8", (32, 32))
    assert two.levels == Levels(count=2, method="max", factors={"y": 4, "x": 4})
    assert two.channels[0].window == (90, 200.5)


@pytest.mark.parametrize(
    ("levels", "meant"),
    [
        ("2", Levels(count=2)),
        ("{count: 2, method: max, factors: {y: 2, x: 2}}", Levels(count=2, method="max")),
        ("{count: 1, factors: {x: 8}}", Levels(count=1, factors={"x": 8})),
        ("0", None),
    ],
)
def test_levels_as_a_number_and_as_a_mapping(levels: str, meant: Levels | None) -> None:
    assert acquisition_with(array=f"      levels: {levels}\n").arrays[0].levels == meant


@pytest.mark.parametrize("rows", ["2", "[A, B]"])
@pytest.mark.parametrize("columns", ["2", "['1', '2']"])
def test_a_plate_of_so_many_wells_and_of_named_ones(rows: str, columns: str) -> None:
    spec = acquisition_with(f"    plate: {{rows: {rows}, columns: {columns}}}\n")
    assert spec.names == ("A/1/0", "A/2/0", "B/1/0", "B/2/0")


def test_attributes_of_the_store_and_of_an_image_that_has_an_order() -> None:
    spec = acquisition_with(
        "    attributes: {sample: [1, {b: null}]}\n    order: [t, p]\n"
        "    images: [a, {name: b, attributes: {side: [left]}}]\n"
    )
    assert [spec.attributes_of(image) for image in (None, 0, 1)] == [
        {"sample": [1, {"b": None}]},
        {},
        {"side": ["left"]},
    ]


def test_a_stream_without_shards() -> None:
    text = GOOD.replace("chunk_size: 16", "chunk_size: 16, shard_size_chunks: null")
    text = text.replace("chunk_size: 32", "chunk_size: 32, shard_size_chunks: null")
    (stream,) = parse_config(text).config.streams
    assert [d.shard_size_chunks for d in stream.array.dimensions] == [None] * 3
    assert stream.array.actual_index_location == "none"


def test_only_the_output_root_is_required() -> None:
    config = parse_config("output: {root: /data}").config
    assert config.output.root == Path("/data")
    assert config.ingest.endpoints == ("ipc:///run/shardwright/ingest.sock",)
    assert config.workers.count >= 1
    assert config.streams == ()


def test_reliability_has_defaults_and_a_stream_may_have_its_own() -> None:
    text = GOOD.replace("root: ./data", "root: ./data, spill_root: ./more, ballast: 8MiB")
    config = parse_config(
        text.replace("ring_frames: auto", "durability: durable\n    on_full: spill\n    on_duplicate: fail")
    ).config
    common, own = config.reliability, config.reliability_of(config.streams[0])
    assert (common.durability, common.overload, common.on_full, common.on_duplicate) == (
        "stored",
        "block",
        "block",
        "count",
    )
    assert (common.store_within_ms, common.sync_interval_ms, common.resume_timeout_ms) == (1000, 1000, 60_000)
    assert (own.durability, own.overload, own.on_full, own.on_duplicate) == (
        "durable",
        "block",
        "spill",
        "fail",
    )
    assert config.spills
    assert (config.output.spill_root, config.output.ballast, config.output.low_water) == (
        Path.cwd() / "more",
        8 * 2**20,
        2**30,
    )


def test_compaction_is_off_unless_it_is_asked_for() -> None:
    assert not parse_config(GOOD).config.compaction.enabled
    compaction = parse_config(GOOD + "compaction: {enabled: true, rate: 50MB}").config.compaction
    assert (compaction.enabled, compaction.rate, compaction.order, compaction.recompress) == (
        True,
        50_000_000,
        "row_major",
        None,
    )
    assert (compaction.workers, compaction.after_s, compaction.pause_above) == (1, 60, 0.25)


def test_paths_count_from_the_file_not_from_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "etc").mkdir()
    (tmp_path / "elsewhere").mkdir()
    file = tmp_path / "etc" / "rig.yaml"
    file.write_text("output: {root: ../data}\ningest: {endpoints: ['ipc://../run/in.sock']}")
    monkeypatch.chdir(tmp_path / "elsewhere")
    config = load_config(file).config
    assert config.output.root == tmp_path / "data"
    assert config.ingest.endpoints == (f"ipc://{tmp_path}/run/in.sock",)


def test_yaml_12_words_and_numbers() -> None:
    config = parse_config(
        "output: {root: no}\nstreams: [{name: 'on', frame_rate_hz: 1e3, array: {dtype: uint8, dimensions: "
        "[{name: y, count: 0x10, chunk_size: 010}, {name: x, count: 16, chunk_size: 8}]}}]"
    ).config
    assert config.output.root.name == "no"
    assert config.streams[0].frame_rate_hz == 1000.0
    assert [d.count for d in config.streams[0].array.dimensions] == [16, 16]
    assert config.streams[0].array.dimensions[0].chunk_size == 10, "010 is ten in YAML 1.2, not eight"


def test_aliases_stand_for_what_they_name() -> None:
    text = GOOD.replace(
        "{name: x, count: 64, chunk_size: 32}", "{name: x, count: 64, chunk_size: 32}\n        - *side"
    )
    with pytest.raises(ConfigError, match="names must differ"):
        parse_config(text)


IMAGES = [
    ("[a, a]", "images: names must differ; got 'a' twice"),
    ("[a, {name: b, arry: {}}]", "images[1].arry: is not a known key; expected one of name, array"),
    ('[a, "\\t"]', "images[1]: is not valid; expected one line of printable characters"),
    ("{a: {dtyp: uint8}}", "images.a.dtyp: is not a known key; expected one of dtype"),
    ("{a: null, b: {dtype: uint8}}", "images.b.dimensions: is missing"),
    (f"{{a: {CAM_B.replace('uint8', '<u2')}}}", "images.a.dtype: is not valid; expected one of bool"),
    (
        f"[a, {{name: b, array: {CAM_B.replace('uint8', '<u2')}}}]",
        "images[1].array.dtype: is not valid; expected one of bool",
    ),
    (f"{{a: null, b: {CAM_B.replace('[]', '[z_mm]')}}}", "images: frame_fields must be the same"),
    ("5", "images: is not valid; expected their names, such as"),
    ("[5]", "images[0]: is not valid; expected a mapping; got 5"),
    ("[a]\n    order: [t]", "order: names the axes of several images and 'p'"),
    ("[a]\n    attributes: {ome: 1}", "attributes: 'ome' is written by shardwright"),
    ("[{name: a, path: ../b}]", "images[0].path: not a usable path in a store"),
    ("[{name: a, path: p}, {name: b, path: P}]", "images: 'a' and 'b' would have one folder"),
    ("[]\n    plate: {rows: 1, columns: 1, fields: [a, A]}", "plate.fields: names must differ"),
    ("[a]\n    plate: {rows: 65, columns: 1}", "plate.rows: is not valid; expected 1 to 64; got 65"),
    ("[a]\n    plate: {rows: [A, a], columns: 1}", "plate.rows: names must differ"),
]


@pytest.mark.parametrize(("images", "says"), IMAGES)
def test_a_wrong_image_is_named(images: str, says: str) -> None:
    with pytest.raises(ConfigError) as caught:
        acquisition_with(f"    images: {images}\n")
    assert f": streams[0].{says}" in str(caught.value)
    assert "Value error" not in str(caught.value)


def test_a_stream_that_is_too_long_to_be_sent() -> None:
    names = ", ".join(f"n{i:0127}" for i in range(3000))
    with pytest.raises(ConfigError, match=r"streams\[0\]: .*too long; expected at most 196608 bytes"):
        acquisition_with(f"    images: [{names}]\n")


# (what is replaced in GOOD, by what, the line, the field, what the message must also say)
BAD = [
    ("output: {root: ./data}", "", 1, "output", "is missing"),
    (
        "root: ./data",
        "rot: ./data",
        2,
        "output.rot",
        "is not a known key; expected one of root, io, chunk_order, partial_chunks, live, create,",
    ),
    ("root: ./data", "root: 7", 2, "output.root", "a folder; got 7"),
    ("version: 1", "version: 2", 1, "version", "expected 1; got 2"),
    ("version: 1", "version: 1\nversion: 1", 2, "version", "is given twice, first on line 1"),
    (
        "workers:",
        "worker:",
        8,
        "worker",
        "is not a known key; expected one of version, output, ingest, workers",
    ),
    ("threads: 3", "threads: 0", 8, "workers.threads", "'auto' or a whole number from 1 to 1024; got 0"),
    (
        "threads: 3",
        "threads: 1000000000",
        8,
        "workers.threads",
        "'auto' or a whole number from 1 to 1024; got 1000000000",
    ),
    (
        "ring_frames: auto",
        "ring_frames: 1048577",
        13,
        "streams[0].ring_frames",
        "'auto' or a whole number from 1 to 1048576; got 1048577",
    ),
    ("1.5GiB", "999999999999999TB", 9, "memory.budget", "above 0 and at most 2^60; got '999999999999999TB'"),
    (
        "1.5GiB",
        "1152921504606846977",
        9,
        "memory.budget",
        "above 0 and at most 2^60; got 1152921504606846977",
    ),
    (
        "frame_rate_hz: 1e2",
        "frame_rate_hz: 1e10",
        12,
        "streams[0].frame_rate_hz",
        "less than or equal to 1000000000",
    ),
    (
        "root: ./data",
        'root: "./da\\0ta"',
        2,
        "output.root",
        "at most 4095 bytes of text without null characters",
    ),
    (
        "root: ./data",
        f"root: {'d' * 5000}",
        2,
        "output.root",
        "at most 4095 bytes of text without null characters",
    ),
    (
        "root: ./data",
        f"root: {'d' * 256}",
        2,
        "output.root",
        "expected a path of at most 3072 bytes, 255 in each name",
    ),
    (
        "root: ./data",
        f"root: {'d/' * 2000}",
        2,
        "output.root",
        "expected a path of at most 3072 bytes, 255 in each name",
    ),
    ("ipc://./x.sock", "ipc://./x\\0.sock", 4, "ingest.endpoints[0]", "without null characters"),
    (
        "count: 64",
        f"count: {2**63}",
        20,
        "streams[0].array.dimensions[1].count",
        "less than or equal to 281474976710656",
    ),
    ("threads: 3", "threads: true", 8, "workers.threads", "got true"),
    ("threads: 3", "threads: '3'", 8, "workers.threads", "got '3'"),
    ("1.5GiB", "1.5 gigs", 9, "memory.budget", "64MiB or 4GiB"),
    ("1.5GiB", "-1", 9, "memory.budget", "got -1"),
    ("1.5GiB", "0.3B", 9, "memory.budget", "got '0.3B'"),
    ("tcp://127.0.0.1:5555", "tcp://127.0.0.1", 4, "ingest.endpoints[1]", "ipc://PATH or tcp://ADDRESS:PORT"),
    ("tcp://127.0.0.1:5555", "tcp://*:70000", 4, "ingest.endpoints[1]", "1 to 65535"),
    ("tcp://127.0.0.1:5555", "inproc://x", 4, "ingest.endpoints[1]", "got 'inproc://x'"),
    ("ipc://./x.sock", "ipc://@abstract", 4, "ingest.endpoints[0]", "ipc://PATH"),
    (
        "ipc://./x.sock",
        f"ipc:///tmp/{'s' * 120}",
        4,
        "ingest.endpoints[0]",
        "expected at most 107 bytes; got 125",
    ),
    ("tcp://127.0.0.1:5555", "ipc://x.sock", 4, "ingest.endpoints", "must differ"),
    (
        "heartbeat_ms: 500",
        "heartbeat_ms: 5000",
        3,
        "ingest.session_timeout_ms",
        "expected 15000 or more; got 10000",
    ),
    ("heartbeat_ms: 500", "heartbeat_ms: 1", 6, "ingest.heartbeat_ms", "greater than or equal to 10; got 1"),
    ("name: cam0", "name: ../cam0", 11, "streams[0].name", "got '../cam0'"),
    ("frame_rate_hz: 1e2", "frame_rate_hz: off", 12, "streams[0].frame_rate_hz", "number; got 'off'"),
    ("frame_rate_hz: 1e2", "frame_rate_hz: .inf", 12, "streams[0].frame_rate_hz", "finite"),
    ("dtype: uint16", "dtype: uint12", 15, "streams[0].array.dtype", "uint12"),
    ("dtype: uint16", "dtype: '<u2'", 15, "streams[0].array.dtype", "expected one of bool"),
    ("fill_value: 7", "fill_value: 70000", 16, "streams[0].array.fill_value", "70000 is not a uint16"),
    (
        "fill_value: 7",
        "fill_valu: 7",
        16,
        "streams[0].array.fill_valu",
        "is not a known key; expected one of dtype",
    ),
    ("fill_value: 7", "storage_order: [x, y, t]", 16, "streams[0].array.storage_order", "must end with"),
    (
        "cname: zstd",
        "cname: lz5",
        17,
        "streams[0].array.codec.cname",
        "'lz4', 'lz4hc', 'zstd' or 'zlib'; got 'lz5'",
    ),
    (
        "name: blosc, cname: zstd",
        "name: zstd, cname: zstd",
        17,
        "streams[0].array.codec.cname",
        "expected one of name, level",
    ),
    ("name: blosc", "name: lzma", 17, "streams[0].array.codec.name", "got 'lzma'"),
    (
        "workers:",
        "reliability: {durability: maybe}\nworkers:",
        8,
        "reliability.durability",
        "'stored' or 'durable'; got 'maybe'",
    ),
    (
        "workers:",
        "reliability: {overload: spill}\nworkers:",
        8,
        "reliability.overload",
        "'block', 'degrade', 'drop' or 'fail'; got 'spill'",
    ),
    (
        "workers:",
        "reliability: {sync_interval_ms: 0}\nworkers:",
        8,
        "reliability.sync_interval_ms",
        "greater than or equal to 1; got 0",
    ),
    (
        "workers:",
        "reliability: {on_full: spill}\nworkers:",
        2,
        "output",
        "on_full='spill' and spill_root belong together; expected a spill_root, on another disk",
    ),
    (
        "ring_frames: auto",
        "on_full: spill",
        2,
        "output",
        "on_full='spill' and spill_root belong together; expected a spill_root, on another disk",
    ),
    (
        "ring_frames: auto",
        "durability: accepted",
        13,
        "streams[0].durability",
        "'stored' or 'durable'; got 'accepted'",
    ),
    ("ring_frames: auto", "sync_interval_ms: 5", 13, "streams[0].sync_interval_ms", "is not a known key"),
    (
        "root: ./data",
        "root: ./data, spill_root: data",
        2,
        "output.spill_root",
        "must be another folder than that of the stores",
    ),
    ("root: ./data", "root: ./data, low_water: 5 bytes", 2, "output.low_water", "64MiB or 4GiB"),
    (
        "name: t, chunk_size: 16",
        "name: t, chunk_size: 16.5",
        19,
        "streams[0].array.dimensions[0].chunk_size",
        "got 16.5",
    ),
    ("name: t, chunk_size: 16", "name: t", 19, "streams[0].array.dimensions[0].chunk_size", "is missing"),
    (
        "name: t, chunk_size: 16",
        "name: x, chunk_size: 16",
        18,
        "streams[0].array.dimensions",
        "names must differ",
    ),
    (
        "name: y, count: 64",
        "name: y",
        18,
        "streams[0].array.dimensions",
        "the two axes of the frame itself need a count",
    ),
    ("- name: cam0", "- <<: {}\n    name: cam0", 11, "streams[0].<<", "is not a usable key"),
    ("- name: cam0", "- 5: 6\n    name: cam0", 11, "streams[0].5", "is not a usable key"),
    ("- name: cam0", "- !!python/object/new:os.system [x]\n  - name: cam0", 11, "streams[0]", "has a tag"),
    ("name: cam0", "name: !!int x", 11, "streams[0].name", "has a tag"),
    ("name: cam0", "name: &a [*a]", 11, "streams[0].name", "aliases expand without end"),
    (
        "  insecure: true\n",
        "",
        4,
        "ingest.endpoints",
        (
            "open to the whole network; expected curve beside it (shardwright keygen), or insecure: true; got "  # noqa: E501
            "tcp"
        ),
    ),
    (
        "insecure: true",
        "insecure: true\n  curve: {secret_key: k, clients: c}",
        7,
        "ingest.insecure",
        "contradicts curve",
    ),
    (
        "insecure: true",
        "curve: {secret_key: k}",
        7,
        "ingest.curve.clients",
        "is missing; expected Folder with the public key of each client",
    ),
    (
        "chunk_size: 16",
        "chunk_size: 16, shard_size_chunks: null",
        18,
        "streams[0].array.dimensions",
        "shard_size_chunks is null along t and not along others",
    ),
]


@pytest.mark.parametrize(
    ("old", "new", "line", "field", "says"), BAD, ids=[f"{b[2]}-{b[3]}-{i}" for i, b in enumerate(BAD)]
)
def test_a_bad_field_is_named_with_its_line(old: str, new: str, line: int, field: str, says: str) -> None:
    assert old in GOOD
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD.replace(old, new, 1), file="rig.yaml")
    assert str(caught.value).startswith(f"rig.yaml:{line}: {field}")
    assert says in str(caught.value)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "the file is empty"),
        ("just words", "not a configuration"),
        ("- 1", "not a configuration"),
        ("output: {root: x", "not YAML"),
        ("output: {root: x}\n\tstreams: []", "rig.yaml:2: not YAML"),
        ("output: {root: x}\n---\noutput: {root: x}", "not YAML"),
        ("a: *b", "not YAML: found undefined alias"),
        ("[" * 5000, "not YAML"),
        (b"\xff\xfe\x00", "not YAML"),
        ("output: {root: x}\nmemory: {budget: " + "9" * 50 + "}", "too long a number"),
        ('output: {root: "\\U00110000"}', "not YAML"),
        ('output: {root: "\\UFFFFFFFF"}', "not YAML"),
        (f"%YAML 1.{'1' * 5000}\n---\noutput: {{root: x}}", "not YAML"),
        (
            '\noutput: {root: "a\\ud800b"}',
            r"rig.yaml:2: output.root: has half of a pair of surrogates; got 'a\ud800b'",
        ),
        ('output:\n  root: x\n  "\\udc00": 1', r"rig.yaml:3: output.None: is not a usable key"),
    ],
)
def test_what_is_no_configuration_at_all(
    text: str | bytes, says: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "rig.yaml").write_bytes(text if isinstance(text, bytes) else text.encode())
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=r"^rig\.yaml:\d+: ") as caught:
        load_config(Path("rig.yaml"))
    assert says in str(caught.value)


def test_a_pair_of_surrogates_is_one_character(tmp_path: Path) -> None:
    """As JSON writes it, which is YAML as well."""
    text = json.dumps({"output": {"root": f"{tmp_path}/\U0001f52c"}})
    assert "\\ud83d\\udd2c" in text
    assert parse_config(text).config.output.root == tmp_path / "\U0001f52c"


def test_growing_aliases_are_stopped() -> None:
    levels = "\n".join(f"a{i}: &a{i} [{', '.join([f'*a{i - 1}'] * 10)}]" for i in range(1, 9))
    with pytest.raises(ConfigError, match="aliases expand without end"):
        parse_config(f"a0: &a0 [x]\n{levels}")


def test_a_missing_file() -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml: cannot read the configuration; got No such file"):
        load_config(Path("nowhere.yaml"))


def test_an_endless_file() -> None:
    with pytest.raises(ConfigError, match="too long for a configuration"):
        load_config(Path("/dev/zero"))


def others_of(error: ConfigError) -> list[ShardwrightError]:
    return [error_from_dict(other) for other in error.others]


def test_all_wrong_fields_are_named_at_once() -> None:
    text = (
        GOOD.replace("threads: 3", "threads: 0, thread: 1")
        .replace("name: cam0", "name: ''")
        .replace("count: 64", "count: 0")
    )
    with pytest.raises(ConfigError) as caught:
        parse_config(text)
    told = [str(error).split(";")[0] for error in (caught.value, *others_of(caught.value))]
    assert told == [
        "<text>:8: workers.thread: is not a known key",
        "<text>:8: workers.threads: is not valid",
        "<text>:11: streams[0].name: is not valid",
        "<text>:20: streams[0].array.dimensions[1].count: is not valid",
        "<text>:21: streams[0].array.dimensions[2].count: is not valid",
    ]
    assert caught.value.to_dict()["others"] == [error.to_dict() for error in others_of(caught.value)]


def test_all_other_spellings_of_a_dtype_are_named_at_once() -> None:
    stream = GOOD[GOOD.index("  - name: cam0") :].replace("&side ", "").replace("cam0", "cam1")
    with pytest.raises(ConfigError) as caught:
        parse_config((GOOD + stream).replace("dtype: uint16", "dtype: '<u2'"))
    assert ":15: streams[0].array.dtype: is not valid" in str(caught.value)
    (other,) = others_of(caught.value)
    assert ":26: streams[1].array.dtype: is not valid" in str(other)


def test_a_mistake_in_an_anchor_is_named_once() -> None:
    """Each alias repeats it, at the line of the anchor."""
    text = GOOD.replace("&side {name: y, count: 64", "&side {name: y, count: many")
    text = text.replace("- {name: t,", "- &t {name: t,")
    streams = "".join(
        f"  - {{name: m{n}, array: {{dtype: uint8, dimensions: [*t, *side, *side]}}}}\n" for n in range(2)
    )
    with pytest.raises(ConfigError) as caught:
        parse_config(text + streams)
    assert ":20: streams[0].array.dimensions[1].count: is not valid" in str(caught.value)
    assert (caught.value.hint, caught.value.others) == ("(4 more fields of this line: the same.)", ())


def test_very_many_wrong_fields_are_counted_in_the_end() -> None:
    with pytest.raises(ConfigError) as caught:
        parse_config(GOOD + "".join(f"wrong{i}: 1\n" for i in range(MOST_ERRORS + 7)))
    assert len(caught.value.others) == MOST_ERRORS - 1
    assert caught.value.others[-1]["hint"].endswith("(7 more fields are wrong.)")


def test_two_streams_of_one_name() -> None:
    stream = GOOD[GOOD.index("  - name: cam0") :].replace("&side ", "")
    with pytest.raises(ConfigError, match=r":22: streams\[1\]\.name: must differ .*got 'cam0' twice"):
        parse_config(GOOD + stream)


def test_no_stream_and_no_client_specs_is_no_daemon() -> None:
    with pytest.raises(ConfigError, match="must name at least one camera"):
        parse_config("output: {root: x}\ningest: {allow_client_specs: false}")
