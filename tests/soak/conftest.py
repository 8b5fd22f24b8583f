"""The two minutes begin first, so that they go on beside all other tests."""

from __future__ import annotations


def pytest_collection_modifyitems(items) -> None:
    items.sort(key=lambda item: item.name != "test_two_minutes_with_every_fault")
