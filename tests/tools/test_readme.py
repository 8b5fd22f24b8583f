"""The README and what it leads to tell the truth: their Python runs as it stands, their commands and files
exist."""

import re
import shutil
import signal
import socket
import threading
from pathlib import Path

import numpy as np
import pytest
import tensorstore
import yaml
import zarr
from PIL import Image
from tests.harness.daemon import run_cli, serving
from tests.harness.documents import blocks, dying_at, run_block
from tests.harness.fresh_environment import FreshEnvironment, built_wheel
from tests.harness.json_process import JsonProcess
from tests.harness.store_contents import snapshot
from tests.web.page_labels import KEY, PICTURE, page_labels
from tests.web.web_process import WebProcess, settings_for

import shardwright as sw
from shardwright.cli.app import COMMANDS
from shardwright.model.extras import EXTRA_OF_MODULE

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
PYTHON = blocks(README)
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
    run_block(PYTHON[0])
    assert "frames_durable=20" in capsys.readouterr().out
    assert_holds_frames("embryo.ome.zarr")
    run_block(PYTHON[3])
    assert "(20, 2048, 2048) 0.0 19" in capsys.readouterr().out


class Installed(FreshEnvironment):
    """The wheel with these extras alone. Its blocks import nothing that another extra brings."""

    def __init__(self, folder, wheel, *extras):
        super().__init__(folder / "-".join(["with", *sorted(extras)]), wheel, extras)
        self._of_others = {
            name for name, extra in EXTRA_OF_MODULE.items() if extra not in {"daemon", *extras}
        }
        self._of_others -= {"pandas"} if "xarray" in extras else set()  # which xarray is made of

    def said_by(self, block, cwd):
        """What a block prints."""
        done = self.run("-c", f"{block}\nimport sys\nprint(*sys.modules)", cwd=cwd)
        assert done.returncode == 0, done.stderr
        *said, imported = done.stdout.splitlines()
        assert not self._of_others & set(imported.split())
        return "\n".join(said)

    def command(self, *arguments, cwd):
        done = self.run(self.commands / "shardwright", *arguments, cwd=cwd)
        assert done.returncode == 0, done.stderr


def continue_after_a_crash(writer, folder):
    """The writer of the first block is killed; its store is continued, and a copy of it sealed."""
    died, sealed = folder / "died", folder / "sealed"
    died.mkdir()
    killed = writer.run("-c", dying_at(7) + PYTHON[0], cwd=died)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    shutil.copytree(died, sealed)
    more = "more_frames = [np.full((2048, 2048), i, np.uint16) for i in range(20)]"
    block = f"import numpy as np, shardwright as sw\n{more}\n{PYTHON[1]}\nprint(writer.receipt)"
    assert "frames_durable=20" in writer.said_by(block, died)
    assert_holds_frames(died / "embryo.ome.zarr")
    writer.command("recover", "embryo.ome.zarr", cwd=sealed)
    assert zarr.open_array(sealed / "embryo.ome.zarr/0", mode="r").shape == (7, 2048, 2048)


def send_to_the_daemon(writer, camera, folder):
    """The daemon runs in one environment, its cameras in another."""
    config, endpoint = shipped_configuration(folder)
    with JsonProcess(writer.start("serve", config, "--log-format", "json")) as daemon:
        while (event := daemon.next()) is not None and event["event"] != "ready":
            pass
        assert "frames_durable=20" in camera.said_by(PYTHON[2].replace(README_ENDPOINT, endpoint), folder)
        simulated = ("--connect", endpoint, "--name", "simulated", "--stream", "lightsheet", "--frames", "4")
        camera.command("camera", *simulated, cwd=folder)
        daemon.signal(signal.SIGTERM)
        assert daemon.exit_code() == 0
    assert_holds_frames(folder / "data" / "embryo-42.ome.zarr")


def test_examples_in_environments_of_what_the_text_names(tmp_path, folder):
    """The wheel with no other extra than the table and the comments name: one environment writes and
    continues, the next one reads, a camera's has none."""
    (writes,) = re.findall(r"`'shardwright\[(\w+)\]'` \| `sw\.create`", README)
    reads = set(re.findall(r"# .*?extra (\w+)", PYTHON[3]))
    assert (writes, reads) == ("daemon", {"xarray", "zarr"})
    assert re.search(r"(?m)^\| a camera's computer, .*? \| `shardwright` \| `sw\.connect` alone", README)
    wheel = built_wheel(tmp_path)
    writer = Installed(tmp_path, wheel, writes)
    assert "frames_durable=20" in writer.said_by(PYTHON[0], tmp_path)
    assert_holds_frames(tmp_path / "embryo.ome.zarr")
    continue_after_a_crash(writer, tmp_path)
    reader = Installed(tmp_path, wheel, *reads)
    assert "(20, 2048, 2048) 0.0 19" in reader.said_by(PYTHON[3], tmp_path)
    send_to_the_daemon(writer, Installed(tmp_path, wheel), folder)


