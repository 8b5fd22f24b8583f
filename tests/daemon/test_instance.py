"""``shardwright install --instance``: what one daemon needs beside the units, made once, found again, never
overwritten; and a daemon that runs with it."""

from __future__ import annotations

import getpass
import grp
import json
import os
import re
import stat
import subprocess
import sys
import venv
from pathlib import Path

import numpy as np
import pytest
from tests.harness.daemon import DaemonProcess

import shardwright as sw
from shardwright.config.load import load_config
from shardwright.daemon import instance
from shardwright.daemon.instance import make_folders, plan_instance
from shardwright.model.errors import ConfigError, StorageError

from .test_units import CHECKOUT, PROGRAM, analyze, files_below, install

UNITS = "lib/systemd/system"
DROP_INS = [
    f"{UNITS}/shardwright@rig1.service.d/paths.conf",
    f"{UNITS}/shardwright-compact@rig1.service.d/paths.conf",
]


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    done = install(tmp_path / "prefix", "--instance", "rig1")
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path / "prefix"


def config_of(prefix: Path) -> Path:
    return prefix / "etc/shardwright/rig1.yaml"


def write_to(prefix: Path, root: str, spill: str | None = None) -> None:
    spilled = f"\n  spill_root: {spill}" if spill else ""
    config_of(prefix).write_text(
        re.sub("root: .*(\n  spill_root: .*)?", f"root: {root}{spilled}", config_of(prefix).read_text())
    )


def test_an_instance_has_a_root_and_sockets_of_its_own(prefix: Path) -> None:
    config = load_config(config_of(prefix)).config
    example = load_config(prefix / "etc/shardwright/example.yaml").config
    assert str(config.output.root) == "/var/lib/shardwright/rig1"
    assert config.ingest.endpoints == ("ipc:///run/shardwright/rig1/ingest.sock",)
    assert config.control_socket_path == "/run/shardwright/rig1/control.sock"
    assert (config.output.root, config.ingest.endpoints) != (example.output.root, example.ingest.endpoints)
    assert "shardwright@rig1" in config_of(prefix).read_text()
    assert (
        "`shardwright install --instance NAME` makes such a file for another one, shardwright@NAME,"
        in config_of(prefix).read_text()
    )
    assert not [name for name in files_below(prefix) if "paths.conf" in name], (
        "the units make and open /var/lib/shardwright/rig1 themselves"
    )


def test_what_a_site_wrote_is_never_touched(prefix: Path) -> None:
    config_of(prefix).write_text("output: {root: /var/lib/shardwright/mine}\n")
    before = files_below(prefix)
    done = install(prefix, "--instance", "rig1")
    assert done.returncode == 0, done.stderr
    assert f"left  {config_of(prefix)}\n" in done.stdout
    assert files_below(prefix) == before


def test_drop_ins_follow_the_folders_of_the_configuration(prefix: Path) -> None:
    before = files_below(prefix)
    write_to(prefix, "/data/rig1", "/spill/rig1")
    assert "new  " + str(prefix / DROP_INS[0]) in install(prefix, "--instance", "rig1").stdout
    for name in DROP_INS:
        text = (prefix / name).read_text()
        assert "\nRequiresMountsFor=/data/rig1 /spill/rig1\n" in text
        assert "\nReadWritePaths=-/data/rig1 -/spill/rig1\n" in text
    assert "unchanged  " + str(prefix / DROP_INS[0]) in install(prefix, "--instance", "rig1").stdout
    write_to(prefix, "/disk2/rig1")
    assert "updated  " + str(prefix / DROP_INS[0]) in install(prefix, "--instance", "rig1").stdout
    assert "/data" not in (prefix / DROP_INS[1]).read_text()
    write_to(prefix, "/var/lib/shardwright/rig1")
    assert (
        "removed  " + str(prefix / DROP_INS[0]) in install(prefix, "--instance", "rig1", "--dry-run").stdout
    )
    assert (prefix / DROP_INS[0]).exists()
    install(prefix, "--instance", "rig1")
    assert files_below(prefix) == before


