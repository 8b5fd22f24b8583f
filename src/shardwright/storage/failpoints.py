"""Named points at which a test makes storage fail, stall or die. Every sync, rename and truncate stands behind one.

Hooks are set in process by ``set_hook`` or, for a daemon under test, by the environment variable ``SHARDWRIGHT_FAILPOINTS`` at start, e.g.
``shard.before_sync=kill,shard.before_rename=eio``. Without hooks a point costs one look into an empty dictionary.
"""

from __future__ import annotations

import errno
import os
import signal
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

_hooks: dict[str, Callable[[], None]] = {}


def reach(name: str) -> None:
    """Called by storage code when it gets to the point ``name``."""
    if _hooks and (hook := _hooks.get(name)) is not None:
        hook()


def set_hook(name: str, hook: Callable[[], None] | None) -> None:
    """Run ``hook`` at point ``name`` from now on; None removes it."""
    if hook is None:
        _hooks.pop(name, None)
    else:
        _hooks[name] = hook


def _kill() -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _raise_eio() -> None:
    raise OSError(errno.EIO, os.strerror(errno.EIO))


def _raise_enospc() -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


_ACTIONS = {"kill": _kill, "eio": _raise_eio, "enospc": _raise_enospc}


def load_from_environment() -> None:
    """Set the hooks named in ``SHARDWRIGHT_FAILPOINTS``. Raises ``ValueError`` for an unknown action."""
    for setting in filter(None, os.environ.get("SHARDWRIGHT_FAILPOINTS", "").split(",")):
        name, _, action = setting.partition("=")
        if action not in _ACTIONS:
            raise ValueError(f"SHARDWRIGHT_FAILPOINTS: {action!r} is not one of {', '.join(_ACTIONS)}")
        set_hook(name, _ACTIONS[action])
