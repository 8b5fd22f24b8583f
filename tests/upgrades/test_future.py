"""Whatever comes from a release that does not exist yet is refused in one clear line, and left as it was."""

from __future__ import annotations

import json
import socket
import struct
from typing import TYPE_CHECKING

import crc32c
import pytest
import zmq
from tests.harness.daemon import DaemonProcess, run_cli

from shardwright.config.load import load_config
from shardwright.daemon.compaction import CompactionService
from shardwright.daemon.control_client import ControlClient
from shardwright.model.errors import ConfigError, FormatVersionError, ShardFormatError, VersionError
from shardwright.read.verify_store import verify_store
from shardwright.recovery.recover_store import recover_store
from shardwright.rework.runtime import job_record
from shardwright.rework.runtime.compaction_queue import QueueEntry
from shardwright.rework.runtime.done_list import DoneList
from shardwright.rework.transfer.destination import Claim
from shardwright.rework.transfer.move_record import MoveRecord
from shardwright.scan.table import Action
from shardwright.shard import journal, manifest
from shardwright.shard.manifest import read_manifest
from shardwright.wire import handover, messages
from shardwright.wire.messages import Counter, Kind

from .conftest import contents, unpack
from .states import RECORDED

if TYPE_CHECKING:
    from pathlib import Path

# in the workspace of an unfinished one
IN_A_STORE = ("acquisition.1.json", "1.journal", "staging", "frames.log")
NEWEST = {
    "1.journal": journal.VERSION,
    "rows-1-1.journal": journal.VERSION,
    "acquisition.1.json": manifest.FORMAT,
    "job": job_record.VERSION,
}  # or 1


def refused_of(name: str) -> str:
    newest = NEWEST.get(name, 1)
    expected = "version 1" if newest == 1 else f"version 1 to {newest}"
    return f"another version of its format; expected {expected}; got version {newest + 1}"


def raise_version(workspace: Path, name: str) -> None:
    """As a newer release would write it: the version after the newest, and a checksum that holds."""
    path, identity = workspace / name, read_manifest(workspace).identity_bytes
    if path.suffix == ".json":
        facts = json.loads(path.read_text())
        del facts["crc32c"]
        facts["format"] = NEWEST[name] + 1
        text = json.dumps(facts, sort_keys=True, separators=(",", ":"))
        path.write_text(json.dumps({**facts, "crc32c": crc32c.crc32c(text.encode())}, indent=2))
        return
    with path.open("r+b") as file:
        page = bytearray(file.read(4096))
        page[8:12] = struct.pack("<I", NEWEST.get(name, 1) + 1)
        page[4092:] = struct.pack(
            "<I", crc32c.crc32c(bytes(page[:4092]), crc32c.crc32c(identity) if name == "frames.log" else 0)
        )
        file.seek(0)
        file.write(page)
        if path.suffix == ".journal":
            file.truncate(20_000)  # which may be of another length, too


@pytest.mark.parametrize(
    "how", [{}, {"dry_run": True}, {"take_over": True}], ids=["recover", "dry run", "take over"]
)
@pytest.mark.parametrize("name", IN_A_STORE)
def test_an_unfinished_store(unfinished, pool, name: str, how: dict[str, bool]):
    store = unfinished / "cells.ome.zarr"
    raise_version(store / ".shardwright", name)
    before = contents(store), (store / ".shardwright/lock").stat().st_ino
    with pytest.raises(
        FormatVersionError,
        match=rf"{refused_of(name)}\. Use the release of shardwright that wrote it, or a later one",
    ) as refused:
        recover_store(store, pool, threads=1, **how)
    assert str(store / ".shardwright" / name) in str(refused.value)
    assert (contents(store), (store / ".shardwright/lock").stat().st_ino) == before


@pytest.mark.parametrize(
    ("name", "words"), [("1.journal", None), ("staging", "fails its crc32c"), ("frames.log", "is damaged")]
)
def test_damage_is_not_taken_for_a_version(unfinished, pool, name: str, words: str | None):
    """A version under a checksum that does not hold is a flipped bit, for which recovery has rules of its
    own."""
    store = unfinished / "cells.ome.zarr"
    with (store / ".shardwright" / name).open("r+b") as file:
        file.seek(8)
        file.write(b"\x7f")
    if words is None:
        assert set(recover_store(store, pool, threads=1, dry_run=True).shard_rows[0].actions.values()) == {
            Action.SET_ASIDE.value
        }
        return
    with pytest.raises(ShardFormatError, match=words) as damaged:
        recover_store(store, pool, threads=1, dry_run=True)
    assert not isinstance(damaged.value, FormatVersionError)


@pytest.mark.parametrize("how", [{}, {"dry_run": True}], ids=["recover", "dry run"])
def test_a_journal_that_shard_rows_share(place, pool, how: dict[str, bool]):
    store = unpack(RECORDED / "plate-11.tar.xz", place / "data") / "plate.ome.zarr"
    (shared,) = (store / ".shardwright").glob("rows-*.journal")
    raise_version(shared.parent, shared.name)
    before = contents(store)
    with pytest.raises(FormatVersionError, match=f"version 1 to {journal.VERSION}; got version"):
        recover_store(store, pool, threads=1, **how)
    assert contents(store) == before


