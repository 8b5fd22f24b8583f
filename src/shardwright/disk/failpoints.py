"""Named points at which a test makes storage fail, stall or die. There is one before every call that changes
a filesystem.

Hooks are set in process by ``set_hook`` or, for a daemon under test, by the environment variable
``SHARDWRIGHT_FAILPOINTS`` at start, e.g. ``shard.before_sync=kill,shard.before_rename=eio``. ``*`` is every
point, and ``@N`` only the N-th time: ``*=kill@137`` dies at the 137th storage call. Without hooks a point
costs two checks of an empty container.
"""

from __future__ import annotations

import errno
import itertools
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

EVERY = "*"
_hooks: dict[str, Callable[[], None]] = {}
_watchers: list[Callable[[str], None]] = []  # at most one: called at every point
_holders: list[Callable[[str], None]] = []  # at most one: called before every look of a reader


def reach(name: str) -> None:
    """Runs the hooks of the point ``name``. Called by storage code, from any thread."""
    if _watchers:
        _watchers[0](name)
    if _hooks and (hook := _hooks.get(name)) is not None:
        hook()


def look(name: str) -> None:
    """Holds a reader, in a test, before it looks at the filesystem. These are no points of ``reach``: a look
    changes nothing, so that nothing is gained by a kill there, and calls counted by ``@N`` stay the same."""
    if _holders:
        _holders[0](name)


def hold_looks(holder: Callable[[str], None] | None) -> None:
    """Runs ``holder`` with the name of every look from now on, in the thread that is about to look; None
    removes it."""
    _holders[:] = [] if holder is None else [holder]


def set_hook(name: str, hook: Callable[[], None] | None) -> None:
    """Runs ``hook`` at point ``name`` from now on; None removes it."""
    if hook is None:
        _hooks.pop(name, None)
    else:
        _hooks[name] = hook


def watch_all(watcher: Callable[[str], None] | None) -> None:
    """Runs ``watcher`` with the name of every point that is reached from now on, before the point's own hook;
    None removes it."""
    _watchers[:] = [] if watcher is None else [watcher]


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise_eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _raise_enospc() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def _stop() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


_ACTIONS = {"kill": _kill, "eio": _raise_eio, "enospc": _raise_enospc, "stop": _stop}


def load_from_environment() -> None:
    """Sets the hooks named in ``SHARDWRIGHT_FAILPOINTS``. Raises ``ValueError`` for an unknown action."""
    for setting in filter(None, os.environ.get("SHARDWRIGHT_FAILPOINTS", "").split(",")):
        name, _, order = setting.partition("=")
        action, at, time = order.partition("@")
        if action not in _ACTIONS or (at and not time.isdecimal()):
            raise ValueError(
                f"SHARDWRIGHT_FAILPOINTS: {order!r} is not one of {', '.join(_ACTIONS)}, or "
                f"such a one with @N"
            )
        hook = at_time(int(time), _ACTIONS[action]) if at else _ACTIONS[action]
        if name == EVERY:
            watch_all(_at_any_point(hook))
        else:
            set_hook(name, hook)


def _at_any_point(hook: Callable[[], None]) -> Callable[[str], None]:
    return lambda _: hook()


def at_time(number: int, action: Callable[[], None]) -> Callable[[], None]:
    """Returns a hook that runs ``action`` only at its ``number``-th call (counted from 1, exact with any
    number of threads)."""
    calls = itertools.count(1)  # next() on it is atomic under the interpreter's lock

    def hook() -> None:
        if next(calls) == number:
            action()

    return hook
