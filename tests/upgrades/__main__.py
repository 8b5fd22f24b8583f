"""Makes the fixtures of this version of shardwright: ``python -m tests.upgrades``; with ``plate`` a store of
many images alone. README.md says what they are."""

from __future__ import annotations

import base64
import json
import lzma
import os
import shutil
import signal
import socket
import subprocess
import sys
import tarfile
import tempfile
import threading
from pathlib import Path

import yaml
import zmq
from tests.harness.daemon import DaemonProcess
from tests.harness.json_process import wait_for
from tests.harness.python import run_python

import shardwright as sw
from shardwright.config.load import parse_config
from shardwright.shard import manifest
from shardwright.wire import handover

from .states import (
    CONFIG,
    CONVERSATION_FRAMES,
    FINISHED_FRAMES,
    FIXTURES,
    PLATE_SENT,
    RECORDED,
    SENT_BEFORE_THE_KILL,
    SENT_TWICE,
    pixels,
    stage_v,
)

CLI = (sys.executable, "-m", "shardwright.cli")
WAIT_S = 60.0  # only so that a hang becomes a failure


KILLED_PLATE = """
import os, sys, threading, time
from pathlib import Path
from tests.harness.batches import append, append_first_frames, plate_of_one_slab_rows
from shardwright.disk import failpoints
from shardwright.shard.shared_journal import _ENDED
path, sent = Path(sys.argv[1]), dict(enumerate(map(int, sys.argv[2:])))
writer = plate_of_one_slab_rows(path)
append_first_frames(writer)
writer.flush()
append(writer, 1, 0, 2)
(shared,) = path.glob(".shardwright/rows-*.journal")
while _ENDED not in shared.read_bytes() or not (path / "0/0/c/0/0/0").exists():
    time.sleep(0.01)
failpoints.set_hook("shard.before_index", threading.Event().wait)
append(writer, 1, 3)
while writer.watermark.stored < sum(sent.values()):
    time.sleep(0.01)
os.kill(os.getpid(), 9)
"""


def main() -> None:
    if sys.argv[1:] == ["plate"]:
        make_plate()
        return
    folder = FIXTURES / sw.__version__
    if folder.exists():
        sys.exit(f"{folder} is there already, and fixtures are never made again")
    with tempfile.TemporaryDirectory(prefix="sw-") as work:
        made = Path(work) / "made"
        made.mkdir()
        for number, make in enumerate((make_unfinished, make_compaction, make_conversations, make_config)):
            place = Path(work) / str(number)
            place.mkdir()
            make(place, made)
        shutil.move(made, folder)
    for file in sorted(folder.iterdir()):
        print(f"{file.stat().st_size:>8,} bytes  {file}")


def make_unfinished(place: Path, made: Path) -> None:
    """Two cameras, and a daemon that is killed once all that they sent is durable and their first shard rows
    are sealed."""
    with DaemonProcess(write_config(place)) as daemon:
        daemon.wait_for("ready")
        connection = sw.connect(f"ipc://{place}/in.sock", transport="message", reconnect_timeout_ms=0)
        streams = {name: connection.acquire(name, stream=name) for name in SENT_BEFORE_THE_KILL}
        for name, stream in streams.items():
            for number in range(SENT_BEFORE_THE_KILL[name]):
                send(stream, name, number)
                if number == 7:
                    send(stream, name, SENT_TWICE)
        for name, stream in streams.items():
            wait_for(
                lambda name=name, stream=stream: stream.frames_durable > SENT_BEFORE_THE_KILL[name],
                f"{name} to be durable",
            )
            wait_for(
                lambda name=name: first_shard_row_is_sealed(place / "data" / f"{name}.ome.zarr"),
                f"the first shard row of {name}",
            )
        daemon.process.kill()
        daemon.exit_code()
        try:
            connection.close()
        except sw.errors.ShardwrightError as error:
            print(f"the camera hears: {error}")
    pack(place / "data", made / "unfinished.tar.xz")


def make_plate() -> None:
    """A writer of many images that is killed; see ``states.PLATE_SENT``."""
    target = RECORDED / f"plate-{manifest.FORMAT}.tar.xz"
    if target.exists():
        sys.exit(f"{target} is there already, and fixtures are never made again")
    with tempfile.TemporaryDirectory(prefix="sw-") as work:
        store = Path(work) / "plate.ome.zarr"
        sent = map(str, PLATE_SENT.values())
        ended = run_python("-c", KILLED_PLATE, store, *sent)
        assert ended.returncode == -signal.SIGKILL, ended.stderr
        pack(Path(work), target)


def first_shard_row_is_sealed(store: Path) -> bool:
    return not (store / ".shardwright" / "0.journal").exists() and any((store / "0/c/0").rglob("0"))


def send(stream, name: str, number: int) -> None:
    """One frame in its place."""
    index = divmod(number, 2) if name == "tissue" else (number,)
    stream.append(
        pixels(name, number),
        index=index,
        frame_id=number,
        metadata={"stage_v": stage_v(number)} if name == "tissue" else None,
    )


