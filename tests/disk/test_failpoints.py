"""Failpoints: set, reached, taken back; by environment too."""

from __future__ import annotations

import errno

import pytest

from shardwright.disk import failpoints


@pytest.fixture(autouse=True)
def no_hooks(monkeypatch):
    monkeypatch.setattr(failpoints, "_hooks", {})
    monkeypatch.setattr(failpoints, "_watchers", [])


def test_a_hook_runs_at_its_own_point_only():
    reached = []
    failpoints.set_hook("here", lambda: reached.append("here"))
    failpoints.reach("there")
    failpoints.reach("here")
    failpoints.set_hook("here", None)
    failpoints.reach("here")
    assert reached == ["here"]


def test_a_watcher_sees_every_point_before_its_hook():
    seen = []
    failpoints.watch_all(lambda name: seen.append(f"watched {name}"))
    failpoints.set_hook("here", lambda: seen.append("hook"))
    failpoints.reach("there")
    failpoints.reach("here")
    failpoints.watch_all(None)
    failpoints.reach("there")
    assert seen == ["watched there", "watched here", "hook"]


def reached_until_it_fails(names):
    for done, name in enumerate(names):
        try:
            failpoints.reach(name)
        except OSError:
            return done
    return len(names)


def test_the_nth_time_of_a_point_and_of_all(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_FAILPOINTS", "a=eio@2,*=enospc@5")
    failpoints.load_from_environment()
    assert reached_until_it_fails("baba") == 3
    assert reached_until_it_fails("a") == 0, "the fifth of all"
    assert reached_until_it_fails("aabab") == 5


def test_hooks_from_the_environment(monkeypatch):
    monkeypatch.setenv("SHARDWRIGHT_FAILPOINTS", "a=eio,b=enospc")
    failpoints.load_from_environment()
    for point, number in (("a", errno.EIO), ("b", errno.ENOSPC)):
        with pytest.raises(OSError) as caught:  # noqa: PT011  (the errno is looked at below)
            failpoints.reach(point)
        assert caught.value.errno == number


@pytest.mark.parametrize("setting", ["a", "a=", "a=explode", "a=kill@", "a=kill@often"])
def test_an_unknown_action_is_refused(monkeypatch, setting):
    monkeypatch.setenv("SHARDWRIGHT_FAILPOINTS", setting)
    with pytest.raises(ValueError, match="is not one of kill, eio, enospc"):
        failpoints.load_from_environment()
