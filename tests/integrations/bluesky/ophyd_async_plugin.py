"""A plug-in for ophyd-async's own tests, in their process: its detector is ours, with an acquisition that is
seen at once. So they judge what we change of the class; the rest of the door is for our tests.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING

import ophyd_async.core

from shardwright.integrations.bluesky import ShardwrightDetector

if TYPE_CHECKING:
    from collections.abc import AsyncIterator


async def _seen_until(wanted: int, trigger_info: object) -> AsyncIterator[int]:
    for seen in ():  # no news: theirs count what their own data logics tell
        yield seen


class DoorDetector(ShardwrightDetector):
    def __init__(self, name: str = "") -> None:
        armed = SimpleNamespace(seen_until=_seen_until, is_left=False)
        self.data = SimpleNamespace(armed=armed, in_steps=True, leave=lambda: None)
        self._step = None
        super(ShardwrightDetector, self).__init__(name=name)


ophyd_async.core.StandardDetector = DoorDetector
