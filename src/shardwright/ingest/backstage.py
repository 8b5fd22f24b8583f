"""The slow calls behind an opening: each waits for a disk or for memory, and is made in a thread of
``opening.py``."""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from shardwright.array.parse import parse_spec
from shardwright.model.errors import OutputExistsError, ResumeError, ShardwrightError
from shardwright.shard.manifest import read_manifest
from shardwright.storage.message_memory import make_ready

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from shardwright.acquire.workers import WorkerPool
    from shardwright.array.spec import ArraySpec
    from shardwright.storage.ring import Ring, SpareRing

    from .acquisition_like import AcquisitionLike
    from .admission import Admission, Admitted
    from .connection import Client

WORKSPACE = ".shardwright"


@dataclass(frozen=True)
class Backstage:
    """``open_acquisition(path, spec, limits, pool, wake, settings)`` makes a store,
    ``resume_acquisition(path, pool, wake, settings, limits_of)`` takes one up from disk."""

    pool: WorkerPool
    wake: Callable[[], None]
    admission: Admission
    rings: SpareRing
    open_acquisition: Callable[..., AcquisitionLike]
    resume_acquisition: Callable[..., AcquisitionLike]

    def create(
        self, admitted: Admitted, client: Client, transport: str
    ) -> tuple[AcquisitionLike, Ring | None]:
        """The ring's memory, then the store and its first shards. The ingest thread owns both afterwards."""
        ring = self._memory(client, admitted.limits.ring_frames, admitted.limits.frame_bytes, transport)
        try:
            return self.open_acquisition(
                admitted.path, admitted.spec, admitted.limits, self.pool, self.wake, admitted.settings
            ), ring
        except BaseException as error:
            if ring is not None:
                ring.close()
            if isinstance(error, OutputExistsError):
                raise taken(admitted.path, unfinished=(admitted.path / WORKSPACE).exists()) from None
            raise

    def hand_over(
        self,
        acquisition: AcquisitionLike,
        client: Client,
        ring_slots: int,
        transport: str,
        *,
        to_another: bool,
    ) -> Ring | None:
        ring = self._memory(client, ring_slots, acquisition.limits.frame_bytes, transport)
        try:
            if to_another:
                acquisition.new_client()
        except BaseException:
            if ring is not None:
                ring.close()
            raise
        return ring

    def _memory(self, client: Client, ring_slots: int, frame_bytes: int, transport: str) -> Ring | None:
        """For as many frames as the client may have on the way: its ring, or none and what messages will
        take."""
        if transport == "shm":
            return self.rings.take(client, ring_slots * frame_bytes)
        self.rings.release()  # its memory was admitted for something else
        make_ready(ring_slots * frame_bytes)
        return None

    def recover(self, path: Path) -> AcquisitionLike:
        if not path.exists():
            raise ResumeError(
                "there is nothing to take up again", expected="an unfinished acquisition", got=str(path)
            )
        root = path.parent
        settings = self.admission.settings_found(root, _spec_found(path))
        return self.resume_acquisition(
            path, self.pool, self.wake, settings, partial(self.admission.limits_found, root)
        )


def _spec_found(path: Path) -> ArraySpec | None:
    try:
        return parse_spec(read_manifest(path / WORKSPACE).spec)
    except ShardwrightError:
        return None  # whoever resumes it will say what is wrong


def taken(path: Path, *, unfinished: bool) -> OutputExistsError:
    hint = "It is unfinished: acquire(..., reopen=True) goes on with it" if unfinished else None
    return OutputExistsError(
        "the output exists", expected="a name that is not taken", got=str(path), hint=hint
    )
