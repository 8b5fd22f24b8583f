"""What every destination promises, held against a folder and against a real S3 server."""

from __future__ import annotations

import os
import socket
import threading
from subprocess import PIPE

import pytest
from tests.harness.python import start_python

from shardwright.model.errors import (
    ConfigError,
    LockedError,
    OutputExistsError,
    ShardwrightError,
    StorageError,
)
from shardwright.rework.transfer import bucket
from shardwright.rework.transfer.address import open_destination
from shardwright.rework.transfer.destination import CLAIM_KEY, part_key

MIB = 1 << 20


def put(destination, key, data, part_bytes=MIB):
    destination.put_new(key, (data[i : i + part_bytes] for i in range(0, len(data), part_bytes)), len(data))


def test_what_was_put_is_read_back(place):
    destination, data = open_destination(place), os.urandom(3 * MIB + 17)
    put(destination, "0/c/0/0", data)
    put(destination, "empty", b"")
    assert destination.size("0/c/0/0") == len(data)
    assert destination.read("0/c/0/0", 0, len(data)) == data
    assert destination.read("0/c/0/0", MIB + 1, 100) == data[MIB + 1 : MIB + 101]
    assert destination.size("empty") == 0
    assert destination.size("0/c/0/1") is None
    assert open_destination(destination.url).size("0/c/0/0") == len(data)
    destination.delete("0/c/0/0")
    destination.delete("0/c/0/0")
    assert destination.size("0/c/0/0") is None


@pytest.mark.parametrize("nbytes", [1000, 12 * MIB])
def test_a_key_is_never_overwritten(place, monkeypatch, nbytes):
    monkeypatch.setattr(bucket, "MULTIPART_FROM_BYTES", 8 * MIB)
    monkeypatch.setattr(bucket, "_PART_BYTES", 5 * MIB)
    destination, data = open_destination(place), os.urandom(nbytes)
    put(destination, "shard", data)
    with pytest.raises(OutputExistsError, match="shard"):
        put(destination, "shard", bytes(nbytes))
    assert destination.read("shard", 0, nbytes) == data


def test_an_upload_in_parts_is_not_copied_over_a_key_that_came_meanwhile(bucket_url, monkeypatch):
    monkeypatch.setattr(bucket, "MULTIPART_FROM_BYTES", 8 * MIB)
    ours, theirs = open_destination(bucket_url), open_destination(bucket_url)

    def parts():
        yield bytes(6 * MIB)
        other_job = threading.Thread(target=put, args=(theirs, "shard", b"the other job's"))
        other_job.start()
        other_job.join()
        yield bytes(6 * MIB)

    with pytest.raises(OutputExistsError):
        ours.put_new("shard", parts(), 12 * MIB)
    assert ours.read("shard", 0, 100) == b"the other job's"
    assert list(ours._objects.sizes()) == [("shard", 15)]


