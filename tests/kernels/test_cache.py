"""The folder of compiled kernels: old ones go, the one in use stays."""

import os

from shardwright.kernels import cache


def test_a_clock_that_was_set_back_does_not_cost_the_newest_folder(tmp_path):
    for i in range(cache.KEPT + 2):
        folder = tmp_path / f"kernels-{i}"
        folder.mkdir()
        os.utime(folder, (2e9 + i, 2e9 + i))  # made while the clock was ahead
    newest = tmp_path / "kernels-new"
    newest.mkdir()
    cache._delete_old(newest)
    kept = {folder.name for folder in tmp_path.iterdir()}
    assert kept == {"kernels-new", *(f"kernels-{i}" for i in range(2, cache.KEPT + 2))}
