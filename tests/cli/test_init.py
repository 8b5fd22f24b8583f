"""``shardwright init``: what it writes, what it asks, and what it leaves alone."""

from __future__ import annotations

import errno
import io
import json
import os
import shlex
from pathlib import Path

import pytest
from tests.harness.run_folder import CHECKOUT

from shardwright.cli.app import main
from shardwright.config.load import load_config
from shardwright.disk import system

CAMERA = ("--camera", "camera", "--shape", "2048x2048", "--frame-rate", "100")
MINIMAL = (CHECKOUT / "configs/minimal.yaml").read_text(encoding="utf-8")


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture(autouse=True)
def in_an_empty_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(folder)


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    with pytest.raises(SystemExit) as ended:
        main(arguments)
    told = capsys.readouterr()
    return int(str(ended.value.code)), told.out, told.err


def accepted(capsys: pytest.CaptureFixture[str], config: str) -> bool:
    """Whether ``check`` accepts it, on the disk of the tests, which may be one in memory."""
    trial = Path(config).with_name("trial.yaml")
    text = Path(config).read_text(encoding="utf-8")
    trial.write_text(text.replace("output:\n", "output:\n  in_memory: true\n"), encoding="utf-8")
    code, told, _ = run(capsys, "check", str(trial), "--json")
    assert json.loads(told)["ok"] == (code == 0), told
    return code == 0


def test_one_camera_is_configs_minimal(capsys: pytest.CaptureFixture[str]) -> None:
    """Without a terminal, as all options are given; ``check`` accepts it, and the next commands are there."""
    code, told, asked = run(capsys, "init", "rig.yaml", "--root", "data", *CAMERA, "--json")
    assert (code, asked) == (0, "")
    assert Path("rig.yaml").read_text(encoding="utf-8") == MINIMAL
    assert len(MINIMAL.splitlines()) <= 16
    facts = json.loads(told)
    here = os.getcwd()  # noqa: PTH109
    assert (facts["config"], facts["root"], facts["streams"]) == ("rig.yaml", f"{here}/data", ["camera"])
    assert facts["next"][:2] == ["shardwright check rig.yaml", "shardwright serve rig.yaml"]
    endpoint = load_config(Path("rig.yaml")).config.ingest.endpoints[0]
    assert facts["endpoint"] == endpoint == f"ipc://{here}/run/ingest.sock"
    assert accepted(capsys, "rig.yaml")
    assert sorted(os.listdir()) == ["rig.yaml", "trial.yaml"], "check leaves nothing"  # noqa: PTH208


