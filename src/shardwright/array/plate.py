"""A plate of wells: its rows, columns and fields, and the acquisitions to which the fields belong."""

from __future__ import annotations

import re
from collections import Counter
from datetime import datetime
from typing import Any

from pydantic import Field, field_validator, model_validator

from shardwright.model.names import OWN_FOLDERS
from shardwright.wire.messages import MAX_IMAGES

from .spec import _Frozen

MAX_IMAGE_NAME_CHARACTERS = 128
WELL_NAME_PATTERN = "[A-Za-z0-9]{1,16}"
TIME_PATTERN = r"\d{4}-\d\d-\d\d[T ]\d\d:\d\d(:\d\d(\.\d+)?)?(Z|[+-]\d\d:\d\d)"  # ISO 8601, with a zone
MAX_PLATE_SIDE = 64  # wells
MAX_PLATE_ACQUISITIONS = 1024
_MOST_SECONDS = 2**40


class PlateAcquisition(_Frozen):
    """One of several acquisitions of a plate, such as a day. ``fields``: the names of its fields, in each
    well; of the only acquisition all. ``start``, ``end``: seconds since 1970, UTC, also given as a
    ``datetime`` or text, with a time zone."""

    id: int = Field(ge=0, lt=2**31)
    name: str | None = Field(default=None, min_length=1, max_length=MAX_IMAGE_NAME_CHARACTERS)
    fields: tuple[str, ...] = Field(default=(), max_length=MAX_IMAGES)
    start: int | None = Field(default=None, ge=0, le=_MOST_SECONDS)
    end: int | None = Field(default=None, ge=0, le=_MOST_SECONDS)

    @field_validator("name")
    @classmethod
    def _printable(cls, value: str | None) -> str | None:
        if value is not None and not value.isprintable():
            raise ValueError("name: expected one line of printable characters")
        return value

    @field_validator("start", "end", mode="before")
    @classmethod
    def _in_seconds(cls, value: Any, info: Any) -> Any:
        try:
            if isinstance(value, str) and re.fullmatch(TIME_PATTERN, value):
                value = datetime.fromisoformat(value)
            if isinstance(value, datetime) and value.tzinfo is not None:
                return int(value.timestamp())
        except (ValueError, OverflowError):
            pass  # no such day
        if isinstance(value, str | datetime | bool):
            raise ValueError(  # noqa: TRY004  (pydantic catches no other)
                f"{info.field_name}: expected seconds since 1970, or a time with its zone such as "
                f"2026-03-05T09:30:00+01:00, got {str(value)!r:.60}"
            )
        return value

    @model_validator(mode="after")
    def _ends_after_start(self) -> PlateAcquisition:
        if self.start is not None and self.end is not None and self.end < self.start:
            raise ValueError(f"end: is {self.start - self.end} s before start")
        return self