def make_compaction(place: Path, made: Path) -> None:
    """A sealed store that is queued, is recompressed by a job that dies after its first shard, and is sent by
    another that dies likewise."""
    with DaemonProcess(write_config(place)) as daemon:
        daemon.wait_for("ready")
        with (
            sw.connect(f"ipc://{place}/in.sock", transport="message") as connection,
            connection.acquire("cells", stream="cells") as stream,
        ):
            for number in range(FINISHED_FRAMES):
                if number != SENT_TWICE:  # a frame that is missing
                    send(stream, "cells", number)
        assert daemon.stop() == 0
    store, destination = place / "data/cells.ome.zarr", place / "archive/cells.ome.zarr"
    destination.parent.mkdir()
    from shardwright.rework.runtime.compaction_queue import QueueEntry

    QueueEntry(store).add(failures=1)
    options = ("--workers", "1", "--no-idle")
    die("compact.before_record=kill@2", "compact", str(store), "--recompress", "zstd:9", *options)
    die("compact.before_record=kill@2", "compact", str(store), "--to", str(destination), *options)
    (made / "moved-to.txt").write_text(str(destination))
    pack(place, made / "compaction.tar.xz", "data", "archive")


def die(failpoint: str, *command: str) -> None:
    done = subprocess.run(
        [*CLI, *command], env={**os.environ, "SHARDWRIGHT_FAILPOINTS": failpoint}, check=False
    )
    assert done.returncode < 0, f"{command} should have been killed, ended with {done.returncode}"


def make_conversations(place: Path, made: Path) -> None:
    with DaemonProcess(write_config(place)) as daemon:
        daemon.wait_for("ready")
        make_control_lines(place, made)
        with Recorder(place, made / "conversation.jsonl") as recorder:
            with (
                sw.connect(recorder.endpoint, transport="message") as connection,
                connection.acquire("tiny", stream="tiny") as stream,
            ):
                for number in range(CONVERSATION_FRAMES):
                    send(stream, "tiny", number)
                stream.flush()
                stream.update_metadata({"note": "updated"})
            recorder.wait_for_end()
        assert daemon.stop() == 0
    facts = {"session": 7, "token": "00112233445566778899aabbccddeeff", "ring_bytes": 1 << 20}
    request, answer = (
        handover.encode_request(facts["session"], facts["token"]),
        handover.encode_answer(handover.GIVEN, facts["ring_bytes"]),
    )
    (made / "ring.json").write_text(json.dumps({**facts, "request": request.hex(), "answer": answer.hex()}))


def make_control_lines(place: Path, made: Path) -> None:
    requests = [{"version": 1, "do": "status"}, {"version": 1, "do": "nothing of that name"}]
    with socket.socket(socket.AF_UNIX) as connection, (made / "control.jsonl").open("w") as file:
        connection.connect(str(place / "control.sock"))
        answers = connection.makefile("rb")
        for request in requests:
            connection.sendall(json.dumps(request).encode() + b"\n")
            file.write(json.dumps({"request": request, "reply": answers.readline().decode()}) + "\n")


class Recorder:
    """Stands between one client and the daemon, and writes down every message."""

    def __init__(self, place: Path, target: Path) -> None:
        self.endpoint = f"ipc://{place}/recorder.sock"
        self._place, self._target = place, target
        self._stop, self._ended = threading.Event(), threading.Event()
        self._bound = threading.Event()
        self._thread = threading.Thread(target=self._run)

    def __enter__(self) -> Recorder:
        self._thread.start()
        self._bound.wait()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()

    def wait_for_end(self) -> None:
        """Until the client has said that it leaves."""
        assert self._ended.wait(WAIT_S)

    def _run(self) -> None:
        with (
            zmq.Context() as context,
            context.socket(zmq.ROUTER) as near,
            context.socket(zmq.DEALER) as far,
            self._target.open("w") as file,
        ):
            near.bind(self.endpoint)
            far.connect(f"ipc://{self._place}/in.sock")
            self._bound.set()
            poller = zmq.Poller()
            poller.register(near, zmq.POLLIN)
            poller.register(far, zmq.POLLIN)
            client = b""
            while not self._stop.is_set():
                for ready, _ in poller.poll(20):
                    parts = ready.recv_multipart()
                    if ready is near:
                        client, *parts = parts
                        far.send_multipart(parts)
                    else:
                        near.send_multipart([client, *parts])
                    speaker = "client" if ready is near else "daemon"
                    file.write(
                        json.dumps(
                            {"from": speaker, "parts": [base64.b64encode(part).decode() for part in parts]}
                        )
                        + "\n"
                    )
                    if speaker == "client" and parts[0][6] == 10:  # ERROR: it leaves
                        self._ended.set()
            near.close(0)
            far.close(0)


def make_config(place: Path, made: Path) -> None:
    """Every field there is, by its default; in folders that need not be there."""
    text = CONFIG.format(root="/data/shardwright").replace("./", "/run/shardwright/")
    config = parse_config(text, folder=place).config.model_dump(mode="json")
    (made / "rig.yaml").write_text(yaml.safe_dump(config, sort_keys=False, width=150))


def write_config(place: Path) -> Path:
    (place / "data").mkdir()
    path = place / "rig.yaml"
    path.write_text(CONFIG.format(root="./data"))
    return path


def pack(folder: Path, target: Path, *names: str) -> None:
    """The folder's content, always in the same order, owned by nobody in particular."""

    def plain(info: tarfile.TarInfo) -> tarfile.TarInfo:
        info.uid = info.gid = 0
        info.uname = info.gname = ""
        return info

    with lzma.open(target, "wb", preset=9) as file, tarfile.open(fileobj=file, mode="w") as archive:
        for name in names or sorted(path.name for path in folder.iterdir()):
            archive.add(folder / name, name, filter=plain)


if __name__ == "__main__":
    main()
