"""Jobs of an older release that were killed go on where they were."""

from __future__ import annotations

import json

import numpy as np
import pytest
from tests.properties.readers import with_zarr_python

from shardwright.read.verify_store import verify_store
from shardwright.rework.runtime.compaction_queue import QueueEntry, queue_entries
from shardwright.rework.runtime.done_list import DoneList
from shardwright.rework.transfer.destination import Claim
from shardwright.rework.transfer.move_record import MoveRecord

from .states import FINISHED_FRAMES, SENT_TWICE, all_pixels


def check(store) -> None:
    expected = all_pixels("cells", FINISHED_FRAMES)
    expected[SENT_TWICE] = 0  # it is missing in this one
    assert np.array_equal(with_zarr_python(store / "0"), expected)
    report = verify_store(store)
    assert report.ok, report.problems


def test_a_recompression_goes_on(compaction, cli):
    store, _ = compaction
    (report,) = cli("compact", store, "--recompress", "zstd:9", "--workers", "1", "--no-idle", "--json")[
        "stores"
    ]
    assert report["skipped"] >= 1
    check(store)


def test_a_move_goes_on(compaction, cli):
    store, destination = compaction
    report = cli("compact", store, "--to", destination, "--workers", "1", "--no-idle", "--json")
    assert (report["complete"], report["finished"]) == (True, 1)
    check(destination)


def test_a_rechunk_begins_anew(compaction, cli):
    """0.2.0 named what it made in other words; what it had made is not taken for that of today's job."""
    store, _ = compaction
    destination = store.with_name("rechunked.ome.zarr")
    folder = destination.with_name(f".{destination.name}.rechunk")
    (folder / "store/0/c/0/0").mkdir(parents=True)
    (folder / "store/0/c/0/0/0").write_bytes(bytes(4096))
    documents = [json.loads((store / "0/zarr.json").read_text())]
    (folder / "job.json").write_text(json.dumps({"source": {"store": str(store)}, "arrays": documents}))
    cli("rechunk", store, destination, "--chunks", "t=2", "--workers", "1", "--no-idle", "--json")
    check(destination)
    assert not folder.exists()


def without_version(path) -> None:
    """As it was written before these files said their version."""
    lines = [json.loads(line) for line in path.read_text().splitlines() if line]
    path.write_text(
        "".join(
            json.dumps({key: value for key, value in line.items() if key != "version"}) + "\n"
            for line in lines
        )
    )


@pytest.mark.parametrize("from_before_versions", [False, True])
def test_each_file_means_what_it_did(compaction, from_before_versions: bool):
    store, destination = compaction
    done, queued, claim = (
        store / "0/.compact/done",
        store / "0/.compact/queued",
        destination / ".compact/claim",
    )
    (move,) = (store / ".compact").glob("move.*.json")
    if from_before_versions:
        for path in (done, queued, claim, move):
            without_version(path)
    (line,) = [json.loads(line) for line in done.read_text().splitlines() if line]
    assert DoneList(done, line["options"]).has(line["key"], store / "0" / line["key"])
    (found,) = queue_entries(store.parent)
    found.check_version()
    assert (found, found.failures) == (QueueEntry(store), 1)
    record = MoveRecord.find(store / ".compact", str(destination))
    assert (record.claimed, record.complete, list(record.sent)) == (True, False, ["0/c/0/0/0"])
    assert Claim.decode(str(destination), claim.read_bytes()).token == record.token