def test_systemd_takes_the_units_with_their_drop_ins(prefix: Path) -> None:
    write_to(prefix, "/data/rig1")
    install(prefix, "--instance", "rig1")
    done = analyze(
        "verify",
        prefix / UNITS / "shardwright@rig1.service",
        prefix / UNITS / "shardwright-compact@rig1.service",
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    (prefix / DROP_INS[0]).write_text("[Service]\nReadWritePaths=data\n")
    assert "paths.conf" in analyze("verify", prefix / UNITS / "shardwright@rig1.service").stderr, (
        "drop-ins are looked at"
    )


def test_a_dry_run_and_a_report_for_programs(tmp_path: Path) -> None:
    done = install(tmp_path / "prefix", "--instance", "rig1", "--dry-run", "--json")
    assert (done.returncode, done.stderr) == (0, "")
    facts = json.loads(done.stdout)
    assert facts["dry_run"]
    assert {"path": str(config_of(tmp_path / "prefix")), "outcome": "new", "written": None} in facts["files"]
    assert [folder["path"] for folder in facts["folders"]] == ["/var/lib/shardwright/rig1"]
    assert facts["next"][-1] == "systemctl enable --now shardwright@rig1"
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("name", "config", "problem"),
    [
        ("../rig1", None, "not a name for an instance"),
        ("a b", None, "not a name for an instance"),
        ("example", None, "not example"),
        ("rig1", "output: {root: /home/me/data}\n", "cannot see home folders"),
        ("rig1", "output: {root: /data, spill_root: /tmp/spill}\n", "cannot see home folders"),
        ("rig1", "output: {root: '/data/my rig'}\n", "without blanks"),
        ("rig1", "output: {root: /data, rot: 1}\n", "rig1.yaml:1: output.rot: is not a known key"),
    ],
)
def test_what_no_service_could_run_with_is_refused_before_anything_is_written(
    tmp_path: Path, name: str, config: str | None, problem: str
) -> None:
    prefix = tmp_path / "prefix"
    if config is not None:
        config_of(prefix).parent.mkdir(parents=True)
        config_of(prefix).write_text(config)
    done = install(prefix, "--instance", name)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert problem in done.stderr
    assert sorted(files_below(tmp_path)) == ([] if config is None else ["prefix/etc/shardwright/rig1.yaml"])


@pytest.fixture
def own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A prefix with a configuration whose folders lie in the test's own, where the daemon's user is whoever
    runs this."""
    monkeypatch.setattr(instance, "HIDDEN_BY_UNITS", ())
    monkeypatch.setattr(instance, "USER", getpass.getuser())
    config_of(tmp_path).parent.mkdir(parents=True)
    config_of(tmp_path).write_text(f"output: {{root: {tmp_path}/data/rig1, spill_root: {tmp_path}/spill}}\n")
    return tmp_path


def test_folders_are_made_for_the_daemons_user(own: Path) -> None:
    folders = plan_instance("rig1", own).folders
    assert [(folder.path, folder.outcome) for folder in folders] == [
        (own / "data/rig1", "new"),
        (own / "spill", "new"),
    ]
    make_folders(folders)
    for folder in folders:
        assert folder.path.owner() == getpass.getuser()
        assert stat.S_IMODE(folder.path.stat().st_mode) == 0o2750
    assert [folder.outcome for folder in plan_instance("rig1", own).folders] == ["unchanged", "unchanged"]


def test_a_folder_of_somebody_else_is_left_to_him(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (own / "spill").mkdir(mode=0o700)
    monkeypatch.setattr(instance, "USER", "nobody")
    data, spill = plan_instance("rig1", own).folders
    assert (data.outcome, spill.outcome, spill.owner) == (
        "new",
        "kept",
        f"{getpass.getuser()}:{grp.getgrgid(os.getgid()).gr_name}",
    )
    make_folders([spill])
    assert stat.S_IMODE((own / "spill").stat().st_mode) == 0o700


def test_folders_wait_for_the_daemons_user(own: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As before systemd-sysusers has run. The one below /var/lib/shardwright is made by systemd; of others it
    is said how."""
    monkeypatch.setattr(instance, "USER", "no-such-user")
    made = plan_instance("rig1", own)
    make_folders(made.folders)
    assert [folder.outcome for folder in made.folders] == ["later", "later"]
    assert made.by_hand() == [
        f"install -d -o no-such-user -g no-such-user -m 2750 {own}/{name}" for name in ("data/rig1", "spill")
    ]
    assert not (own / "data").exists()
    assert plan_instance("rig2", own).by_hand() == []


def test_a_folder_that_cannot_be_made_comes_with_the_command(own: Path) -> None:
    (own / "data").touch()
    with pytest.raises((StorageError, ConfigError), match=r"(cannot make|cannot look at) .*data/rig1"):
        make_folders(plan_instance("rig1", own).folders)


