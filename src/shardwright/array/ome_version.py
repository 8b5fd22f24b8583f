"""The versions of OME-Zarr that are written, and the one table of what differs between them (``FORMS``).

    0.5   a multiscale has axes; a dataset has a scale and perhaps a translation, one behind the other, and
          the position of an image is a part of these translations
    0.6   a multiscale has coordinate systems, which have the axes; a dataset has one transformation, with
          input (its array) and output (the system); a ``scene`` of the group above relates the images of a
          collection, and has their positions

Both are read by what they contain, and not by the version that a group claims. Standard library only, so that
the web process may use it too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.model.errors import ShardFormatError
from shardwright.model.write_options import DEFAULT_OME_VERSION, OmeVersion

from .fields import is_finite

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    Object = dict[str, Any]

INTRINSIC = "intrinsic"  # the coordinate system of an image
STAGE = "stage"  # that of a scene
_HAVE_NO_VERSION = ("plate", "well", "omero", "image-label")  # since 0.5: ``ome`` has it, for all of them


@dataclass(frozen=True)
class OmeForm:
    """A row of the table. ``axes``: the field of a multiscale with its axes. ``transformations``: of a
    dataset, from the path of its array, the name of the coordinate system, and a scale that a translation may
    follow. ``has_scenes``: a scene has the positions of images."""

    axes: Callable[[list[Object]], Object]
    transformations: Callable[[str, str, list[Object]], list[Object]]
    has_scenes: bool


def _transformation(path: str, system: str, steps: list[Object]) -> Object:
    """Returns one transformation from an array to a coordinate system."""
    one = steps[0] if len(steps) == 1 else {"type": "sequence", "transformations": steps}
    return {**one, "input": {"path": path}, "output": {"name": system}}


FORMS: dict[OmeVersion, OmeForm] = {
    "0.5": OmeForm(
        axes=lambda axes: {"axes": axes},
        transformations=lambda _path, _system, steps: steps,
        has_scenes=False,
    ),
    "0.6": OmeForm(
        axes=lambda axes: {"coordinateSystems": [{"name": INTRINSIC, "axes": axes}]},
        transformations=lambda path, system, steps: [_transformation(path, system, steps)],
        has_scenes=True,
    ),
}


def ome_of(version: OmeVersion | None, facts: Mapping[str, Any]) -> Object:
    """Returns the ``ome`` attributes of a group. ``version``: None for the default."""
    return {"version": version or DEFAULT_OME_VERSION, **facts}


def ome_in(node: Any) -> Object:
    """Returns the ``ome`` attributes of a group; none of a group without any, of an array, and of None."""
    if not isinstance(node, dict) or node.get("node_type") != "group":
        return {}
    attributes = node.get("attributes")
    ome = attributes.get("ome") if isinstance(attributes, dict) else None
    return ome if isinstance(ome, dict) else {}


def version_of(ome: Any) -> OmeVersion | None:
    """Returns the version that the ``ome`` attributes of a group have; None for another than those of the
    table."""
    given = ome.get("version") if isinstance(ome, dict) else None
    return next((version for version in FORMS if version == given), None)


def image_facts(version: OmeVersion | None, axes: list[Object], datasets: list[Object]) -> Object:
    """Returns what a multiscale has of its axes and datasets."""
    return {**FORMS[version or DEFAULT_OME_VERSION].axes(axes), "datasets": datasets}


def dataset_of(
    version: OmeVersion | None,
    path: str,
    scale: Sequence[float],
    translation: Sequence[float],
    *,
    system: str = INTRINSIC,
) -> Object:
    """Returns the dataset of an array. ``system``: the coordinate system of its image."""
    steps: list[Object] = [{"type": "scale", "scale": list(scale)}]
    if any(translation):
        steps.append({"type": "translation", "translation": list(translation)})
    form = FORMS[version or DEFAULT_OME_VERSION]
    return {"path": path, "coordinateTransformations": form.transformations(path, system, steps)}


def dataset_beside(
    other: Mapping[str, Any], path: str, scale: Sequence[float], translation: Sequence[float]
) -> Object:
    """Returns a dataset of the version, and in the coordinate system, of another one of its image."""
    system = _system_of(other)
    return dataset_of("0.5" if system is None else "0.6", path, scale, translation, system=system or "")


def not_moved(dataset: Mapping[str, Any]) -> Object:
    """Returns a dataset without its translation; all else that it has stays, also what others have put
    there. Raises ``KeyError``, ``TypeError`` or ``AttributeError`` for transformations that are none."""
    kept = []
    for step in dataset["coordinateTransformations"]:
        inner = step["transformations"] if step["type"] == "sequence" else [step]
        left = [each for each in inner if each["type"] != "translation"]
        if step["type"] == "sequence":
            outer = {name: value for name, value in step.items() if name not in ("type", "transformations")}
            left = [{**left[0], **outer} if len(left) == 1 else {**step, "transformations": left}]
        kept += left
    return {**dataset, "coordinateTransformations": kept}


def _system_of(dataset: Mapping[str, Any]) -> str | None:
    """Returns the name of the coordinate system that a dataset is in; None before 0.6."""
    try:
        name = dataset["coordinateTransformations"][0]["output"]["name"]
    except (LookupError, TypeError):
        return None
    return name if isinstance(name, str) else None


def axes_of(multiscale: Mapping[str, Any]) -> list[Any]:
    """Returns the axes of an image. Raises ``KeyError`` or ``TypeError`` for metadata of another form."""
    if "coordinateSystems" not in multiscale:
        found = multiscale["axes"]
    else:
        name = _system_of(multiscale["datasets"][0]) if multiscale["datasets"] else None
        systems = [each for each in multiscale["coordinateSystems"] if each["name"] == name]
        found = systems[0]["axes"] if systems else None
    if not isinstance(found, list):
        raise TypeError("the axes of a multiscale are a list")
    return found


def scale_and_translation(dataset: Mapping[str, Any], rank: int) -> tuple[list[float], list[float]]:
    """Returns the scale and the translation of a dataset. Raises ``ShardFormatError`` for transformations of
    other kinds or lengths, or that are none."""
    return _scale_and_translation(_steps_of(dataset), rank)


def _steps_of(facts: Mapping[str, Any]) -> list[Any]:
    given = facts.get("coordinateTransformations", [])
    return given if isinstance(given, list) else [given]


def _scale_and_translation(steps: list[Any], rank: int) -> tuple[list[float], list[float]]:
    """Returns one scale, and one translation behind it, that do what the steps do one after another. Usually
    these are the two steps, but others repeat them, or scale what they have translated."""
    scale, translation = [1.0] * rank, [0.0] * rank
    is_scaled = is_translated = False
    for step in _flat(steps):
        kind: Any = step.get("type") if isinstance(step, dict) else None
        if kind == "identity":
            continue
        values = step.get(kind) if kind in ("scale", "translation") else None
        if not isinstance(values, list) or len(values) != rank or not all(map(is_finite, values)):
            raise _not_supported(rank, step)
        if kind == "translation":  # the first step of a kind as it is written: 0 stays 0, and not 0.0
            added = [t + v for t, v in zip(translation, values, strict=True)]
            translation, is_translated = added if is_translated else values, True
        else:
            product = [s * v for s, v in zip(scale, values, strict=True)]
            scale, is_scaled = product if is_scaled else values, True
            if is_translated:
                translation = [t * v for t, v in zip(translation, values, strict=True)]
        if not all(map(is_finite, [*scale, *translation])):
            raise _not_supported(rank, step)
    return scale, translation


def _not_supported(rank: int, step: Any) -> ShardFormatError:
    return ShardFormatError(
        "coordinateTransformations not supported",
        expected=f"scale and translation of {rank} numbers",
        got=repr(step)[:160],
    )


def _flat(steps: list[Any]) -> list[Any]:
    """Returns transformations with the steps of a sequence in its place."""
    flat: list[Any] = []
    for step in steps:
        inner = step.get("transformations") if isinstance(step, dict) else None
        flat += inner if isinstance(inner, list) and step.get("type") == "sequence" else [step]
    return flat


def scene_of(axes: list[Object], positions: Mapping[str, Sequence[float]]) -> Object:
    """Returns the ``ome`` attributes by which a group relates its images; none where no image has a
    position. ``positions``: along ``axes``, by the folder of each image, zeros for one that has none: it is
    shown where images without a position are."""
    if not any(map(any, positions.values())):
        return {}
    relations = [
        {
            **({"type": "translation", "translation": list(at)} if any(at) else {"type": "identity"}),
            "input": {"path": folder, "name": INTRINSIC},
            "output": {"name": STAGE},
        }
        for folder, at in positions.items()
    ]
    systems = [{"name": STAGE, "axes": axes}]
    return {"scene": {"coordinateSystems": systems, "coordinateTransformations": relations}}


def is_placed_above(multiscale: Any) -> bool:
    """Returns whether a scene of a group above may have the position of an image: not before 0.6, also where
    an upgrade has changed that group and not yet the image."""
    return isinstance(multiscale, dict) and "coordinateSystems" in multiscale


class Scene:
    """The relations of a group to the images below it, read once, since there may be thousands. ``ome``: the
    attributes of the group, which need not have a scene. Raises ``ShardFormatError`` for one that is none."""

    def __init__(self, ome: Mapping[str, Any]) -> None:
        self.ome = ome
        self._relations: dict[str, Object] = {}  # by an image's folder: the first one to a system of ours
        scene = ome.get("scene") or {}
        try:
            self._axes = {each["name"]: each["axes"] for each in scene.get("coordinateSystems", ())}
            for each in scene.get("coordinateTransformations", ()):
                target, folder = each["output"], each["input"].get("path")
                if folder and not target.get("path") and target["name"] in self._axes:
                    self._relations.setdefault(folder, each)
        except (LookupError, TypeError, AttributeError):
            raise _no_scene(scene) from None

    def position_of(self, folder: str) -> dict[str, float] | None:
        """Returns the position, by axis, of the image in a folder; None where it is not named. Raises
        ``ShardFormatError`` for a relation that is no translation."""
        if (relation := self._relations.get(folder)) is None:
            return None
        try:
            names = [axis["name"] for axis in self._axes[relation["output"]["name"]]]
            scale, translation = _scale_and_translation([relation], len(names))
            found = dict(zip(names, translation, strict=True))
        except (LookupError, TypeError, AttributeError):
            raise _no_scene(self.ome["scene"]) from None
        if any(factor != 1 for factor in scale):
            raise ShardFormatError(
                "the scene of a collection not supported",
                expected="a translation of each image",
                got=repr(relation)[:160],
            )
        return found


def _no_scene(scene: Any) -> ShardFormatError:
    return ShardFormatError("the scene of a collection is none", got=repr(scene)[:160])


def moved(multiscale: Mapping[str, Any], by: Mapping[str, float]) -> Object:
    """Returns an image that is moved along its axes, by so much along those that are named. Raises
    ``ShardFormatError``."""
    try:
        shift = [by.get(axis["name"], 0.0) for axis in axes_of(multiscale)]
        if not any(shift):
            return dict(multiscale)
        if multiscale.get("coordinateTransformations") and not is_placed_above(multiscale):
            raise ShardFormatError(
                "coordinateTransformations of a multiscale not supported", expected="those of its datasets"
            )
        datasets = [_moved(dataset, shift) for dataset in multiscale["datasets"]]
    except (LookupError, TypeError, AttributeError):
        raise ShardFormatError("a multiscale that is none", got=repr(multiscale)[:160]) from None
    return {**multiscale, "datasets": datasets}


def _moved(dataset: Mapping[str, Any], shift: Sequence[float]) -> Object:
    scale, translation = scale_and_translation(dataset, len(shift))
    to = [t + s for t, s in zip(translation, shift, strict=True)]
    return {**dataset, **dataset_beside(dataset, dataset["path"], scale, to)}


def upgraded(ome: Mapping[str, Any], position: Mapping[str, float]) -> Object:
    """Returns the ``ome`` attributes of 0.5 of any group as those of 0.6. ``position``: of its image by axis,
    which the scene of the group above has from now on. Raises ``ShardFormatError`` for metadata that 0.5 does
    not have."""
    facts = {name: value for name, value in ome.items() if name != "version"}
    for name in _HAVE_NO_VERSION:
        if isinstance(facts.get(name), dict):
            facts[name] = _without_version(facts[name])
    if "multiscales" in facts:
        try:
            facts["multiscales"] = [_upgraded_multiscale(each, position) for each in facts["multiscales"]]
        except (LookupError, TypeError, AttributeError):
            raise ShardFormatError(
                "the multiscales are none of OME-Zarr 0.5", got=repr(facts["multiscales"])[:160]
            ) from None
    return ome_of("0.6", facts)


def _without_version(facts: Mapping[str, Any]) -> Object:
    return {name: value for name, value in facts.items() if name != "version"}


def _upgraded_multiscale(multiscale: Mapping[str, Any], position: Mapping[str, float]) -> Object:
    axes = multiscale["axes"]
    at = [position.get(axis["name"], 0.0) for axis in axes]
    outer = _steps_of(multiscale)  # of all levels, behind their own
    datasets: list[Object] = []
    first: list[float] = []
    for dataset in multiscale["datasets"]:
        scale, translation = _scale_and_translation([*_steps_of(dataset), *outer], len(axes))
        first = first or scale
        left = [_less(t, p, (s - s0) / 2) for t, p, s, s0 in zip(translation, at, scale, first, strict=True)]
        datasets.append({**dataset, **dataset_of("0.6", dataset["path"], scale, left)})
    replaced = ("version", "axes", "datasets", "coordinateTransformations")
    rest = {name: value for name, value in multiscale.items() if name not in replaced}
    return {**rest, **image_facts("0.6", axes, datasets)}


def _less(translation: float, position: float, usual: float) -> float:
    """Returns a translation without the position that is a part of it. ``usual``: of the level, half a pixel
    for each; taken where that is it but for the rounding of the sum."""
    left = translation - position
    near = 1e-9 * max(abs(translation), abs(position))
    return next((value for value in (0.0, usual) if position and abs(left - value) <= near), left)
