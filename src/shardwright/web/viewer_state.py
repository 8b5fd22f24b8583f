"""The state in neuroglancer's address, which says what it shows: the array, a layer for each channel with its
name, colour and contrast window, the axes along the screen, and the position.

    .../neuroglancer/v/local/#!{"layers": [{"source": "http://RIG/stores/NAME.ome.zarr/|zarr3:", ...}],
    "position": [...], ...}

The format: https://github.com/google/neuroglancer, src/viewer.ts (its ``python/neuroglancer/viewer_state.py``
documents every member).
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from string import hexdigits
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, urlencode

from shardwright.array.document import ITEM_BYTES
from shardwright.array.fields import is_finite, sizes
from shardwright.array.ome_version import axes_of, scale_and_translation

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

MOST_TEXT = 200  # characters of a name, or of what stands for one: a zarr.json may hold millions
MOST_SHOWN = 64  # images in one view: the first ones
MOST_CHANNELS = 8  # that have a layer of their own: the first ones
VIEW_PIXELS = 800  # the initial size of the image on the screen, about
# Units of OME-Zarr that neuroglancer knows as a power of ten of an SI unit. For another unit it chooses the
# position itself.
_SI_UNITS: dict[str | None, tuple[float, str]] = {
    None: (1, ""),
    **{
        f"{prefix}meter": (factor, "m")
        for prefix, factor in {"": 1, "milli": 1e-3, "micro": 1e-6, "nano": 1e-9, "pico": 1e-12}.items()
    },
    **{
        f"{prefix}second": (factor, "s")
        for prefix, factor in {"": 1, "milli": 1e-3, "micro": 1e-6, "nano": 1e-9}.items()
    },
}

Window = tuple[float, float]  # the values that are shown as black and as the full colour
# of a channel, which is added to the others
_SHADER = """#uicontrol vec3 color color(default="#{color}")
#uicontrol invlerp normalized
void main() {{ emitRGB(color * normalized()); }}
"""


@dataclass(frozen=True)
class ChannelLook:
    """The look of a channel by the metadata. ``color``: six hexadecimal digits."""

    name: str
    color: str


@dataclass(frozen=True)
class StoredImage:
    """The image of a store in its metadata: one entry for each axis, in storage order; ``channels`` along the
    axis c, as far as they are described."""

    axes: tuple[str, ...]
    units: tuple[str | None, ...]
    scales: tuple[float, ...]
    shape: tuple[int, ...]
    dtype: str
    name: str = ""
    channels: tuple[ChannelLook, ...] = ()

    @classmethod
    def of(cls, group: Any, array: Any) -> StoredImage:
        """Reads the image from the zarr.json of the OME-Zarr group and of its first array. Raises
        ``KeyError``, ``IndexError``, ``TypeError`` or ``ValueError``."""
        image = group["attributes"]["ome"]["multiscales"][0]
        axes = axes_of(image)
        scales, _ = scale_and_translation(image["datasets"][0], len(axes))
        shape = tuple(sizes("shape", array["shape"], least=0))
        if not len(axes) == len(scales) == len(shape):
            raise ValueError("axes, scales and shape differ in length")
        if not all(isinstance(axis, dict) and isinstance(axis.get("unit"), str | None) for axis in axes):
            raise TypeError("an axis has a name and perhaps a unit")
        if not all(map(is_finite, scales)):
            raise ValueError("a scale is no number")
        names, units = (tuple(axis.get(key) for axis in axes) for key in ("name", "unit"))
        name = image.get("name")
        return cls(
            axes=tuple(map(_shown, names)),
            units=units,
            scales=tuple(map(float, scales)),
            shape=shape,
            dtype=_shown(array["data_type"]),
            name=_shown(name) if isinstance(name, str) else "",
            channels=tuple(_looks(group["attributes"]["ome"])),
        )

    def extent(self, axis: str) -> int:
        return self.shape[self.axes.index(axis)] if axis in self.axes else 1

    @property
    def frames(self) -> int:
        """The number of places for frames: all axes but the last two."""
        count = 1
        for n in self.shape[:-2]:
            count *= n
        return count


def _looks(ome: Any) -> Iterator[ChannelLook]:
    """Yields the first channels that the metadata describe; none where these are not as OME-Zarr has them."""
    omero = ome.get("omero")
    channels = omero.get("channels") if isinstance(omero, dict) else None
    if not isinstance(channels, list) or not all(isinstance(channel, dict) for channel in channels):
        return
    for number, channel in enumerate(channels[:MOST_CHANNELS]):
        color = str(channel.get("color", ""))
        named = color if len(color) == 6 and not set(color) - set(hexdigits) else "FFFFFF"
        yield ChannelLook(_shown(channel.get("label") or f"channel {number}"), named)


def _shown(value: Any) -> str:
    return str(value)[:MOST_TEXT]


@dataclass(frozen=True)
class ShownImage:
    """An image in the viewer, served at ``url``. ``windows``: of its channels; where there is none it is the
    whole range of the pixel type."""

    image: StoredImage
    name: str
    url: str
    windows: Sequence[Window | None]

    @property
    def is_known(self) -> bool:
        return all(unit in _SI_UNITS for unit in self.image.units)

    def layers(self, *, alone: bool) -> list[dict[str, Any]]:
        """Returns one layer, or one for each channel. ``alone``: there is no other image."""
        image, url, windows = self.image, self.url, self.windows
        if not (self.is_known and min(image.extent("c"), len(image.channels)) > 1):
            return [_layer(image, self.name, url, next(iter(windows), None))]
        each = zip(image.channels, range(image.extent("c")), strict=False)
        return [
            _layer(
                image,
                look.name if alone else f"{self.name} · {look.name}",
                url,
                windows[n] if n < len(windows) else None,
            )
            | _of_channel(image, url, n, look.color)
            for look, n in each
        ]


def viewer_state(title: str, shown: Sequence[ShownImage], *, newest: bool = False) -> dict[str, Any]:
    """Returns the state: one image, or several side by side, which move together. ``newest``: the last frames
    along the time axis are shown, not the first."""
    of_each = [each.layers(alone=len(shown) == 1) for each in shown]
    layers = [layer for some in of_each for layer in some]
    taken: set[str] = set()
    for number, layer in enumerate(layers):  # neuroglancer wants names that differ
        if layer["name"] in taken:
            layer["name"] += f" ({number})"
        taken.add(layer["name"])
    state: dict[str, Any] = {
        "title": f"{title} · shardwright",
        "layers": layers,
        "selectedLayer": {"layer": layers[0]["name"], "visible": len(shown) == 1, "size": 300},
        "layout": "xy" if len(shown) == 1 else _tiles([[each["name"] for each in some] for some in of_each]),
        "showAxisLines": False,
    }
    known = all(each.is_known for each in shown)
    return state | _view_position([each.image for each in shown], newest) if known else state


def _tiles(of_each: Sequence[Sequence[str]]) -> dict[str, Any]:
    """Returns a layout of rows of tiles, each with these layers."""
    tiles = [{"type": "viewer", "layers": list(names), "layout": "xy"} for names in of_each]
    columns = math.ceil(math.sqrt(len(tiles)))
    rows = [tiles[i : i + columns] for i in range(0, len(tiles), columns)]
    return {"type": "column", "children": [{"type": "row", "children": row} for row in rows]}


def _layer(image: StoredImage, name: str, url: str, window: Window | None) -> dict[str, Any]:
    layer: dict[str, Any] = {
        "type": "image",
        "name": name,
        "source": f"{url}|zarr3:",
        "tab": "rendering",
        "opacity": 1,
    }
    if window is not None:
        low, high = window
        least, most = _range(image.dtype)  # neuroglancer takes no window that is wider
        slider = [max(least, low - (high - low) / 4), min(most, high + (high - low) / 2)]
        layer["shaderControls"] = {"normalized": {"range": [low, high], "window": slider}}
    return layer


def _of_channel(image: StoredImage, url: str, channel: int, color: str) -> dict[str, Any]:
    """Returns what differs in the layer of a channel: the axis c is its own (c'), and stays at one index."""
    dimensions = {"c'" if axis == "c" else axis: scale for axis, scale in _dimensions(image).items()}
    return {
        "source": {"url": f"{url}|zarr3:", "transform": {"outputDimensions": dimensions}},
        "localDimensions": {"c'": dimensions["c'"]},
        "localPosition": [channel],
        "shader": _SHADER.format(color=color),
        "blend": "additive",
    }


def _range(dtype: str) -> tuple[float, float]:
    """Returns the ends of an integer dtype; of others there are none."""
    values = 2 ** (8 * ITEM_BYTES.get(dtype, 0))  # not of the number in the name, which may be any
    if values > 1 and dtype.startswith("uint"):
        return 0, values - 1
    if values > 1 and dtype.startswith("int"):
        return -values // 2, values // 2 - 1
    return -math.inf, math.inf


def _dimensions(image: StoredImage) -> dict[str, list[Any]]:
    """Returns the scale and SI unit of each axis."""
    dimensions = {}
    for axis, unit, scale in zip(image.axes, image.units, image.scales, strict=True):
        factor, si_unit = _SI_UNITS[unit]
        dimensions[axis] = [scale * factor, si_unit]
    return dimensions


def _view_position(images: Sequence[StoredImage], newest: bool) -> dict[str, Any]:
    """Returns the position: x to the right, y down, the mouse wheel through z, or through time where there is
    no z; the middle of the first or newest frame in view."""
    image = images[0]
    frame = [image.extent(axis) - 1 if newest and axis == "t" else 0 for axis in image.axes[:-2]]
    deep = next((axis for axis in ("z", "t") if image.extent(axis) > 1), None)
    more = {axis: scale for other in images for axis, scale in _dimensions(other).items()}
    return {
        "dimensions": {**_dimensions(image), **{a: s for a, s in more.items() if a not in image.axes}},
        "displayDimensions": [*image.axes[:-3:-1], *([] if deep is None else [deep])],
        # whole numbers are the middles of pixels
        "position": [*frame, *((count - 1) / 2 for count in image.shape[-2:])],
        "crossSectionScale": max(image.shape[-2:]) / VIEW_PIXELS * math.sqrt(len(images)),
    }


def viewer_fragment(state: dict[str, Any]) -> str:
    """Returns the part of the viewer's address from # on."""
    return "#!" + quote(json.dumps(state, separators=(",", ":")), safe="")


def view_query(images: Sequence[str]) -> str:
    """Returns the end of an address that shows all images of a store, or those of these names."""
    named = [("image", name) for name in images[:MOST_SHOWN]]
    return f"?{urlencode(named, quote_via=quote)}" if images else "?all"
