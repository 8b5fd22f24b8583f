"""The decisions of the set-up, without an index and without an environment: what it reuses, redoes and
refuses, and what it tells the user."""

import fcntl
import importlib.util
import json
import subprocess
import sys
from pathlib import Path

import pytest

TOOLS = Path(__file__).parents[2] / "tools"


@pytest.fixture
def setup(tmp_path, monkeypatch):
    """The module on an empty checkout; creating and installing are recorded instead of done."""
    spec = importlib.util.spec_from_file_location("setup_venv", TOOLS / "setup_venv.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    for name, path in (("ROOT", ""), ("CACHE", ".cache"), ("LOG", ".cache/setup.log")):
        monkeypatch.setattr(module, name, tmp_path / path)
    module.venv = tmp_path / ".venv"
    (tmp_path / ".cache").mkdir()
    (tmp_path / "pyproject.toml").write_text("[project]\n")
    module.did = []
    monkeypatch.setattr(
        module,
        "create_venv",
        lambda venv: (module.did.append("create"), venv.mkdir(exist_ok=True)),
    )
    monkeypatch.setattr(module, "install", lambda venv, extras: module.did.append(extras))
    monkeypatch.setattr(module, "venv_version", lambda venv: "3.11 here" if venv.exists() else "")
    return module


def test_a_second_run_does_nothing(setup):
    setup.set_up(setup.venv, {"test"})
    assert setup.did == ["create", ["test"]]
    setup.set_up(setup.venv, {"test"})
    setup.set_up(setup.venv, set())
    assert setup.did == ["create", ["test"]]


def test_an_environment_beside_it_is_made_on_its_own(setup):
    """Of two Pythons each has its folder and its state; the first stays as it is."""
    setup.set_up(setup.venv, {"bench"})
    beside = setup.ROOT / ".venv-3.13"
    setup.set_up(beside, {"test"})
    assert setup.did == ["create", ["bench"], "create", ["test"]]
    assert beside.is_dir()
    setup.set_up(setup.venv, {"bench"})
    setup.set_up(beside, {"test"})
    assert len(setup.did) == 4
    assert setup.read_state(setup.venv)["extras"] == ["bench"]
    assert setup.read_state(beside)["extras"] == ["test"]


def test_more_extras_are_added_to_those_installed(setup):
    setup.set_up(setup.venv, {"test"})
    setup.set_up(setup.venv, {"bench"})
    assert setup.did == ["create", ["test"], ["bench", "test"]]


def test_changed_requirements_are_installed_into_the_same_environment(setup):
    setup.set_up(setup.venv, {"test"})
    (setup.ROOT / "pyproject.toml").write_text("[project]\nname = 'other'\n")
    setup.set_up(setup.venv, {"test"})
    assert setup.did == ["create", ["test"], ["test"]]


def test_an_interrupted_install_starts_over(setup, monkeypatch):
    def interrupted(venv, extras):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(setup, "install", interrupted)
        with pytest.raises(KeyboardInterrupt):
            setup.set_up(setup.venv, {"test"})
    setup.set_up(setup.venv, {"test"})
    assert setup.did == ["create", "create", ["test"]]


def test_an_environment_whose_python_is_gone_is_made_again(setup, monkeypatch):
    setup.set_up(setup.venv, {"test"})
    monkeypatch.setattr(setup, "venv_version", lambda venv: "")
    setup.set_up(setup.venv, {"test"})
    assert setup.did == ["create", ["test"], "create", ["test"]]


def test_an_environment_made_by_hand_is_left_alone(setup):
    setup.venv.mkdir()
    with pytest.raises(setup.SetupError, match="not made by this tool"):
        setup.set_up(setup.venv, {"test"})
    assert setup.did == []


def test_each_way_is_tried_until_one_gives_pip(setup, monkeypatch):
    tried = []

    def way(name, works):
        def attempt(venv):
            tried.append(name)
            return works

        return attempt

    spec = importlib.util.spec_from_file_location("setup_venv_again", TOOLS / "setup_venv.py")
    fresh = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(fresh)
    for name in ("ROOT", "CACHE", "LOG"):
        monkeypatch.setattr(fresh, name, getattr(setup, name))
    monkeypatch.setattr(fresh, "WAYS", (way("fails", False), way("works", True), way("never", True)))
    monkeypatch.setattr(fresh, "has_pip", lambda venv: True)
    fresh.create_venv(setup.venv)
    assert tried == ["fails", "works"]
    fresh.LOG.write_text("")
    monkeypatch.setattr(fresh, "WAYS", (way("fails", False),))
    with pytest.raises(fresh.SetupError, match="apt-get install python3-venv"):
        fresh.create_venv(setup.venv)


def test_an_unreachable_index_is_named_as_the_cause(setup):
    setup.LOG.write_text("WARNING: Retrying after connection broken by 'NewConnectionError'\n")
    with pytest.raises(setup.SetupError, match="package index could not be reached"):
        setup.explain_unreachable()
    setup.LOG.write_text("ERROR: something else\n")
    setup.explain_unreachable()


def test_two_set_ups_take_turns(setup):
    with setup.only_one():
        code = (
            f"import fcntl; fcntl.flock(open({str(setup.CACHE / 'setup.lock')!r}), fcntl.LOCK_EX | "
            f"fcntl.LOCK_NB)"
        )
        assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL).returncode != 0
    with (setup.CACHE / "setup.lock").open() as lock:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)


