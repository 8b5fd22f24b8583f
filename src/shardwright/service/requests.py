"""What the daemon answers on its control socket (CONTROL.md): each request's own fields are checked here, and handed to the room that does it."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from .control import Answer


def control_answers(*, status: Callable[[], dict[str, Any]], drain: Callable[[], None]) -> dict[str, Answer]:
    """By the name of the request. All are called in the control thread."""

    def answer_status(_: Mapping[str, Any]) -> dict[str, Any]:
        return {"status": status()}

    def answer_drain(_: Mapping[str, Any]) -> dict[str, Any]:
        drain()
        return {}

    return {"status": answer_status, "drain": answer_drain}