class Plate(_Frozen):
    """A plate of wells. ``rows``, ``columns`` and ``fields`` are their names; a number stands for A, B, C,
    ..., for 1, 2, 3, ..., and of the fields of each well for 0, 1, 2, .... Field ``f`` of the well in row A
    and column 1 is the image ``A/1/f``, in the folder of that name. ``acquisitions``: where the fields were
    not taken in one; each field then belongs to one of them."""

    name: str = Field(default="plate", min_length=1, max_length=MAX_IMAGE_NAME_CHARACTERS)
    rows: tuple[str, ...] = Field(min_length=1, max_length=MAX_PLATE_SIDE)
    columns: tuple[str, ...] = Field(min_length=1, max_length=MAX_PLATE_SIDE)
    fields: int | tuple[str, ...] = 1
    acquisitions: tuple[PlateAcquisition, ...] = Field(default=(), max_length=MAX_PLATE_ACQUISITIONS)

    @field_validator("rows", "columns", mode="before")
    @classmethod
    def _named(cls, value: Any, info: Any) -> Any:
        if isinstance(value, int) and not isinstance(value, bool):
            if not 0 < value <= MAX_PLATE_SIDE:
                raise ValueError(f"{info.field_name}: expected 1 to {MAX_PLATE_SIDE}, got {value}")
            return tuple(str(i + 1) if info.field_name == "columns" else row_name(i) for i in range(value))
        return value

    @field_validator("fields", mode="before")
    @classmethod
    def _number_or_names(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and value and all(isinstance(name, str) for name in value):
            return tuple(value)
        if isinstance(value, int) and not isinstance(value, bool) and 0 < value <= MAX_IMAGES:
            return value
        raise ValueError(f"fields: expected 1 to {MAX_IMAGES}, or their names, got {value!r:.40}")

    @field_validator("rows")
    @classmethod
    def _free(cls, value: tuple[str, ...]) -> tuple[str, ...]:
        for name in value:
            if name.lower() in OWN_FOLDERS:
                raise ValueError(f"rows: {name!r} is the name of another folder of the store")
        return value

    @field_validator("rows", "columns", "fields")
    @classmethod
    def _differ(cls, value: Any, info: Any) -> Any:
        if isinstance(value, int):
            return value
        if len({name.lower() for name in value}) != len(value):
            raise ValueError(f"{info.field_name}: names must differ, got {list(value[:MAX_PLATE_SIDE])}")
        for name in value:
            if not re.fullmatch(WELL_NAME_PATTERN, name):
                raise ValueError(
                    f"{info.field_name}: {name!r:.40} is not of letters and digits alone, at most 16"
                )
        return value

    @model_validator(mode="after")
    def _consistent(self) -> Plate:
        """Multiplies, before anything is made for each field: within the bounds of rows, columns and fields
        alone there are 67 million."""
        fields = self.fields if isinstance(self.fields, int) else len(self.fields)
        count = len(self.rows) * len(self.columns) * fields
        if count > MAX_IMAGES:
            raise ValueError(f"plate: too many fields, expected at most {MAX_IMAGES}, got {count}")
        ids = [each.id for each in self.acquisitions]
        if len(set(ids)) != len(ids):
            raise ValueError(f"acquisitions: ids must differ, got {ids[:MAX_PLATE_SIDE]}")
        named = Counter(field for each in self.acquisitions for field in each.fields)
        own = Counter(self.field_names)
        if (len(ids) > 1 or named) and named != own:
            wrong = min((named - own) | (own - named))
            raise ValueError(
                f"acquisitions: each field of a well belongs to one of them, named in its fields; "
                f"{wrong!r:.40} is in {named[wrong]}, and the plate has {own[wrong]} of that name"
            )
        return self

    @property
    def field_names(self) -> tuple[str, ...]:
        """The names of the fields of each well."""
        return tuple(map(str, range(self.fields))) if isinstance(self.fields, int) else self.fields

    def with_field(self, name: str) -> Plate:
        """Returns the plate with one more field of a well, named as its images are: perhaps in a row and a
        column of its own, behind the others. Raises ``ValueError``."""
        parts = name.split("/")
        if len(parts) != 3:
            raise ValueError(f"expected a field of a well such as {self.images()[0]!r}, got {name!r:.80}")
        axes = (self.rows, self.columns, self.field_names)
        rows, columns, fields = (
            names if part in names else (*names, part) for names, part in zip(axes, parts, strict=True)
        )
        return Plate(
            name=self.name, rows=rows, columns=columns, fields=fields, acquisitions=self.acquisitions
        )

    def images(self) -> list[str]:
        return [f"{r}/{c}/{f}" for r in self.rows for c in self.columns for f in self.field_names]


def row_name(number: int) -> str:
    """Returns the usual name of a plate's row: A to Z, then AA, AB, ..."""
    letter = chr(ord("A") + number % 26)
    return letter if number < 26 else row_name(number // 26 - 1) + letter