def test_a_state_that_is_no_json_counts_as_none(setup):
    state = setup.CACHE / "setup.json"
    state.write_text("{")
    assert setup.read_state(setup.venv) == {}
    setup.write_state(setup.venv, {"phase": "building"})
    assert json.loads(state.read_text()) == {"phase": "building"}


@pytest.fixture
def system(setup, monkeypatch):
    """A system of its own: which programs it has, who the user is, what apt-get was told, and whether that
    helps."""

    class System:
        def __init__(self):
            self.programs = {"apt-get"}
            self.commands = []
            self.reachable = True

        def run(self, command):
            self.commands.append(command)
            if command[1] == "install" and self.reachable:
                self.programs |= set(setup.DEBIAN_PACKAGES["test"])
            return self.reachable

    system = System()
    monkeypatch.setattr(
        setup.shutil,
        "which",
        lambda name, mode=0, path=None: f"/bin/{name}" if name in system.programs else None,
    )
    monkeypatch.setattr(setup, "run_logged", system.run)
    monkeypatch.setattr(setup.os, "geteuid", lambda: 0)
    monkeypatch.setattr(setup.os, "environ", dict(setup.os.environ))
    return system


def test_root_gets_the_missing_programs_from_debian(setup, system, capsys):
    system.programs |= set(setup.DEBIAN_PACKAGES["test"]) - {"chromium", "chromedriver"}
    setup.install_programs({"test"})
    assert [command[1:] for command in system.commands] == [
        ["update"],
        ["install", "-y", "--no-install-recommends", "chromium", "chromium-driver"],
    ]
    assert setup.os.environ["SYSTEMD_OFFLINE"] == "1"
    assert "missing" not in capsys.readouterr().err
    setup.install_programs({"test"})
    assert len(system.commands) == 2, "all of them are there now"


def test_an_extra_without_programs_asks_for_none(setup, system):
    setup.install_programs({"bench", "dev"})
    assert system.commands == []


@pytest.mark.parametrize("why", ["not_root", "no_apt", "unreachable"])
def test_programs_that_cannot_be_installed_are_named_with_what_to_do(setup, system, monkeypatch, capsys, why):
    if why == "not_root":
        monkeypatch.setattr(setup.os, "geteuid", lambda: 1000)
    elif why == "no_apt":
        system.programs -= {"apt-get"}
    system.programs |= set(setup.DEBIAN_PACKAGES["test"]) - {
        "chromium",
        "chromedriver",
        "promtool",
        "systemd-analyze",
    }
    system.reachable = why != "unreachable"
    setup.install_programs({"test"})
    assert bool(system.commands) == (why == "unreachable")
    said = capsys.readouterr().err
    assert "chromedriver, chromium, promtool, systemd-analyze missing" in said
    assert "apt-get install chromium chromium-driver prometheus systemd" in said
