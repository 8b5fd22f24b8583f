"""Events as tests hear of them. Whichever one a test causes has every fact that its sentence needs."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from shardwright.model.event_text import sentence

if TYPE_CHECKING:
    from collections.abc import Mapping

    import pytest


def check(event: str, facts: Mapping[str, Any]) -> None:
    """Raises ``LookupError`` for an event without a sentence, or without a fact of its sentence."""
    sentence(event, facts)


def logged(caplog: pytest.LogCaptureFixture) -> dict[str, dict[str, Any]]:
    """The facts of the events in Python's log by name, of several the last ones."""
    return {record.event: record.facts for record in caplog.records if hasattr(record, "event")}


def watch() -> None:
    """Checks what writers in this process put into Python's log; a writer raises what is wrong."""
    logging.getLogger("shardwright").addFilter(_checked)


def _checked(record: logging.LogRecord) -> bool:
    if hasattr(record, "event"):
        check(record.event, {"path": "/a.ome.zarr", **record.facts})
    return True
