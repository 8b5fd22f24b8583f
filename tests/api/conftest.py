"""A daemon for tests that use the writer and the stream alike."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.harness.daemon import serving

from shardwright.model import progress_teller

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def endpoint(folder: Path) -> Iterator[str]:
    """Of a daemon that runs."""
    endpoint = f"ipc://{folder}/ingest.sock"
    (folder / "rig.yaml").write_text(
        f"output: {{root: data, create: true, in_memory: true}}\ningest: {{endpoints: ['{endpoint}']}}\n",
        encoding="utf-8",
    )
    with serving(folder / "rig.yaml"):
        yield endpoint


@pytest.fixture(autouse=True)
def last_call(monkeypatch: pytest.MonkeyPatch) -> None:
    """However long it takes: a test that judges the last progress has heard it when ``close`` returns."""
    monkeypatch.setattr(progress_teller, "LAST_CALL_S", 120.0)
