"""What newcomers try on the command line and at the daemon: each is refused in one line that says what was
expected, what came, and the call that works. The texts are exact: a change of one is seen here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from tests.harness.daemon import run_cli, serving

import shardwright as sw
from shardwright.client.curve import make_key_pair

if TYPE_CHECKING:
    from pathlib import Path

TIFF = (
    "{here}/{file} is no store; expected a folder with zarr.json, such as a.ome.zarr; got the name of a TIFF "
    'file. Make a store of its pixels: stack = tifffile.imread(FILE); with sw.create("a.ome.zarr", '
    'shape=stack.shape, dtype=stack.dtype, axes="tyx") as writer: writer.append_many(stack)'
)
FILES = [
    (("inspect", "a.tif"), "shard_format", TIFF),
    (("verify", "a.tif"), "shard_format", TIFF),
    (("view", "a.tif"), "shard_format", TIFF),
    (("view", "a.tif", "--in", "browser"), "shard_format", TIFF),
    (("verify", "b.ome.TIFF"), "shard_format", TIFF),
    (("rechunk", "a.tif", "new.ome.zarr"), "shard_format", TIFF),
    (("verify", "absent.tif"), "storage", "no such file or folder: {here}/absent.tif"),
    (("view", "notes.txt"), "storage", "{here}/notes.txt is a file; expected the folder of a store"),
]


@pytest.mark.parametrize(("arguments", "code", "says"), FILES, ids=lambda value: "-".join(value)[:40])
def test_a_file_that_is_no_store(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], code: str, says: str
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("a.tif", "b.ome.TIFF", "notes.txt"):
        (tmp_path / name).write_bytes(b"II*\0")
    done = run_cli(*arguments, "--json")
    assert done.returncode == 1
    assert done.stderr == f"shardwright: {says.format(here=tmp_path, file=arguments[1])}\n"
    assert json.loads(done.stdout)["error"]["code"] == code


NO_KEYS = (
    "the handshake failed; expected a daemon at {tcp} that takes clients without keys; got a connection that "
    "is closed at once. If it demands keys, give --secret-key NAME.key_secret and --daemon-key RIG.key. "
    "`shardwright keygen NAME` makes a pair, whose NAME.key belongs in the daemon's ingest.curve.clients"
)
TAKEN = (
    "the output exists; expected a name that is not taken; got {root}/finished.ome.zarr. "
    "`acquire(..., reopen=True)` goes on with it. For another one choose another name, or set "
    "output.name_taken of the daemon to increment, or to overwrite if a finished store may go"
)
UNFINISHED = (
    "the output exists and is an acquisition that is unfinished, and being written; expected a name that is "
    "not taken; got {root}/running.ome.zarr. Close its writer first. To go on with it: `sw.resume`, or "
    "acquire(..., reopen=True). To seal what it has: `shardwright recover {root}/running.ome.zarr`; then "
    "overwrite=True (name_taken: overwrite) may replace it. To give it up: delete the folder. Or choose "
    "another name (name_taken: increment gives a number)"
)


def test_what_a_daemon_refuses_at_first(folder: Path) -> None:
    (folder / "clients").mkdir()
    make_key_pair(folder, "rig")
    ipc, config = f"ipc://{folder}/in.sock", folder / "rig.yaml"
    config.write_text(
        "output: {root: data, create: true, in_memory: true}\n"
        f"ingest: {{endpoints: ['{ipc}', 'tcp://127.0.0.1:*'], "
        "curve: {secret_key: rig.key_secret, clients: clients}}\n"
    )
    spec = sw.default_layout((None, 16, 16), "uint8", "tyx")
    with serving(config) as daemon:
        tcp = daemon.ready["endpoints"][1]
        done = run_cli("camera", "--connect", tcp, "--name", "a", "--shape", "8x8")
        assert (done.returncode, done.stderr) == (2, f"shardwright: {NO_KEYS.format(tcp=tcp)}\n")
        with sw.connect(ipc) as client:
            with client.acquire("finished", spec) as stream:
                stream.append(np.zeros((16, 16), np.uint8))
            with client.acquire("running", spec) as stream:
                stream.append(np.zeros((16, 16), np.uint8))
                for name, says in (("finished", TAKEN), ("running", UNFINISHED)):
                    with pytest.raises(sw.errors.OutputExistsError) as refused:
                        client.acquire(name, spec)
                    assert str(refused.value) == says.format(root=folder / "data")
                    done = run_cli("camera", "--connect", ipc, "--name", name, "--shape", "16x16")
                    assert (done.returncode, done.stderr) == (1, f"shardwright: {refused.value}\n")
