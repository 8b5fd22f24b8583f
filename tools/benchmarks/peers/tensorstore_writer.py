"""tensorstore: whole shards, the next one collected while the last is written."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import tensorstore

from benchmarks.peers import Contender, check_last_shard, tree_bytes


class TensorStore(Contender):
    def start(self, folder: Path) -> None:
        case = self.case
        limits = {
            "data_copy_concurrency": {"limit": case.threads},
            "file_io_concurrency": {"limit": case.threads},
            "file_io_sync": False,
        }
        self._context = tensorstore.Context(limits)
        self._buffers = [np.zeros(case.shard, np.uint16) for _ in range(2)]

    def write(self, path: Path) -> int:
        case = self.case
        file = {"driver": "file", "path": str(path)}
        spec = {"driver": "zarr3", "kvstore": file, "metadata": case.zarr_json()}
        store = tensorstore.open(spec, create=True, context=self._context).result()
        pending: list[Any] = [None, None]
        for i in range(case.frames):
            shard, place = divmod(i, case.shard[0])
            buffer = self._buffers[shard % 2]
            if place == 0 and pending[shard % 2] is not None:
                pending[shard % 2].result()
            buffer[place] = self.frame(i)
            if place == case.shard[0] - 1:
                pending[shard % 2] = store[i + 1 - case.shard[0] : i + 1].write(
                    buffer, can_reference_source_data_indefinitely=True
                )
        for write in pending:
            if write is not None:
                write.result()
        return tree_bytes(path)

    def verify(self, path: Path) -> None:
        check_last_shard(path, self, reader="zarr-python")
