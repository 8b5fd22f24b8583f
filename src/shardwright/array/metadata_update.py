"""An update of the metadata of a store's group, or of an image's: what users say beside our own ``ome``, and
in it. In messages and files it is one JSON object:

    NAME: VALUE              an attribute of the user
    "ome": {...}             additions to ours, of an image: omero, name, metadata
    "shardwright": {         the name of no attribute of a user: who knows no such update refuses it
      "position": {...}      where the image is
      "remove": [NAME, "ome.name", ...]
    }

What describes the pixels is never among the additions: readers would find other pixels than were written.
"""

from __future__ import annotations

import copy
import math
import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import MetadataError

from .contrast_window import MARK, user_windows
from .fields import is_finite
from .spec import MAX_CHANNELS, OWN_ATTRIBUTE, OWN_ATTRIBUTES
from .stage_position import parsed_position

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .stage_position import StagePosition

OME = "ome"
ADDITIONS = ("omero", "name", "metadata")
MAY_BE_REMOVED = tuple(f"{OME}.{name}" for name in ADDITIONS)
_POSITION, _REMOVE = "position", "remove"
_COLOR = re.compile(r"[0-9A-Fa-f]{6}")
_WINDOW = ("min", "max", "start", "end")
_KINDS = {"label": str, "active": bool, "inverted": bool}  # of a channel


