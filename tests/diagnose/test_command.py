"""``shardwright check`` as people and programs run it."""

from __future__ import annotations

import json

from tests.harness.daemon import run_cli

from shardwright.disk.choose_io import resolve_io


def test_people_and_programs_are_told_the_same(config):
    shown, told = run_cli("check", config), run_cli("check", config, "--json")
    facts = json.loads(told.stdout)
    assert shown.returncode == told.returncode == (0 if facts["ok"] else 1)
    assert shown.stderr == told.stderr == ""
    for finding in facts["findings"]:
        assert finding.keys() == {"check", "result", "found", "advice"}
        assert finding["check"] in shown.stdout
    warned = sum(finding["result"] == "warn" for finding in facts["findings"])
    assert shown.stdout.splitlines()[-1] == f"will run here; warnings: {warned}  {config}"
    assert not list((config.parent / "data").iterdir()), "nothing is left in the output root"


def test_the_choice_of_how_to_write_is_shown_with_its_reason(config):
    done = run_cli("check", config, "--json")
    found = {finding["check"]: finding["found"] for finding in json.loads(done.stdout)["findings"]}
    mode, _, why = found["output.root: writing"].partition(", ")
    assert mode == resolve_io("auto", [config.parent / "data"])
    assert why
    assert not list((config.parent / "data").iterdir()), "nothing is left in the output root"


def test_what_is_bad_is_the_exit_code(config):
    (config.parent / "data").rmdir()
    done = run_cli("check", config, "--json")
    assert done.returncode == 1
    facts = json.loads(done.stdout)
    assert not facts["ok"]
    (bad,) = [finding for finding in facts["findings"] if finding["result"] == "bad"]
    assert (bad["check"], bad["found"]) == ("output.root", f"output root {config.parent}/data does not exist")
    assert "output.create" in bad["advice"]
    assert not (config.parent / "data").exists(), "it finds, and changes nothing"


def test_a_configuration_that_cannot_be_read(config):
    config.write_text("output: 5\n")
    done = run_cli("check", config)
    assert (done.returncode, done.stderr) == (1, "")
    assert f" {config}:1: output: " in done.stdout
    assert done.stdout.splitlines()[-1] == f"will not run here: configuration  {config}"
