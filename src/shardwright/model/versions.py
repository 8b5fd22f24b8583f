"""The version of shardwright, and the check of the format version that every file of it has: a file of an
unknown one is refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import FormatVersionError

if TYPE_CHECKING:
    from pathlib import Path

VERSION = "0.3.0"


def check_version(found: object, known: int, path: Path | str) -> None:
    """Raises ``FormatVersionError`` unless ``found``, the version in ``path``, is the newest ``known``
    version or an earlier one."""
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= known:
        raise FormatVersionError(
            f"{path} is of another version of its format",
            expected=f"version {known}" if known == 1 else f"version 1 to {known}",
            got=f"version {str(found)[:40]}",
            hint="Use the release of shardwright that wrote it, or a later one. It was left as it is",
        )
