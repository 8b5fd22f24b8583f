"""Random histories of one stream: links cut and mended, daemons killed and replaced, frames held back; in the
end every frame is where it belongs, and none has reached one daemon's pipeline twice.
``SHARDWRIGHT_CHAOS=500`` runs that many."""

from __future__ import annotations

import os
import threading
from random import Random

import numpy as np
import pytest

import shardwright as sw
from shardwright.ingest import StreamSettings
from shardwright.model.write_settings import WriteSettings

HISTORIES = int(os.environ.get("SHARDWRIGHT_CHAOS", "12"))
FRAMES = 240


@pytest.mark.parametrize("seed", range(HISTORIES))
def test_a_stream_survives_its_history(start, double, spec_of, frames_of, wait, proxy, seed: int):
    random = Random(seed)
    transport, overload = random.choice(("shm", "message")), random.choice(("block", "block", "drop"))
    policy = StreamSettings(
        "cam0", spec_of(chunk=1), random.choice((8, 20, 64)), WriteSettings(overload=overload)
    )
    daemon = start(policy, doubled=double, session_timeout_ms=2000)
    link = proxy(daemon.tcp)
    frames, path = frames_of(FRAMES), daemon.root / "a.ome.zarr"
    with (
        sw.connect(link.endpoint, transport=transport) as connection,
        connection.acquire("a", stream="cam0") as stream,
    ):
        done = threading.Event()

        def camera() -> None:
            for i, frame in enumerate(frames):
                stream.append(frame, frame_id=i)
                if i % 40 == 7:
                    done.wait(0.02)
            done.set()

        thread = threading.Thread(target=camera)
        thread.start()
        for _ in range(random.randrange(2, 9)):
            match random.randrange(5):
                case 0:
                    double.holding = not double.holding
                case 1:
                    link.cut()
                    link.mend()
                case 2:
                    link.freeze()
                    done.wait(random.random() / 50)
                    link.mend()
                case 3:
                    daemon.kill()
                    daemon = start(
                        policy,
                        doubled=double,
                        root=daemon.root,
                        adopt=[path] if random.random() < 0.7 else [],
                        session_timeout_ms=2000,
                    )
                    link.mend(daemon.tcp)
                case 4:
                    reconnects = stream.reconnects
                    link.cut()
                    link.mend()
                    wait(lambda reconnects=reconnects: stream.reconnects > reconnects)
            done.wait(random.random() / 20)
        double.holding = False
        thread.join()
        stream.flush()
    disk = double.disks[path]
    dropped = {sequence for sequence, place in disk.place_of.items() if place < 0}
    assert sorted(disk.place_of) == list(range(FRAMES))
    assert disk.frames == {i: frame.tobytes() for i, frame in enumerate(frames) if i not in dropped}
    assert len(dropped) == stream.frames_dropped == stream.receipt.frames_dropped
    assert overload == "drop" or not dropped
    assert not np.count_nonzero(
        [len(set(made.submitted)) != len(made.submitted) for made in daemon.acquisitions]
    )
