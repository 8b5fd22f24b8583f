"""Every file that shardwright reads back says which version of its format it has. Of one that this release
does not know nothing is believed."""

from __future__ import annotations

from typing import TYPE_CHECKING

from .errors import FormatVersionError

if TYPE_CHECKING:
    from pathlib import Path


def check_version(found: object, known: int, path: Path | str) -> None:
    """Raises ``FormatVersionError`` unless ``found``, as it stands in ``path``, is the version that is known,
    or one before it."""
    if isinstance(found, bool) or not isinstance(found, int) or not 1 <= found <= known:
        raise FormatVersionError(
            f"{path} is of another version of its format",
            expected=f"version {known}" if known == 1 else f"version 1 to {known}",
            got=f"version {str(found)[:40]}",
            hint="Use the release of shardwright that wrote it, or a later one. It was left as it is",
        )