def test_the_command_says_it_in_one_line(unfinished):
    raise_version(unfinished / "cells.ome.zarr/.shardwright", "1.journal")
    done = run_cli("recover", unfinished / "cells.ome.zarr")
    assert done.returncode == 1
    (line,) = done.stdout.splitlines()
    assert f"1.journal is of {refused_of('1.journal')}" in line


def test_a_daemon_leaves_the_store_and_refuses_peers_of_another_version(unfinished, config, place):
    store = unfinished / "cells.ome.zarr"
    raise_version(store / ".shardwright", "1.journal")
    before = contents(store)
    with DaemonProcess(config) as daemon:
        daemon.wait_for("ready")
        # it may be told before
        failed = [event for event in daemon.events if event["event"] == "acquisition_recovery_failed"]
        failed = failed[0] if failed else daemon.wait_for("acquisition_recovery_failed")
        assert (failed["path"], failed["code"], failed["got"]) == (
            str(store),
            "format_version",
            f"version {journal.VERSION + 1}",
        )
        check_a_client_of_another_version(place / "in.sock")
        check_a_ring_request_of_another_version(place / "in.sock.ring")
        check_a_command_of_another_version(place / "control.sock")
        with ControlClient(place / "control.sock", timeout_s=60) as control:
            assert control.ask("status")["status"]["state"] == "serving", "nobody else is affected"
        assert daemon.stop() == 0
    assert contents(store) == before


def check_a_client_of_another_version(path: Path) -> None:
    with zmq.Context() as context, context.socket(zmq.DEALER) as link:
        link.linger, link.rcvtimeo = 0, 60_000
        link.connect(f"ipc://{path}")
        head, body = Counter(messages.CONNECTION).control(Kind.HELLO, {})
        link.send_multipart([head[:4] + struct.pack("<H", messages.VERSION + 1) + head[6:], body])
        answer, problem = link.recv_multipart()
    assert messages.decode_header(answer).kind is Kind.ERROR
    facts = messages.decode_control(problem)
    assert (facts["code"], facts["expected"], facts["got"], facts["fatal"]) == (
        "version",
        str(messages.VERSION),
        str(messages.VERSION + 1),
        True,
    )


def check_a_ring_request_of_another_version(path: Path) -> None:
    """The answer is in our version, and gives nothing; a client of another version sees from it why."""
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        request = handover.encode_request(1, "00" * 16)
        connection.sendall(request[:4] + struct.pack("<H", messages.VERSION + 1) + request[6:])
        answer = connection.recv(64)
    assert answer == handover.encode_answer(handover.REFUSED, 0)
    with pytest.raises(VersionError, match="another protocol version"):
        handover.decode_answer(answer[:4] + struct.pack("<H", messages.VERSION + 1) + answer[6:])


def check_a_command_of_another_version(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(str(path))
        connection.sendall(b'{"version": 3, "do": "status"}\n')
        error = json.loads(connection.makefile().readline())["error"]
    assert (error["code"], error["expected"], error["got"]) == ("version", "version 1 or 2", "3")


def test_compaction(compaction):
    store, destination = compaction
    done, queued, claim = (
        store / "0/.compact/done",
        store / "0/.compact/queued",
        destination / ".compact/claim",
    )
    (move,) = (store / ".compact").glob("move.*.json")
    for path in (done, queued, claim, move):
        path.write_text(path.read_text().replace('"version": 1', '"version": 3'))
    for read in (
        lambda: DoneList(done, {}),
        QueueEntry(store).check_version,
        lambda: Claim.decode(str(destination), claim.read_bytes()),
        lambda: MoveRecord.find(store / ".compact", str(destination)),
    ):
        with pytest.raises(FormatVersionError, match=refused_of("job")):
            read()


def test_a_daemon_leaves_what_another_version_has_queued(compaction, config):
    store, _ = compaction
    queued = store / "0/.compact/queued"
    queued.write_text(queued.read_text().replace('"version": 1', '"version": 3'))
    before, events = contents(store), []
    options = load_config(config).config.compaction.model_copy(update={"enabled": True, "after_s": 0})
    service = CompactionService(
        options, store.parent, None, lambda event, facts: events.append((event, facts))
    )
    service._take_up()
    ((event, facts),) = events
    assert (event, facts["code"], facts["again"]) == ("compaction_failed", "format_version", False)
    assert service.snapshot()["queued"] == 0
    assert contents(store) == before


def test_a_frame_table(compaction):
    store, _ = compaction
    path = store / "frames/zarr.json"
    facts = json.loads(path.read_text())
    facts["attributes"]["shardwright"]["version"] = 4
    path.write_text(json.dumps(facts))
    assert any(
        "another version of its format; expected version 1 to 3; got version 4" in str(problem)
        for problem in verify_store(store).problems
    )


@pytest.mark.parametrize("more", ["", "cameras: []\n"])
def test_a_configuration(tmp_path, more: str):
    """Not a word about fields that this release does not know."""
    path = tmp_path / "rig.yaml"
    path.write_text(f"{more}output: {{root: /data}}\nversion: 2\n")
    with pytest.raises(
        ConfigError,
        match=r"rig.yaml:\d: version: another version of the configuration's format; expected 1; got 2\. Use the",  # noqa: E501
    ):
        load_config(path)
