"""The files of systemd/: accepted by systemd without a warning, hardened, each exception explained, and put
in place by `shardwright install`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest
from tests.harness.daemon import run_cli

from shardwright.config.load import load_config
from shardwright.daemon import installation
from shardwright.daemon.installation import PROGRAM_IN_FILES, plan_installation

CHECKOUT = Path(__file__).parents[2]
SYSTEMD = CHECKOUT / "systemd"
SERVICES = ("shardwright@.service", "shardwright-compact@.service")
UNITS = (*SERVICES, "shardwright-compact@.timer")
PROGRAM = "/usr/bin/env"  # any that units can see and run
MOST_EXPOSED = "15"  # tenths


def analyze(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    if shutil.which("systemd-analyze") is None:
        pytest.fail("systemd-analyze is missing: as root, apt-get install systemd (tools/setup does it)")
    return subprocess.run(
        ["systemd-analyze", "--no-pager", *arguments], capture_output=True, text=True, timeout=60
    )


def install(prefix: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    return run_cli("install", "--prefix", prefix, "--program", PROGRAM, *arguments)


def files_below(folder: Path) -> dict[str, str]:
    return {
        path.relative_to(folder).as_posix(): path.read_text() for path in folder.rglob("*") if path.is_file()
    }


@pytest.fixture
def prefix(tmp_path: Path) -> Path:
    done = install(tmp_path / "prefix")
    assert (done.returncode, done.stderr) == (0, "")
    return tmp_path / "prefix"


def test_systemd_has_nothing_to_say_about_the_installed_units(prefix: Path) -> None:
    done = analyze("verify", *(prefix / "lib/systemd/system" / unit for unit in UNITS))
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_systemd_would_say_what_is_wrong(tmp_path: Path) -> None:
    broken = tmp_path / "shardwright@.service"
    broken.write_text(
        (SYSTEMD / broken.name)
        .read_text()
        .replace("ProtectSystem=", "ProtectSytem=")
        .replace("/opt/shardwright/bin/shardwright", PROGRAM)
    )
    assert "ProtectSytem" in analyze("verify", broken).stderr


@pytest.mark.parametrize("unit", SERVICES)
def test_little_is_left_open_and_each_exception_is_explained(unit: str) -> None:
    done = analyze(
        "security", "--offline=true", f"--threshold={MOST_EXPOSED}", "--json=short", SYSTEMD / unit
    )
    assert done.returncode == 0, done.stdout
    comments = "\n".join(line for line in (SYSTEMD / unit).read_text().splitlines() if line.startswith("#"))
    left_open = {
        re.split("[=/]", check["name"])[0] for check in json.loads(done.stdout) if check["set"] is False
    }
    assert "MemoryDenyWriteExecute" in left_open, "numba needs it"
    assert [name for name in sorted(left_open) if name not in comments] == []


def test_what_the_daemon_does_to_its_own_priority_is_not_refused() -> None:
    """Refused, it would go on, and an append would wait longer for a processor; nobody would see why."""
    lines = (SYSTEMD / SERVICES[0]).read_text().splitlines()
    allowed = {
        call
        for line in lines
        if line.startswith("SystemCallFilter=")
        for call in line.partition("=")[2].split()
    }
    assert {"setpriority", "ioprio_set", "sched_setscheduler", "sched_setattr"} <= allowed


def test_an_open_unit_is_more_exposed_than_we_allow(tmp_path: Path) -> None:
    open_unit = tmp_path / "open.service"
    open_unit.write_text(f"[Service]\nExecStart={PROGRAM}\n")
    assert analyze("security", "--offline=true", f"--threshold={MOST_EXPOSED}", open_unit).returncode != 0


def test_the_users_and_folders_are_what_systemd_takes(tmp_path: Path) -> None:
    """Tried on an empty root. tmpfiles needs the user to exist there, so it is run after sysusers."""
    root = tmp_path / "root"
    (root / "etc").mkdir(parents=True)
    for tool, file in (
        ("systemd-sysusers", "shardwright.sysusers"),
        ("systemd-tmpfiles", "shardwright.tmpfiles"),
    ):
        create = ["--create"] if tool == "systemd-tmpfiles" else []
        done = subprocess.run(
            [tool, f"--root={root}", *create, SYSTEMD / file], capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 0, done.stderr
    assert re.search("^shardwright:", (root / "etc/passwd").read_text(), re.MULTILINE)
    assert re.search("^shardwright:", (root / "etc/group").read_text(), re.MULTILINE)
    modes = {
        "run/shardwright": 0o750,
        "etc/shardwright": 0o755,
        "etc/shardwright/keys": 0o700,
        "etc/shardwright/clients": 0o755,
    }
    assert {name: (root / name).stat().st_mode & 0o777 for name in modes} == modes


def test_units_are_copied_and_a_drop_in_names_this_installation(prefix: Path) -> None:
    installed = files_below(prefix)
    drop_ins = {service: f"lib/systemd/system/{service}.d/installation.conf" for service in SERVICES}
    assert sorted(installed) == sorted(
        [
            "etc/shardwright/example.yaml",
            *(f"lib/systemd/system/{unit}" for unit in UNITS),
            *drop_ins.values(),
            "lib/sysusers.d/shardwright.conf",
            "lib/tmpfiles.d/shardwright.conf",
            "share/doc/shardwright/site.conf.example",
        ]
    )
    for unit in UNITS:
        assert installed[f"lib/systemd/system/{unit}"] == (SYSTEMD / unit).read_text()
    serve, compact = (installed[drop_ins[service]].split("\n", 1)[1] for service in SERVICES)
    condition = f"[Unit]\nConditionPathExists=\nConditionPathExists={prefix}/etc/shardwright/%i.yaml\n"
    assert serve == (
        f"{condition}[Service]\n"
        f"ExecStart=\nExecStart={PROGRAM} serve {prefix}/etc/shardwright/%i.yaml\n"
        f"ExecReload=\nExecReload={PROGRAM} check --reload --json {prefix}/etc/shardwright/%i.yaml\n"
        "ExecReload=kill -HUP $MAINPID\n"
    )
    assert compact == (
        f"{condition}[Service]\n"
        f"ExecStart=\nExecStart={PROGRAM} compact --config {prefix}/etc/shardwright/%i.yaml\n"
    )
    assert f"d {prefix}/etc/shardwright/keys " in installed["lib/tmpfiles.d/shardwright.conf"]
    example = load_config(prefix / "etc/shardwright/example.yaml").config
    service = installed["lib/systemd/system/shardwright@.service"]
    assert f"Group={example.ingest.group}\n" in service, (
        "whoever is in the service's group may connect, as all of these files say"
    )


def test_where_the_units_paths_are_right_there_is_no_drop_in(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of an earlier installation is removed."""
    monkeypatch.setattr(installation, "_check_program", lambda program: None)
    program = Path(PROGRAM_IN_FILES)
    assert {file.outcome for file in plan_installation(Path("/usr"), program, tmp_path)} == {"new"}
    install(Path("/usr"), "--root", str(tmp_path))
    drop_ins = set(tmp_path.rglob("installation.conf"))
    assert len(drop_ins) == len(SERVICES)
    planned = plan_installation(Path("/usr"), program, tmp_path)
    assert {file.target for file in planned if file.outcome == "removed"} == drop_ins
    installation.install(planned)
    assert not list(tmp_path.rglob("installation.conf"))


