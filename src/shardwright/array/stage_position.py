"""Where an image is: the position of the stage, and the translation of an image's axes that says so in
OME-Zarr."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydantic import Field, ValidationError, field_validator, model_validator

from shardwright.model.errors import MetadataError

from .as_written import ome_unit
from .spec import _Frozen, problems_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from .spec import ArraySpec, Dimension

AXES = ("x", "y", "z")
MOST_METERS = 1e3  # beyond it no stage is: drivers have huge numbers for a position that they do not know
_METERS = {
    "yoctometer": 1e-24,
    "zeptometer": 1e-21,
    "attometer": 1e-18,
    "femtometer": 1e-15,
    "picometer": 1e-12,
    "angstrom": 1e-10,
    "nanometer": 1e-9,
    "micrometer": 1e-6,
    "millimeter": 1e-3,
    "centimeter": 1e-2,
    "decimeter": 1e-1,
    "meter": 1.0,
    "hectometer": 1e2,
    "kilometer": 1e3,
    "mile": 1609.344,
    "inch": 0.0254,
    "foot": 0.3048,
    "yard": 0.9144,
}


def _converted(value: float, unit: str, wanted: str) -> float:
    # as it was given where the units are one, else to twelve digits: 250 micrometres, not 250.00000000000003
    return value if unit == wanted else float(f"{value * _METERS[unit] / _METERS[wanted]:.12g}")


class StagePosition(_Frozen):
    """The position of the stage, of the middle of an image's first pixel, along the axes that it names; in
    micrometres unless ``unit`` says otherwise. ``grid_row`` and ``grid_column``: of a tile."""

    x: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    y: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    z: float | None = Field(default=None, allow_inf_nan=False, strict=True)
    unit: str = "micrometer"
    grid_row: int | None = Field(default=None, ge=0, lt=1 << 31, strict=True)
    grid_column: int | None = Field(default=None, ge=0, lt=1 << 31, strict=True)

    _ome_unit = field_validator("unit", mode="before")(ome_unit)

    @field_validator("unit")
    @classmethod
    def _a_length(cls, value: str) -> str:
        if value not in _METERS:
            raise ValueError(f"unit: expected a length such as micrometer or mm, got {value!r:.40}")
        return value

    @model_validator(mode="after")
    def _says_something(self) -> StagePosition:
        if not self.model_dump(exclude_none=True, exclude={"unit"}):
            raise ValueError("expected x, y or z, or a place in the grid")
        far = [axis for axis in AXES if abs(getattr(self, axis) or 0.0) * _METERS[self.unit] > MOST_METERS]
        if far:
            raise ValueError(f"{far[0]}: expected at most {MOST_METERS:g} m from the stage's origin")
        return self

    @classmethod
    def of_frame(cls, record: Any) -> StagePosition | None:
        """Returns the position that a frame's record has, in micrometres; None where it has none, or what no
        stage has."""
        found = {axis: float(record[f"position_{axis}"]) for axis in AXES}
        known = {axis: value for axis, value in found.items() if abs(value) * 1e-6 <= MOST_METERS}  # not NaN
        return cls(x=known.get("x"), y=known.get("y"), z=known.get("z")) if known else None

    @property
    def is_placed(self) -> bool:
        """Returns whether it says where the image is, and not only which tile it is."""
        return any(getattr(self, axis) is not None for axis in AXES)

    def over(self, before: StagePosition | None) -> StagePosition:
        """Returns this position, and of an earlier one what this one does not name."""
        if before is None:
            return self
        earlier: dict[str, Any] = {
            axis: _converted(value, before.unit, self.unit)
            for axis in AXES
            if (value := getattr(before, axis)) is not None
        }
        earlier |= {f"grid_{name}": number for name, number in before.grid.items()}
        return self.model_copy(update={k: v for k, v in earlier.items() if getattr(self, k) is None})

    def along(self, dimension: Dimension) -> float | None:
        """Returns the position along an axis in its own unit; None along an axis that it does not name, or
        whose unit is no length, so that pixels have no place on the stage."""
        value = getattr(self, dimension.name) if dimension.name in AXES else None
        if value is None or dimension.unit not in _METERS:
            return None
        return _converted(value, self.unit, dimension.unit)

    @property
    def grid(self) -> dict[str, int]:
        """The place of a tile in its grid, as far as it is known."""
        known = {"row": self.grid_row, "column": self.grid_column}
        return {name: number for name, number in known.items() if number is not None}

    def in_micrometers(self, axis: str) -> float | None:
        """Returns the position along x, y or z."""
        value: float | None = getattr(self, axis)
        return None if value is None else _converted(value, self.unit, "micrometer")

    def unplaced(self, spec: ArraySpec) -> list[str]:
        """Returns the axes of an array that it names and along which it says nothing: without a unit."""
        named = [d for d in spec.dimensions if d.name in AXES and getattr(self, d.name) is not None]
        return [d.name for d in named if self.along(d) is None]


def parsed_position(facts: Any) -> StagePosition:
    """Returns a position of JSON values, such as ``{"x": 350.5}``. Raises ``MetadataError``."""
    try:
        return StagePosition.model_validate(facts)
    except ValidationError as error:
        raise MetadataError("a position that cannot be", got=problems_of(error)) from None


def translation_of(position: StagePosition | None, axes: Sequence[Dimension]) -> list[float]:
    """Returns the translation of an image along its axes; zeros along those that ``position`` does not
    place."""
    return [0.0 if position is None else position.along(d) or 0.0 for d in axes]


def has_places(axes: Sequence[Dimension]) -> bool:
    """Returns whether pixels along any of these axes can have a place on the stage."""
    return any(translation_of(StagePosition(x=1.0, y=1.0, z=1.0), axes))
