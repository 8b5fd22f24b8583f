"""zarr-python, alone and with the codec pipeline of zarrs: whole shards."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar

import numpy as np
import zarr
from zarr.codecs import BloscCodec

from benchmarks.peers import Contender, check_last_shard, tree_bytes


class ZarrPython(Contender):
    pipeline: ClassVar[dict[str, str]] = {}

    def start(self, folder: Path) -> None:
        threads = self.case.threads
        self._configured = zarr.config.set(
            {"threading.max_workers": threads, "async.concurrency": 2 * threads, **self.pipeline}
        )
        self._buffer = np.zeros(self.case.shard, np.uint16)

    def write(self, path: Path) -> int:
        case = self.case
        entry = case.blosc()
        blosc = None if entry is None else BloscCodec.from_dict(entry)
        array = zarr.create_array(
            path,
            shape=case.shape_of_array,
            dtype="uint16",
            chunks=case.chunk,
            shards=case.shard,
            compressors=blosc,
            filters=None,
            fill_value=0,
        )
        for i in range(case.frames):
            place = i % case.shard[0]
            self._buffer[place] = self.frame(i)
            if place == case.shard[0] - 1:
                array[i + 1 - case.shard[0] : i + 1] = self._buffer
        return tree_bytes(path)

    def verify(self, path: Path) -> None:
        check_last_shard(path, self)

    def stop(self) -> None:
        self._configured.__exit__(None, None, None)


class Zarrs(ZarrPython):
    pipeline: ClassVar[dict[str, str]] = {"codec_pipeline.path": "zarrs.ZarrsCodecPipeline"}
