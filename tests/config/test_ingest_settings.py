"""The settings of ingest are those of the configuration, field by field."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path

from shardwright.array.acquisition_spec import AcquisitionSpec
from shardwright.config.model import Config, Ingest, Reliability
from shardwright.ingest import IngestSettings
from shardwright.model.write_settings import WriteSettings

INGEST = {
    "endpoints": ["ipc:///run/other/in.sock", "tcp://127.0.0.1:5555"],
    "insecure": True,
    "group": "microscopists",
    "heartbeat_ms": 200,
    "session_timeout_ms": 3000,
    "max_message_bytes": 1 << 20,
    "max_sessions": 5,
    "max_sessions_per_client": 2,
    "max_connections": 7,
    "handshake_timeout_ms": 400,
    "allow_client_specs": False,
}
RELIABILITY = {
    "durability": "durable",
    "store_within_ms": 70,
    "sync_interval_ms": 80,
    "encode_check": "all",
    "overload": "drop",
    "on_full": "spill",
    "on_duplicate": "fail",
    "resume_timeout_ms": 90,
}
STREAM = {
    "name": "cam0",
    "ring_frames": 64,
    "overload": "fail",
    "on_full": "block",
    "array": {
        "dtype": "uint16",
        "dimensions": [
            {"name": "t", "chunk_size": 2},
            {"name": "y", "count": 8, "chunk_size": 8},
            {"name": "x", "count": 8, "chunk_size": 8},
        ],
    },
}


def test_every_field_of_ingest_has_the_value_of_the_configuration(tmp_path: Path) -> None:
    default = Config.model_validate({"output": {"root": tmp_path}})
    config = Config.model_validate(
        {
            "output": {
                "root": tmp_path,
                "io": "pwrite",
                "min_ratio": 1.5,
                "spill_root": tmp_path / "spill",
                "ballast": 1 << 20,
                "low_water": 2 << 20,
            },
            "memory": {"budget": 1 << 30},
            "ingest": INGEST,
            "reliability": RELIABILITY,
            "streams": [STREAM],
        }
    )
    settings = config.ingest_settings(None)
    of_ingest = {field.name for field in fields(IngestSettings)} & Ingest.model_fields.keys() - {
        "ring_socket"
    }
    of_write = {field.name for field in fields(WriteSettings)} & Reliability.model_fields.keys()
    assert len(of_ingest) == 10
    assert len(of_write) == 7
    for name in of_ingest:
        assert getattr(settings, name) == getattr(config.ingest, name) != getattr(default.ingest, name), name
    for name in of_write:
        expected = getattr(config.reliability, name)
        assert getattr(settings.write, name) == expected != getattr(default.reliability, name), name
    assert settings.ring_socket == Path("/run/other/in.sock.ring")
    assert settings.resume_timeout_ms == 90
    assert settings.memory_budget_bytes == 1 << 30
    assert settings.output_root == tmp_path
    assert (settings.write.io, settings.write.ballast_bytes) == ("pwrite", 1 << 20)
    assert settings.write.min_ratio == 1.5
    assert (settings.write.low_water_bytes, settings.write.spill_root) == (2 << 20, tmp_path / "spill")
    (stream,) = settings.streams
    assert (stream.name, stream.spec, stream.ring_frames) == (
        "cam0",
        AcquisitionSpec(array=config.streams[0].array),
        64,
    )
    assert (stream.write.overload, stream.write.on_full, stream.write.spill_root) == ("fail", "block", None)
    assert stream.write.durability == "durable"