def test_what_no_option_says_is_asked(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Again, where an answer is wrong; an empty one is the default."""
    answers = ["~nobody/x", "  ", "left right", "2048", "64 x 96", "64x96", "fast", "-5", "nan", "12.5"]
    monkeypatch.setattr("sys.stdin", Terminal("".join(f"{answer}\n" for answer in answers)))
    code, told, asked = run(capsys, "init", "--dtype", "uint8")
    assert code == 0, asked
    assert "rig.yaml is written" in told
    for question in ("Folder for the stores [data]:", "Names of the cameras [camera]:", "[2048x2048]:"):
        assert question in asked
    counts = {"Names of the cameras": 2, "Rows x columns of a frame": 3, "Frames per second": 4}
    assert {question: asked.count(question) for question in counts} == counts
    assert asked.count("expected at least one name") == asked.count("above 0, got '-5'") == 1
    streams = load_config(Path("rig.yaml")).config.streams
    assert [stream.name for stream in streams] == ["left", "right"]
    for stream in streams:
        assert (stream.frame_rate_hz, stream.array.dtype) == (12.5, "uint8")
        assert stream.array.frame_shape == (64, 96)
    assert accepted(capsys, "rig.yaml")


@pytest.mark.parametrize("missing", ["--root", "--camera", "--shape", "--frame-rate"])
def test_without_a_terminal_a_missing_option_is_named(
    missing: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n" * 9))
    options = ["--root", "data", *CAMERA]
    at = options.index(missing)
    code, _, told = run(capsys, "init", *options[:at], *options[at + 2 :])
    assert code == 2
    assert f"{missing}: is missing, and there is no terminal" in " ".join(told.replace("│", "").split())
    assert os.listdir() == []  # noqa: PTH208


def test_an_existing_file_is_replaced_only_by_force(capsys: pytest.CaptureFixture[str]) -> None:
    """Nothing is asked before."""
    config = Path("rig.yaml")
    config.write_text("output: {root: mine}\n")
    code, _, told = run(capsys, "init")
    assert (code, told) == (
        2,
        "shardwright: rig.yaml exists. Give another name, or --force to replace it\n",
    )
    assert config.read_text() == "output: {root: mine}\n"
    assert run(capsys, "init", "--force", "--root", "data", *CAMERA)[0] == 0
    assert config.read_text(encoding="utf-8") == MINIMAL


@pytest.mark.parametrize("options", [(), ("--force",)])
@pytest.mark.parametrize("what", ["link", "pipe"])
def test_what_is_no_file_is_never_replaced(
    what: str, options: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    """A link may lead to another rig's configuration."""
    if what == "link":
        Path("rig.yaml").symlink_to("elsewhere.yaml")
    else:
        os.mkfifo("rig.yaml")
    is_what = "a link to elsewhere.yaml" if what == "link" else "no regular file"
    code, _, told = run(capsys, "init", *options)
    assert (code, told) == (2, f"shardwright: rig.yaml is {is_what}. Give another name\n")
    assert not Path("elsewhere.yaml").exists()


def test_a_write_that_fails_leaves_the_old_file(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    config = Path("rig.yaml")
    config.write_text("output: {root: mine}\n")

    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(system.calls, "write", full)
    code, _, told = run(capsys, "init", "--force", "--root", "data", *CAMERA)
    assert (code, "No space left on device" in told) == (1, True)
    assert config.read_text() == "output: {root: mine}\n"
    assert os.listdir() == ["rig.yaml"]  # noqa: PTH208


@pytest.mark.parametrize("place", ["closed/x", f"{'d' * 300}/x"])
@pytest.mark.parametrize("option", ["CONFIG", "--root"])
def test_a_path_that_cannot_be_looked_at_is_said(
    place: str, option: str, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    stat = os.stat

    def closed(path: object, **how: bool) -> os.stat_result:
        if str(path) == "closed/x":
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES))
        return stat(path, **how)  # type: ignore[call-overload,no-any-return]

    monkeypatch.setattr(os, "stat", closed)
    config, root = (place, "data") if option == "CONFIG" else ("rig.yaml", place)
    code, told, line = run(capsys, "init", config, "--root", root, *CAMERA, "--json")
    assert (code, json.loads(told)["error"]["code"]) == (1, "storage")
    assert line.startswith(f"shardwright: cannot look at {place}: ")


def test_a_place_too_long_for_a_socket_has_a_way_out(capsys: pytest.CaptureFixture[str]) -> None:
    folder = Path("d" * 100)
    folder.mkdir()
    code, _, told = run(capsys, "init", f"{folder}/rig.yaml", "--root", "data", *CAMERA)
    assert (code, "Give a shorter path: --endpoint ipc:///" in told) == (2, True)
    short = ("--endpoint", "ipc:///run/shardwright/rig1/ingest.sock")
    assert run(capsys, "init", f"{folder}/rig.yaml", "--root", "data", *CAMERA, *short)[0] == 0
    assert load_config(folder / "rig.yaml").config.ingest.endpoints == (short[1],)


@pytest.mark.parametrize("root", ["null", "1e3", "a b: c", "a #b", "'", "[x", "true", "ü", "~"])
def test_any_folder_and_any_place_of_the_file(root: str, capsys: pytest.CaptureFixture[str]) -> None:
    """A path that is typed counts from the working directory, wherever the file is. A folder that is there
    may be a disk: it is not made."""
    Path("etc").mkdir()
    for config, is_there in (("rig.yaml", False), ("etc/rig.yaml", True)):
        assert run(capsys, "init", config, "--root", root, *CAMERA)[0] == 0
        output = load_config(Path(config)).config.output
        assert (output.root, output.create) == (Path.cwd() / root, not is_there)
        output.root.mkdir(exist_ok=True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        (("--shape", "70000x70000"), "memory.budget: too small"),
        (("--shape", "0x5"), "numbers above 0"),
        (("--camera", "a/b"), "streams[1].name: is not valid"),
        (("--camera", "camera"), "streams[1].name: must differ"),
        (("--dtype", "u2"), "expected one of bool"),
        (("--root", "s3://bucket/x"), "s3:/bucket/x is an address"),
    ],
)
def test_what_cannot_work_is_not_written(
    options: tuple[str, ...], says: str, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, told = run(capsys, "init", "--root", "data", *CAMERA, *options)
    assert code == 2
    assert says in " ".join(told.replace("│", "").split())
    assert os.listdir() == []  # noqa: PTH208


def test_a_file_that_cannot_be_written(capsys: pytest.CaptureFixture[str]) -> None:
    code, _, told = run(capsys, "init", "absent/rig.yaml", "--root", "data", *CAMERA)
    assert (code, told) == (
        1,
        f"shardwright: cannot write {Path.cwd()}/absent/rig.yaml: No such file or directory\n",
    )


def test_the_next_commands_can_be_pasted(capsys: pytest.CaptureFixture[str]) -> None:
    _, told, _ = run(capsys, "init", "my rig.yaml", "--root", "data", *CAMERA)
    assert shlex.split(told.splitlines()[1]) == ["shardwright", "check", "my rig.yaml"]
