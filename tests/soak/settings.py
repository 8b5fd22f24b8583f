"""What a soak is told, and the daemon's configuration that follows from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

SHAPE = (512, 512)
POLL_S = 0.05
FRAME_BYTES = SHAPE[0] * SHAPE[1] * 2
PATIENT, LIVE = "patient", "live"  # the cameras, and their streams
# of one camera that lie on the disk: the one it sends, and those that are being judged
ACQUISITIONS_AT_A_TIME = 3
DISK_SHARE = 16  # one acquisition takes at most this part of the disk, encoded badly

# One camera waits for a slow or full disk and loses nothing. The other cannot wait: it drops what it cannot
# hand over, and its shards may spill.
CONFIG = """\
output: {{root: {root}, spill_root: {spill}, create: true, in_memory: true, ballast: 8MiB, low_water: 4KiB}}
ingest: {{endpoints: ["ipc://{sockets}/in.sock"]}}
memory: {{budget: 2GiB}}
reliability: {{store_within_ms: 500, sync_interval_ms: 500, resume_timeout_ms: 10000}}
http: {{enabled: true, listen: "127.0.0.1:*"}}
streams:
  - name: patient
    overload: block
    on_full: block
    array: &array
      dtype: uint16
      dimensions:
        - {{name: t, chunk_size: 16, shard_size_chunks: 4}}
        - {{name: y, count: {height}, chunk_size: 256, shard_size_chunks: 2}}
        - {{name: x, count: {width}, chunk_size: 256, shard_size_chunks: 2}}
      codec: {{name: blosc, cname: lz4, clevel: 1, shuffle: shuffle}}
  - name: live
    overload: drop
    on_full: spill
    array: *array
"""


@dataclass(frozen=True)
class Settings:
    """``faults`` are taken in turn, each round in another order that ``seed`` draws. ``load``: the cameras'
    rate; a part of what can be kept up."""

    seconds: float
    faults: tuple[str, ...]
    fault_every_s: float = 60.0
    hold_s: float = 5.0  # how long a disk stays stuck or full, and a flood goes on
    measure_s: float = 12.0
    load: float = 0.8
    seed: int = 0
    disk_bytes: int = 8 << 30

    @property
    def faults_in_all(self) -> int:
        """As many as fit into the time after the measurement, the last one followed by some time; at least
        one of each."""
        return max(len(self.faults), int((self.seconds - self.measure_s) / self.fault_every_s))

    @property
    def frames(self) -> int:
        """Of one acquisition."""
        return max(64, self.disk_bytes // DISK_SHARE // FRAME_BYTES)


@dataclass(frozen=True)
class Places:
    """``work``: evidence, kept when something is wrong. ``sockets``: a folder with a short name. ``root``:
    where stores are written."""

    work: Path
    sockets: Path
    root: Path
    spill: Path = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "spill", self.work / "spill")

    @property
    def config(self) -> Path:
        return self.work / "rig.yaml"

    @property
    def endpoint(self) -> str:
        return f"ipc://{self.sockets}/in.sock"

    def store(self, name: str) -> Path:
        return self.root / f"{name}.ome.zarr"

    def write_config(self) -> None:
        text = CONFIG.format(
            root=self.root, spill=self.spill, sockets=self.sockets, height=SHAPE[0], width=SHAPE[1]
        )
        self.config.write_text(text, encoding="utf-8")
