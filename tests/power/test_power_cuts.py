"""Disks as a power cut may leave them, on three filesystems; and broken writers, which must be found out.
``./tools/prove power`` makes thousands."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from .mutants import MUTANTS
from .requirements import FILESYSTEMS, why_not

REPOSITORY = Path(__file__).parents[2]
# of rounds that differ: one on each filesystem, each in another io mode, one of them resumed after a kill and
# one recovered after a cut; ext4 once more; and in the fifth a writer hangs and is taken over
IMAGES, ROUNDS, FIRST_SEED = 50, 5, 3

pytestmark = pytest.mark.skipif(why_not() is not None, reason=str(why_not()))


def prove(tmp_path: Path, *options: object) -> tuple[int, dict]:
    summary = tmp_path / "summary.json"
    command = [sys.executable, "-m", "tests.power", "--json", summary, "--no-every-prefix", *options]
    done = subprocess.run(
        [str(c) for c in command], cwd=REPOSITORY, capture_output=True, text=True, check=False
    )
    assert summary.exists(), done.stderr
    print(done.stderr)
    return done.returncode, json.loads(summary.read_text(encoding="utf-8"))


def test_nothing_durable_is_lost_and_no_final_shard_is_torn(tmp_path):
    code, summary = prove(
        tmp_path, "--images", IMAGES, "--images-per-round", IMAGES // ROUNDS, "--seed", FIRST_SEED
    )
    assert summary["violations"] == []
    assert (code, summary["violating_images"], summary["failed_recordings"]) == (0, 0, 0)
    assert summary["images"] >= 0.9 * IMAGES
    assert set(summary["filesystems"]) == set(FILESYSTEMS)
    assert summary["with_promise"] > summary["images"] / 2
    assert summary["unmountable"] < summary["images"] / 20


def test_a_shard_that_is_packed_is_the_old_file_or_the_new_one(tmp_path):
    code, summary = prove(tmp_path, "--compaction", "--images", 45, "--images-per-round", 15)
    assert summary["violations"] == []
    assert (code, summary["violating_images"], summary["failed_recordings"]) == (0, 0, 0)
    assert set(summary["filesystems"]) == set(FILESYSTEMS)
    assert summary["with_promise"] == summary["images"] >= 40


@pytest.mark.parametrize(("option", "counted"), [("--adds-images", "with_added"), ("--goes-on", "going_on")])
def test_images_that_are_added_and_stores_that_go_on_keep_what_they_had(tmp_path, option, counted):
    code, summary = prove(tmp_path, option, "--images", 30, "--images-per-round", 10, "--seed", FIRST_SEED)
    assert summary["violations"] == []
    assert (code, summary["violating_images"], summary["failed_recordings"]) == (0, 0, 0)
    assert set(summary["filesystems"]) == set(FILESYSTEMS)
    assert summary[counted] > 0


@pytest.mark.parametrize(
    "job",
    [
        "move",
        "hdf5",
        *(pytest.param(job, marks=pytest.mark.slow) for job in ("rechunk", "pyramid", "describe")),
    ],
)
def test_a_store_that_is_moved_or_made_anew_is_whole_wherever_it_is_found(tmp_path, job):
    code, summary = prove(tmp_path, "--job", job, "--images", 30, "--images-per-round", 10)
    assert summary["violations"] == []
    assert (code, summary["violating_images"], summary["failed_recordings"]) == (0, 0, 0)
    assert set(summary["filesystems"]) == set(FILESYSTEMS)


def test_a_shard_that_is_updated_has_the_old_chunks_or_the_new_ones(tmp_path):
    code, summary = prove(tmp_path, "--job", "edit", "--images", 60, "--images-per-round", 20)
    assert summary["violations"] == []
    assert (code, summary["violating_images"], summary["failed_recordings"]) == (0, 0, 0)
    assert set(summary["filesystems"]) == set(FILESYSTEMS)


def test_an_update_that_does_not_sync_is_found_out(tmp_path):
    options = ["--filesystem", "ext4", "--images-per-round", 40, "--images", 80, "--until-violation"]
    code, summary = prove(tmp_path, "--job", "edit", "--mutant", "no-sync", *options)
    assert (code, summary["violating_images"] > 0) == (1, True)


def test_a_move_that_does_not_sync_is_found_out(tmp_path):
    options = ["--filesystem", "ext4", "--images-per-round", 20, "--images", 40, "--until-violation"]
    code, summary = prove(tmp_path, "--job", "move", "--mutant", "no-sync", *options)
    assert (code, summary["violating_images"] > 0) == (1, True)


IN_THE_QUICK_SUITE = ("no-journal-sync",)


@pytest.mark.parametrize(
    "mutant",
    [pytest.param(name, marks=[] if name in IN_THE_QUICK_SUITE else pytest.mark.slow) for name in MUTANTS],
)
def test_a_broken_writer_is_found_out(tmp_path, mutant):
    broken = MUTANTS[mutant]
    options = [
        "--filesystem",
        broken.found_on,
        "--seed",
        broken.seed,
        "--images-per-round",
        100,
        "--images",
        500,
        "--until-violation",
        *broken.options,
    ]
    code, summary = prove(tmp_path, "--mutant", mutant, *options)
    assert code == 1
    assert summary["violating_images"] > 0, f"not seen: {broken.breaks}"