def test_every_extra_is_named():
    assert set(re.findall(r"'shardwright\[([\w-]+)\]'", README)) == set(EXTRA_OF_MODULE.values())


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
    run_block(PYTHON[1], {"sw": sw, "more_frames": frames})
    assert (zarr.open_array("embryo.ome.zarr/0", mode="r")[...] == np.stack(frames)).all()


def shipped_configuration(folder):
    """Writes the configuration of the README's camera, for that folder; returns its path, and the
    endpoint."""
    config = yaml.safe_load((ROOT / "configs" / "lightsheet.yaml").read_text(encoding="utf-8"))
    assert config["ingest"]["endpoints"] == [README_ENDPOINT]
    endpoint = f"ipc://{folder}/ingest.sock"
    config["output"] = {"root": str(folder / "data"), "create": True, "in_memory": True}
    config["ingest"]["endpoints"] = [endpoint]
    path = folder / "lightsheet.yaml"
    path.write_text(yaml.safe_dump(config), encoding="utf-8")
    return path, endpoint


def test_example_of_the_client_with_the_shipped_configuration(folder, capsys):
    path, endpoint = shipped_configuration(folder)
    with serving(path):
        run_block(PYTHON[2].replace(README_ENDPOINT, endpoint))
    assert "frames_durable=20" in capsys.readouterr().out
    assert_holds_frames(folder / "data" / "embryo-42.ome.zarr")


@pytest.fixture
def kept_port():
    """Nobody else is given it meanwhile; who asks for it by number, as a daemon does, may listen there."""
    with socket.socket() as keeper:
        keeper.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        keeper.bind(("127.0.0.1", 0))
        yield keeper.getsockname()[1]


def test_example_of_a_camera_on_another_computer(folder, monkeypatch, kept_port):
    """Keys are made and configured as the README says; the two computers are two folders, and files go from
    one to the other as it says."""
    etc, rig, camera = (folder / name for name in ("etc", "rig", "camera"))
    for made in (etc / "keys", etc / "clients", rig, camera):
        made.mkdir(parents=True)
    endpoint = f"ipc://{folder}/ingest.sock"
    tcp = f"tcp://127.0.0.1:{kept_port}"

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
        (example,) = blocks(SECURITY)
        names = run_block(here(example), {"sw": sw})
        with names["daemon"] as daemon:
            dimensions = [
                sw.Dimension(name=name, count=count, chunk_size=4)
                for name, count in (("t", None), ("y", 8), ("x", 8))
            ]
            with daemon.acquire("far", sw.ArraySpec(dtype="uint16", dimensions=dimensions)) as stream:
                stream.append(np.zeros((8, 8), np.uint16))
    assert stream.receipt.frames_stored == 1


def test_example_of_a_running_acquisition_over_http(tmp_path, capsys):
    with (
        WebProcess(settings_for(tmp_path)) as web,
        sw.create(tmp_path / "embryo.ome.zarr", shape=(None, 8, 8), dtype="uint16", axes="tyx") as writer,
    ):
        writer.append(np.full((8, 8), 7, np.uint16))
        writer.flush()
        threading.Timer(1, writer.close).start()  # the example follows it to its end
        (example,) = blocks(WEB)
        names = run_block(example.replace(":8790", f":{web.port}"))
    assert "(0,) 7.0" in capsys.readouterr().out
    assert names["image"].shape == (1, 8, 8)


def test_the_picture_shows_todays_page():
    with Image.open(PICTURE) as picture:
        assert picture.text[KEY] == page_labels(), "make it anew: python -m tests.daemon.page_picture"


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
    """The recipes are run in test_recipes.py."""
    assert len(PYTHON) == 4
    others = {path.name for path in DOCUMENTS[1:] if blocks(path.read_text(encoding="utf-8"))}
    assert others - LEFT_OUT == {"SECURITY.md", "README.md", "RECIPES.md"}


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
        shell = "".join(blocks(text, "sh"))
        named |= set(re.findall(r"`shardwright ([a-z][a-z-]*)", text)) | set(
            re.findall(r"(?m:^)shardwright ([a-z][a-z-]*)", shell)
        )
    assert named == set(COMMANDS)


def test_the_two_commands_come_first():
    assert [line.split()[0] for line in README.split("```sh\n")[1].splitlines()[:2]] == [
        "./tools/demo",
        "./tools/test",
    ]