def test_of_many_that_put_one_key_at_once_one_succeeds(place):
    begin, stored = threading.Barrier(6), []

    def run(number):
        destination, data = open_destination(place), bytes([number]) * 1000
        begin.wait()
        try:
            put(destination, "shard", data)
        except OutputExistsError:
            return
        stored.append(data)

    threads = [threading.Thread(target=run, args=(number,)) for number in range(6)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [open_destination(place).read("shard", 0, 1000)] == stored


@pytest.mark.parametrize("nbytes", [1000, 12 * MIB])
@pytest.mark.parametrize("fault", ["too few", "too many", "source fails"])
def test_a_put_that_fails_leaves_nothing(place, monkeypatch, nbytes, fault):
    monkeypatch.setattr(bucket, "MULTIPART_FROM_BYTES", 8 * MIB)

    def parts():
        yield bytes(nbytes - 1)
        if fault == "source fails":
            raise StorageError("the source's disk died")
        if fault == "too many":
            yield b"ab"

    destination = open_destination(place)
    destination.claim("token")
    with pytest.raises(StorageError):
        destination.put_new("0/shard", parts(), nbytes)
    assert destination.size("0/shard") is None
    put(destination, "0/shard", bytes(nbytes))


def test_a_claim_keeps_other_jobs_out_and_lets_its_own_in_again(place):
    ours, theirs = open_destination(place), open_destination(place)
    assert ours.claim("ours") is True
    with pytest.raises(LockedError, match=f"process {os.getpid()} on '{socket.gethostname()}' since 20"):
        theirs.claim("theirs")
    put(ours, "zarr.json", b"{}")
    put(ours, part_key("0/c/0", "1234"), b"left by a kill")
    assert ours.claim("ours") is False
    assert ours.size(part_key("0/c/0", "1234")) is None
    theirs.release("theirs")
    assert ours.size(CLAIM_KEY)
    ours.release("ours")
    ours.release("ours")
    assert ours.size(CLAIM_KEY) is None
    with pytest.raises(OutputExistsError, match=r"not empty.*zarr\.json.*nothing is ever overwritten"):
        theirs.claim("theirs")
    assert theirs.size(CLAIM_KEY) is None


CLAIM = """
import sys
from shardwright.rework.transfer.address import open_destination
from shardwright.model.errors import LockedError
print("ready", flush=True)
sys.stdin.readline()
try:
    open_destination(sys.argv[1]).claim(sys.argv[2])
    print("claimed")
except LockedError as error:
    print("refused" if "another job writes" in str(error) else error)
"""


def test_of_processes_that_claim_one_place_at_once_one_gets_it(place):
    jobs = [start_python("-c", CLAIM, place, str(i), stdin=PIPE, stdout=PIPE) for i in range(3)]
    for job in jobs:
        assert job.stdout.readline() == "ready\n"
    for job in jobs:
        job.stdin.write("go\n")
        job.stdin.flush()
    assert sorted(job.communicate()[0].strip() for job in jobs) == ["claimed", "refused", "refused"]


def test_a_store_that_ignores_conditions_is_refused(bucket_url, monkeypatch):
    destination = open_destination(bucket_url)
    put_new = destination.put_new

    def overwrites(key, parts, nbytes):
        destination.delete(key)
        put_new(key, parts, nbytes)

    monkeypatch.setattr(destination, "put_new", overwrites)
    with pytest.raises(StorageError, match="If-None-Match"):
        destination.claim("token")
    assert destination.size(CLAIM_KEY) is None


def test_errors_name_what_to_set(bucket_url, object_store, monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_S3_RETRY_S", "0.2")
    url = f"{bucket_url}/x"

    def message(kind: type[ShardwrightError] = StorageError) -> str:
        with pytest.raises(kind) as raised:
            open_destination(url).claim("token")
        return str(raised.value)

    with monkeypatch.context() as with_changes:
        with_changes.delenv("AWS_ACCESS_KEY_ID")
        assert "AWS_ACCESS_KEY_ID with AWS_SECRET_ACCESS_KEY" in message(ConfigError)
    with monkeypatch.context() as with_changes:
        with_changes.setenv("AWS_SECRET_ACCESS_KEY", "wrong")
        assert "Check AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY" in message()
    with monkeypatch.context() as with_changes:
        with_changes.delenv("AWS_ALLOW_HTTP")
        assert "AWS_ALLOW_HTTP=true" in message()
    with monkeypatch.context() as with_changes:
        with_changes.setenv("AWS_ENDPOINT_URL", "http://127.0.0.1:1")
        assert "AWS_ENDPOINT_URL" in message()
    with monkeypatch.context() as with_changes:
        with_changes.setenv("SHARDWRIGHT_S3_RETRY_S", "soon")
        assert "SHARDWRIGHT_S3_RETRY_S" in message(ConfigError)
    for wrong in ("gs://bucket/x", "s3://"):
        with pytest.raises(ConfigError, match="s3://BUCKET/PREFIX"):
            open_destination(wrong)


def test_a_file_in_the_folders_place_is_no_empty_destination(tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(OutputExistsError):
        open_destination(str(tmp_path / "file")).claim("token")


def test_a_job_that_comes_and_goes_while_another_claims_is_told_from_a_server_that_overwrites(
    place, monkeypatch
):
    ours, theirs = open_destination(place), open_destination(place)
    put_new = ours.put_new

    def meets_another(*arguments):
        theirs.claim("theirs")
        try:
            put_new(*arguments)
        finally:
            theirs.release("theirs")

    monkeypatch.setattr(ours, "put_new", meets_another)
    with pytest.raises(OutputExistsError):
        ours.claim("ours")
    monkeypatch.undo() if "://" not in place else monkeypatch.setattr(ours, "put_new", put_new)
    assert ours.claim("ours") is True


def test_a_listing_tells_all_keys_and_their_bytes(place):
    destination = open_destination(place)
    assert destination.sizes() == {}
    destination.claim("token")
    put(destination, part_key("0/c/0", "1234"), b"on its way")
    put(destination, "0/c/0", bytes(17))
    put(destination, "zarr.json", b"")
    put(destination, "0/.compact/x", b"a")
    assert destination.sizes() == {"0/c/0": 17, "zarr.json": 0, "0/.compact/x": 1}
