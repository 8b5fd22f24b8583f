"""``shardwright doctor`` as people and programs run it."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys

from tests.harness.daemon import run_cli

from shardwright.storage.choose_io import VARIABLE


def test_a_table_and_json_say_the_same(config):
    shown, told = run_cli("doctor", config), run_cli("doctor", config, "--json")
    facts = json.loads(told.stdout)
    assert shown.returncode == told.returncode == (0 if facts["ok"] else 1)
    assert shown.stderr == told.stderr == ""
    for finding in facts["findings"]:
        assert finding.keys() == {"check", "result", "found", "advice"}
        assert finding["check"] in shown.stdout
    counted = [
        sum(finding["result"] == result for finding in facts["findings"]) for result in ("ok", "warn", "bad")
    ]
    assert shown.stdout.splitlines()[-1] == "{} ok, {} to be looked at, {} bad".format(*counted)
    assert not list((config.parent / "data").iterdir()), "nothing is left in the output root"


def test_the_choice_of_how_to_write_is_measured_and_shown(config):
    """On a disk with room; elsewhere it says why it was not measured."""
    environment = {name: value for name, value in os.environ.items() if name != VARIABLE}
    done = subprocess.run(
        [sys.executable, "-m", "shardwright.cli", "doctor", str(config), "--json"],
        capture_output=True,
        text=True,
        env=environment,
        check=False,
    )
    (found,) = [
        finding["found"]
        for finding in json.loads(done.stdout)["findings"]
        if finding["check"] == "output.root: writing"
    ]
    assert re.fullmatch(r"(direct|mmap|pwrite), (not measured: .+|.+; .*pwrite [0-9.]+ GB/s)", found)
    assert not list((config.parent / "data").iterdir()), "nothing is left in the output root"


def test_what_is_bad_is_the_exit_code(config):
    (config.parent / "data").rmdir()
    done = run_cli("doctor", config, "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert not facts["ok"]
    (bad,) = [finding for finding in facts["findings"] if finding["check"] == "output.root: permissions"]
    assert (bad["result"], bad["found"]) == ("bad", f"{config.parent}/data: it is not there")
    assert "output.create" in bad["advice"]
    assert not (config.parent / "data").exists(), "it finds, and changes nothing"


def test_a_configuration_that_cannot_be_read(config):
    config.write_text("output: 5\n")
    done = run_cli("doctor", config)
    assert (done.returncode, done.stdout) == (2, "")
    assert done.stderr.startswith(f"shardwright: {config}:1: output: ")
    assert len(done.stderr.splitlines()) == 1