def test_a_systems_own_prefix_has_its_configuration_in_etc(tmp_path: Path) -> None:
    """As a package would take it: paths in the files are those of the installed system."""
    done = install(Path("/usr"), "--root", str(tmp_path))
    assert done.returncode == 0, done.stderr
    installed = files_below(tmp_path)
    assert "etc/shardwright/example.yaml" in installed
    service = "usr/lib/systemd/system/shardwright@.service"
    for text in (installed[service], installed[f"{service}.d/installation.conf"]):
        assert "serve /etc/shardwright/%i.yaml\n" in text
    assert str(tmp_path) not in "".join(installed.values())


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    done = install(tmp_path / "prefix", "--dry-run")
    assert done.returncode == 0
    assert f"new  {tmp_path}/prefix/etc/shardwright/example.yaml" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_changed_configuration_is_never_overwritten_and_units_are_renewed(prefix: Path) -> None:
    example, unit = (
        prefix / "etc/shardwright/example.yaml",
        prefix / "lib/systemd/system/shardwright@.service",
    )
    shipped = files_below(prefix)
    assert install(prefix).stdout.count("unchanged  ") == len(shipped)
    example.write_text("output: {root: /data}\n")
    unit.write_text("[Service]\n")
    for arguments in (["--dry-run"], [], []):
        done = install(prefix, *arguments)
        assert done.returncode == 0
        assert f"kept  {example}: you changed it; the new one " in done.stdout
        assert f"{example}.new" in done.stdout
        assert (prefix / "etc/shardwright/example.yaml.new").exists() == (arguments == [])
    assert files_below(prefix) == {
        **shipped,
        "etc/shardwright/example.yaml": "output: {root: /data}\n",
        "etc/shardwright/example.yaml.new": shipped["etc/shardwright/example.yaml"],
    }


@pytest.mark.parametrize(
    ("program", "problem"),
    [
        ("/home/me/venv/bin/shardwright", "home folders"),
        ("/opt/no such", "blanks"),
        ("/opt/50%/bin/x", "blanks"),
        ("/etc/passwd", "executable"),
    ],
)
def test_a_program_that_units_could_not_run_is_refused(tmp_path: Path, program: str, problem: str) -> None:
    done = run_cli("install", "--prefix", tmp_path, "--program", program)
    assert (done.returncode, len(done.stderr.splitlines())) == (2, 1)
    assert problem in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_a_place_that_cannot_be_written_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "lib").write_text("")
    done = install(tmp_path)
    assert (done.returncode, len(done.stderr.splitlines())) == (1, 1)
    assert "cannot " in done.stderr


def test_the_package_carries_the_files() -> None:
    """In a wheel they are where ``installation.SOURCES`` looks first."""
    project = tomllib.loads((CHECKOUT / "pyproject.toml").read_text())
    assert (
        project["tool"]["hatch"]["build"]["targets"]["wheel"]["force-include"]["systemd"]
        == "shardwright/systemd"
    )