def test_what_the_configuration_uses_is_named_where_it_is_missing(
    own: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config_of(own).write_text("output: {root: /data}\nhttp: {enabled: true}\n")
    assert plan_instance("rig1", own).packages is None, "the tests have it"

    def missing() -> None:
        raise ConfigError("needs packages that are not installed: starlette")

    monkeypatch.setattr(instance, "check_packages", missing)
    assert plan_instance("rig1", own).packages == (
        f"{Path(sys.executable).parent}/pip install 'shardwright[web]'"
    )


def fit_to_this_machine(config: Path, folder: Path) -> None:
    """Leaves the instance's own configuration as it is, but for the folders that systemd makes, the group
    that the recipe makes, and 50 GiB of free disk."""
    (folder / "lib/rig1").mkdir(parents=True)
    (folder / "run/rig1").mkdir(parents=True)
    group = grp.getgrgid(os.getgid()).gr_name
    config.write_text(
        config.read_text()
        .replace("/var/lib/shardwright", f"{folder}/lib")
        .replace("/run/shardwright", f"{folder}/run")
        .replace("group: shardwright", f"group: {group}")
        .replace("50GiB", "1MiB")
        .replace("output:", "output:\n  in_memory: true")
    )


def test_a_daemon_runs_as_the_service_would_start_it(prefix: Path, folder: Path) -> None:
    fit_to_this_machine(config_of(prefix), folder)
    settings = (prefix / UNITS / "shardwright@.service.d/installation.conf").read_text()
    _, command = re.findall("(?m)^ExecStart=(.*)$", settings)
    program, *arguments = command.replace("%i", "rig1").split()
    assert (program, arguments) == (PROGRAM, ["serve", str(config_of(prefix))])
    with DaemonProcess(Path(arguments[1]), fresh=True) as daemon:
        assert daemon.wait_for("ready")["endpoints"] == [f"ipc://{folder}/run/rig1/ingest.sock"]
        spec = sw.ArraySpec(
            dtype="uint8",
            dimensions=[
                sw.Dimension(name=n, count=c, chunk_size=8) for n, c in (("t", None), ("y", 8), ("x", 8))
            ],
        )
        with (
            sw.connect(f"ipc://{folder}/run/rig1/ingest.sock") as connection,
            connection.acquire("a", spec) as stream,
        ):
            stream.append(np.ones((8, 8), np.uint8))
        assert stream.receipt.frames_stored == 1
        assert (folder / "lib/rig1/a.ome.zarr/zarr.json").exists()
        assert daemon.stop() == 0


@pytest.mark.slow
def test_the_readmes_recipe(tmp_path: Path, folder: Path) -> None:
    """What pip installs in the recipe suffices for the units, the instance and a daemon's start; packages
    come from the package index."""
    recipe = re.search(
        r"## Install it.*?```sh\n(.*?)```",
        (CHECKOUT / "src/shardwright/daemon/README.md").read_text(encoding="utf-8"),
        re.DOTALL,
    )
    assert recipe is not None
    (wanted,) = re.findall(r"/opt/shardwright/bin/pip install '\.(\[\w+\])'", recipe[1])
    (installing,) = re.findall(
        r"(?m)^/opt/shardwright/bin/shardwright (install [^#\n]*?) *(?:#.*)?$", recipe[1]
    )
    environment = {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}
    venv.create(tmp_path / "venv")
    python = tmp_path / "venv/bin/python"
    pip = [
        sys.executable,
        "-m",
        "pip",
        "--disable-pip-version-check",
        "--python",
        python,
        "install",
        "-q",
        "--prefer-binary",
        f"{CHECKOUT}{wanted}",
    ]
    subprocess.run(pip, check=True, env=environment)

    def run(*arguments: str) -> str:
        command = [tmp_path / "venv/bin/shardwright", *arguments]
        done = subprocess.run(
            command, env=environment, cwd=tmp_path, capture_output=True, text=True, timeout=120, check=False
        )
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    told = run(*installing.split(), "--prefix", str(tmp_path / "prefix"), "--program", PROGRAM)
    assert told.endswith("systemctl enable --now shardwright@rig1\n")
    fit_to_this_machine(config_of(tmp_path / "prefix"), folder)
    run("check", str(config_of(tmp_path / "prefix")))
