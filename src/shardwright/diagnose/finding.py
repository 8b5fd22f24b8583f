"""What a check says, and what is told of it.

ok     as it should be
warn   works, but slower, later or with less room than it could
bad    the daemon will not start, or a promise does not hold on this machine
"""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, Literal

Result = Literal["ok", "warn", "bad"]


@dataclass(frozen=True)
class Finding:
    """``found``: one line; ``advice``: what to do, unless all is well."""

    check: str
    result: Result
    found: str
    advice: str | None = None

    def to_dict(self) -> dict[str, Any]:
        return asdict(self)


Check = tuple[Result, str, "str | None"]