@dataclass(frozen=True)
class MetadataUpdate:
    """An update of one group: ``attributes`` by name; ``ome``: additions (``checked_additions``);
    ``position`` of the image; ``remove``: names of attributes that go, and of additions that are as ours
    again."""

    attributes: Mapping[str, Any] = field(default_factory=dict)
    ome: Mapping[str, Any] = field(default_factory=dict)
    position: StagePosition | None = None
    remove: frozenset[str] = frozenset()

    @classmethod
    def of_json(cls, facts: Mapping[str, Any]) -> MetadataUpdate:
        """Inverse of ``to_json``; ``ome`` is taken as it is. Raises ``MetadataError`` for what is no
        update."""
        attributes = dict(facts)
        ome, own = attributes.pop(OME, {}), attributes.pop(OWN_ATTRIBUTE, {})
        removed = own.get(_REMOVE, []) if isinstance(own, dict) else None
        if (
            not isinstance(removed, list)
            or not all(isinstance(name, str) for name in removed)
            or own.keys() - {_POSITION, _REMOVE}
            or not isinstance(ome, dict)
        ):
            raise MetadataError(
                "an update that is none",
                expected=f"{OWN_ATTRIBUTE}: {_POSITION}, {_REMOVE}",
                got=repr(own or ome)[:80],
            )
        position = parsed_position(own[_POSITION]) if _POSITION in own else None
        return cls(attributes, ome, position, frozenset(removed))

    def to_json(self) -> dict[str, Any]:
        own: dict[str, Any] = {}
        if self.position is not None:
            own[_POSITION] = self.position.model_dump(mode="json", exclude_none=True)
        if self.remove:
            own[_REMOVE] = sorted(self.remove)
        ome = {OME: dict(self.ome)} if self.ome else {}
        return {**self.attributes, **ome, **({OWN_ATTRIBUTE: own} if own else {})}

    @property
    def is_plain(self) -> bool:
        """Returns whether releases that know attributes and a position alone understand it."""
        return not self.ome and not self.remove

    def after(self, before: MetadataUpdate) -> MetadataUpdate:
        """Returns one update that does what ``before`` does, and then this one."""
        told = {name: value for name, value in before.ome.items() if f"{OME}.{name}" not in self.remove}
        ome = {**told, **self.ome}
        if "omero" in told and "omero" in self.ome:
            ome["omero"] = _over(told["omero"], self.ome["omero"])
        return MetadataUpdate(
            {**_without(before.attributes, self.remove), **self.attributes},
            ome,
            self.position or before.position,
            (before.remove - self.attributes.keys()) | self.remove,
        )

    def over(self, attributes: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the attributes of a group, beside ours, once it is updated."""
        return {**_without(attributes, self.remove), **self.attributes}


def _without(attributes: Mapping[str, Any], names: frozenset[str]) -> dict[str, Any]:
    return {name: value for name, value in attributes.items() if name not in names}


def _over(before: Mapping[str, Any], omero: Mapping[str, Any]) -> dict[str, Any]:
    """Returns ``omero`` with what an earlier one says and this one does not, channel by channel."""
    channels = [dict(channel) for channel in before.get("channels", ())]
    for number, channel in enumerate(omero.get("channels", ())):
        if number == len(channels):
            channels.append({})
        channels[number] = _channel_over(channels[number], channel)
    return {**before, **omero, **({"channels": channels} if channels else {})}


def _channel_over(before: Mapping[str, Any], channel: Mapping[str, Any]) -> dict[str, Any]:
    window = {**_object(before.get("window")), **channel.get("window", {})}
    return {**before, **channel, **({"window": window} if window else {})}


def _object(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


# ---------------------------------------------------------------------- what users may say


def checked_removal(names: Any, told: Mapping[str, Any]) -> frozenset[str]:
    """Returns the names that an update removes. Raises ``MetadataError`` for names that are ours, or that it
    also gives a value."""
    names = list(names) if isinstance(names, Iterable) and not isinstance(names, str) else [names, None]
    if not all(isinstance(name, str) for name in names):
        raise MetadataError("remove names what goes", expected="a list of names", got=repr(names[0])[:80])
    ours = [
        name
        for name in names
        if name in OWN_ATTRIBUTES or (name.startswith(f"{OME}.") and name not in MAY_BE_REMOVED)
    ]
    if ours:
        raise MetadataError(
            "remove: this is written by shardwright",
            expected=f"names of attributes, {', '.join(MAY_BE_REMOVED)}",
            got=", ".join(ours)[:80],
        )
    said = {*told, *(f"{OME}.{name}" for name in _object(told.get(OME)))}
    both = [name for name in names if name in said]
    if both:
        raise MetadataError("an update that removes what it says", got=", ".join(both)[:80])
    return frozenset(names)


def checked_additions(ome: Any, channels: int | None) -> dict[str, Any]:
    """Returns additions to the ``ome`` of an image, JSON values already. ``channels``: how many the image
    has, None if that is not known yet. Raises ``MetadataError``, which names what may be changed."""
    if not isinstance(ome, dict) or not ome or ome.keys() - set(ADDITIONS):
        got = sorted(ome.keys() - set(ADDITIONS)) if isinstance(ome, dict) else repr(ome)
        raise MetadataError(
            f"metadata that cannot be attributes: {OME!r} is written by shardwright",
            expected=f"of it {', '.join(ADDITIONS)} (those of the multiscale)",
            got=str(got)[:80],
        )
    if not isinstance(ome.get("name", ""), str):
        raise _wrong("name", "text", ome["name"])
    if not isinstance(ome.get("metadata", {}), dict):
        raise _wrong("metadata", "a JSON object", ome["metadata"])
    if "omero" in ome:
        _check_omero(ome["omero"], channels)
    return dict(ome)


def _check_omero(omero: Any, count: int | None) -> None:
    if not isinstance(omero, dict) or "version" in omero:
        raise _wrong("omero", "an object with channels, which has no version of its own", omero)
    channels = omero.get("channels", [])
    if not isinstance(channels, list) or not all(isinstance(each, dict) for each in channels):
        raise _wrong("omero.channels", "a list of objects, {} for one that stays as it is", channels)
    most = MAX_CHANNELS if count is None else count if count <= MAX_CHANNELS else 0
    if len(channels) > most:
        raise _wrong("omero.channels", f"at most {most}, those that zarr.json describes", len(channels))
    for number, channel in enumerate(channels):
        _check_channel(f"omero.channels[{number}]", channel)


def _check_channel(where: str, channel: dict[str, Any]) -> None:
    for name, kind in _KINDS.items():
        if name in channel and type(channel[name]) is not kind:
            raise _wrong(f"{where}.{name}", "text" if kind is str else "true or false", channel[name])
    color, window = channel.get("color", "000000"), channel.get("window", {})
    if not isinstance(color, str) or _COLOR.fullmatch(color) is None:
        raise _wrong(f"{where}.color", "six hex digits, such as 00FF00", color)
    if (
        not isinstance(window, dict)
        or window.keys() - set(_WINDOW)
        or not all(is_finite(value) for value in window.values())
        or (window and not window.get("start", math.inf) < window.get("end", -math.inf))
    ):
        raise _wrong(f"{where}.window", "numbers start and end, start below end; min and max too", window)


def _wrong(where: str, expected: str, got: Any) -> MetadataError:
    return MetadataError(f"{OME}.{where} cannot be", expected=expected, got=repr(got)[:80])


# ---------------------------------------------------------------------- in zarr.json of an image's group


def with_additions(group: dict[str, Any], update: MetadataUpdate, ours: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the zarr.json of an image's group with what users say in its ``ome``; what an update removes is
    as in ``ours``, the ``ome`` that shardwright writes. As it is where others have described the image in
    another form. Channels that are not described yet are left out.

    A window that a user has chosen is marked (``contrast_window.MARK``): no end writes its own over it."""
    if not update.ome and update.remove.isdisjoint(MAY_BE_REMOVED):
        return group
    changed = copy.deepcopy(group)
    try:
        ome = changed["attributes"][OME]
        (there,), (made,) = ome["multiscales"], ours["multiscales"]
        for name in ("name", "metadata"):
            if f"{OME}.{name}" in update.remove:
                there.pop(name, None)
                there.update({name: made[name]} if name in made else {})
            if name in update.ome:
                value = update.ome[name]
                there[name] = {**_object(made.get(name)), **value} if name == "metadata" else value
        if f"{OME}.omero" in update.remove:
            _reset_channels(changed["attributes"], ours)
        if "omero" in update.ome and "omero" in ome:
            _add_omero(changed["attributes"], update.ome["omero"])
    except (LookupError, TypeError, ValueError, AttributeError):
        return group
    return changed


def _reset_channels(attributes: dict[str, Any], ours: Mapping[str, Any]) -> None:
    """Describes the channels as shardwright does, but for windows that no user has chosen: these are of the
    pixels."""
    chosen, ome = user_windows(attributes), attributes[OME]
    looks = copy.deepcopy(_object(ours.get("omero")).get("channels", []))
    windows = [channel.get("window") for channel in _object(ome.get("omero")).get("channels", [])]
    for number, (look, window) in enumerate(zip(looks, windows, strict=False)):
        if number not in chosen and window is not None:
            look["window"] = window
    if looks:
        ome["omero"] = {"channels": looks}
    _mark(attributes, set())


def _add_omero(attributes: dict[str, Any], omero: Mapping[str, Any]) -> None:
    there = attributes[OME]["omero"]
    channels = there["channels"]
    told = list(omero.get("channels", ()))[: len(channels)]
    attributes[OME]["omero"] = _over(there, {**omero, "channels": told})
    chosen = {number for number, channel in enumerate(told) if channel.get("window")}
    for number in chosen:
        window = attributes[OME]["omero"]["channels"][number]["window"]
        window["min"] = min(window["min"], window["start"])
        window["max"] = max(window["max"], window["end"])
    _mark(attributes, user_windows(attributes) | chosen)


def _mark(attributes: dict[str, Any], windows: set[int]) -> None:
    own = {**_object(attributes.get(OWN_ATTRIBUTE))}
    own.pop(MARK, None)
    own |= {MARK: sorted(windows)} if windows else {}
    attributes.pop(OWN_ATTRIBUTE, None)
    attributes |= {OWN_ATTRIBUTE: own} if own else {}
