"""Failpoints: set, reached, taken back; by environment too."""

from __future__ import annotations

import errno

import pytest

from shardwright.storage import failpoints


@pytest.fixture(autouse=True)
def no_hooks(monkeypatch):
    monkeypatch.setattr(failpoints, "_hooks", {})


def test_a_hook_runs_at_its_own_point_only():
    reached = []
    failpoints.set_hook("here", lambda: reached.append("here"))
    failpoints.reach("there")
    failpoints.reach("here")
    failpoints.set_hook("here", None)
    failpoints.reach("here")
    assert reached == ["here"]


def test_hooks_from_the_environment(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_FAILPOINTS", "a=eio,b=enospc")
    failpoints.load_from_environment()
    for point, number in (("a", errno.EIO), ("b", errno.ENOSPC)):
        with pytest.raises(OSError) as caught:  # noqa: PT011  (the errno is looked at below)
            failpoints.reach(point)
        assert caught.value.errno == number


@pytest.mark.parametrize("setting", ["a", "a=", "a=explode"])
def test_an_unknown_action_is_refused(monkeypatch, setting):
    monkeypatch.setenv("SHARDWRIGHT_FAILPOINTS", setting)
    with pytest.raises(ValueError, match="is not one of kill, eio, enospc"):
        failpoints.load_from_environment()
