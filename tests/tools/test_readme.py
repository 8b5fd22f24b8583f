"""The README and what it leads to tell the truth: their Python runs as it stands, their commands and files
exist."""

import re
import shutil
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import yaml
import zarr
from tests.harness.daemon import run_cli, serving
from tests.harness.store_contents import snapshot
from tests.web.web_process import WebProcess, settings_for

import shardwright as sw
from shardwright.cli.app import COMMANDS

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text(encoding="utf-8")
SECURITY = (ROOT / "src/shardwright/ingest/SECURITY.md").read_text(encoding="utf-8")
WEB = (ROOT / "src/shardwright/web/README.md").read_text(encoding="utf-8")
DOCUMENTS = [
    ROOT / "README.md",
    *sorted(ROOT.glob("src/**/*.md")),
    *(ROOT / folder / "README.md" for folder in ("tests", "tools/benchmarks")),
]
# for programs: whose tests read them themselves
LEFT_OUT = {"CONTROL.md", "FORMAT.md", "METRICS.md", "PROTOCOL.md"}
PYTHON = re.findall(r"```python\n(.*?)```", README, re.DOTALL)
MOST_LINES = 200
README_ENDPOINT = "ipc:///run/shardwright/ingest.sock"


def assert_holds_frames(store):
    """Both examples write 20 frames whose pixels are the frame's number."""
    array = tensorstore.open(
        {"driver": "zarr3", "kvstore": {"driver": "file", "path": f"{store}/0"}}
    ).result()
    assert array.shape == (20, 2048, 2048)
    for i in (0, 7, 19):
        assert (array[i].read().result() == i).all()


