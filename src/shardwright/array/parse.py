"""Parses JSON from outside to an ``ArraySpec``; all its mistakes are reported in one ``SpecError``."""

from __future__ import annotations

from typing import Any

from pydantic import ValidationError

from shardwright.model.errors import SpecError

from .spec import ArraySpec


def parse_spec(facts: ArraySpec | dict[str, Any]) -> ArraySpec:
    """Returns the specification, ``facts`` itself if it is one. Raises ``SpecError`` naming the first few
    wrong fields."""
    try:
        return ArraySpec.model_validate(facts)
    except ValidationError as error:
        problems = [
            f"{'.'.join(map(str, problem['loc']))}: {problem['msg']}"
            for problem in error.errors(include_url=False)[:4]
        ]
        raise SpecError("the array specification is wrong", got="; ".join(problems)[:800]) from None