def test_example_of_the_in_process_writer(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    exec(compile(PYTHON[0], "README.md", "exec"), {})
    assert "frames_durable=20" in capsys.readouterr().out
    assert_holds_frames("embryo.ome.zarr")
    exec(compile(PYTHON[3], "README.md", "exec"), {})
    assert "(20, 2048, 2048) 0.0 19" in capsys.readouterr().out


def test_example_of_going_on_after_a_crash(tmp_path, monkeypatch):
    """What a crash after 7 frames leaves is a copy of a store at rest."""
    monkeypatch.chdir(tmp_path)
    dimensions = [
        sw.Dimension(name=name, count=count, chunk_size=4, shard_size_chunks=4)
        for name, count in (("t", None), ("y", 8), ("x", 8))
    ]
    frames = [np.full((8, 8), i, np.uint16) for i in range(20)]
    living = sw.create("living.ome.zarr", sw.ArraySpec(dtype="uint16", dimensions=dimensions))
    for frame in frames[:7]:
        living.append(frame)
    living.flush()
    snapshot(tmp_path / "living.ome.zarr", tmp_path / "embryo.ome.zarr")
    living.close()
    exec(compile(PYTHON[1], "README.md", "exec"), {"sw": sw, "more_frames": frames})
    assert (zarr.open_array("embryo.ome.zarr/0", mode="r")[...] == np.stack(frames)).all()


def test_example_of_the_client_with_the_shipped_configuration(folder, capsys):
    config = yaml.safe_load((ROOT / "configs" / "lightsheet.yaml").read_text(encoding="utf-8"))
    assert config["ingest"]["endpoints"] == [README_ENDPOINT]
    endpoint = f"ipc://{folder}/ingest.sock"
    config["output"] = {"root": str(folder / "data"), "create": True, "in_memory": True}
    config["ingest"]["endpoints"] = [endpoint]
    path = folder / "lightsheet.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    with serving(path):
        exec(compile(PYTHON[2].replace(README_ENDPOINT, endpoint), "README.md", "exec"), {})
    assert "frames_durable=20" in capsys.readouterr().out
    assert_holds_frames(folder / "data" / "embryo-42.ome.zarr")


def test_example_of_a_camera_on_another_computer(folder, monkeypatch):
    """Keys are made and configured as the README says; the two computers are two folders, and files go from
    one to the other as it says."""
    etc, rig, camera = (folder / name for name in ("etc", "rig", "camera"))
    for made in (etc / "keys", etc / "clients", rig, camera):
        made.mkdir(parents=True)
    endpoint = f"ipc://{folder}/ingest.sock"
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        tcp = f"tcp://127.0.0.1:{probe.getsockname()[1]}"

    def here(text):
        return (
            text.replace("/etc/shardwright", str(etc))
            .replace(README_ENDPOINT, endpoint)
            .replace("tcp://192.168.5.1:5555", tcp)
        )

    commands = re.findall(r"(?m)^(rig|camera)\$ +shardwright ([^#\n]+)", SECURITY)
    assert [where for where, _ in commands] == ["rig", "camera"]
    for where, command in commands:
        run_cli(*here(command).split(), cwd=folder / where, check=True)
    shutil.copy(etc / "keys" / "rig.key", camera)
    shutil.copy(camera / "camera-1.key", etc / "clients")

    (with_keys,) = re.findall(r"```yaml\n(ingest:\n.*?curve:.*?)```", SECURITY, re.DOTALL)
    path = folder / "rig.yaml"
    path.write_text(
        f"output: {{root: {folder}/data, create: true, in_memory: true}}\n{here(with_keys)}", encoding="utf-8"
    )
    monkeypatch.chdir(camera)
    with serving(path):
        names = {"sw": sw}
        (example,) = re.findall(r"```python\n(.*?)```", SECURITY, re.DOTALL)
        exec(compile(here(example), "SECURITY.md", "exec"), names)
        with names["daemon"] as daemon:
            dimensions = [
                sw.Dimension(name=name, count=count, chunk_size=4)
                for name, count in (("t", None), ("y", 8), ("x", 8))
            ]
            with daemon.acquire("far", sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as stream:
                stream.append(np.zeros((8, 8), np.uint16))
    assert stream.receipt.frames_stored == 1


def test_example_of_a_running_acquisition_over_http(tmp_path, capsys):
    names: dict[str, object] = {}
    with (
        WebProcess(settings_for(tmp_path)) as web,
        sw.create(tmp_path / "embryo.ome.zarr", shape=(None, 8, 8), dtype="uint16", axes="tyx") as writer,
    ):
        writer.append(np.full((8, 8), 7, np.uint16))
        writer.flush()
        threading.Timer(1, writer.close).start()  # the example follows it to its end
        (example,) = re.findall(r"```python\n(.*?)```", WEB, re.DOTALL)
        exec(compile(example.replace(":8790", f":{web.port}"), "README.md", "exec"), names)
    assert "(0,) 7.0" in capsys.readouterr().out
    assert names["image"].shape == (1, 8, 8)


def test_prose_keeps_to_110_columns():
    documents = {path: path.read_text(encoding="utf-8") for path in (*DOCUMENTS, ROOT / "CHANGELOG.md")}
    prose = {
        path: re.sub(r"^(```.*?```|    .*?|\||!\[).*?$", "", text, flags=re.DOTALL | re.MULTILINE)
        for path, text in documents.items()
    }
    assert not [
        (path.name, line) for path, text in prose.items() for line in text.split("\n") if len(line) > 110
    ]


def test_every_python_example_is_run_here():
    assert len(PYTHON) == 4
    others = {path.name for path in DOCUMENTS[1:] if "```python" in path.read_text(encoding="utf-8")}
    assert others - LEFT_OUT == {"SECURITY.md", "README.md"}


def test_the_readme_is_read_to_its_end():
    assert len(README.splitlines()) <= MOST_LINES


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_named_files_exist(document):
    text = document.read_text(encoding="utf-8")
    linked = [document.parent / path for path in re.findall(r"\]\(([^)#:]+)\)", text)]
    named = [
        ROOT / next(filter(None, names))
        for names in re.findall(r"(?m:^|`)\./(tools/\w+)|(configs/[\w-]+\.yaml)", text)
    ]
    assert [path for path in linked + named if not path.exists()] == []


def test_every_document_is_found_from_the_readme():
    linked = {(ROOT / path).resolve() for path in re.findall(r"\]\(([^)#:]+)\)", README)}
    assert set(DOCUMENTS[1:]) <= linked


def test_named_commands_exist():
    named = set()
    for path in DOCUMENTS:
        text = path.read_text(encoding="utf-8")
        shell = "".join(re.findall(r"```sh\n(.*?)```", text, re.DOTALL))
        named |= set(re.findall(r"`shardwright ([a-z]+)", text)) | set(
            re.findall(r"(?m:^)shardwright ([a-z]+)", shell)
        )
    assert named == set(COMMANDS)


def test_the_two_commands_come_first():
    assert [line.split()[0] for line in README.split("```sh\n")[1].splitlines()[:2]] == [
        "./tools/demo",
        "./tools/test",
    ]
