"""The metadata of a store, held against the text of OME-Zarr 0.5 or 0.6 as far as we write them: an oracle
that shares no code with what writes them."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import zarr

if TYPE_CHECKING:
    from pathlib import Path

_KINDS = ("time", "channel", "space")  # in this order


def ome_groups(store: Path) -> dict[str, dict[str, Any]]:
    """The ``ome`` attributes of all groups, by their folder below the store."""
    found = {}
    for file in sorted(store.rglob("zarr.json")):
        node = json.loads(file.read_text())
        if node["node_type"] == "group" and "ome" in node["attributes"]:
            found[file.parent.relative_to(store).as_posix()] = node["attributes"]["ome"]
    return found


def versions_of(store: Path) -> set[str]:
    return {ome["version"] for ome in ome_groups(store).values()}


def check_ome_forms(store: Path, version: str | None = None) -> None:
    """Each group is whole by itself, in the version that it says. ``version``: that of all."""
    groups = ome_groups(store)
    assert groups
    for folder, ome in groups.items():
        assert version in (None, ome["version"]), (folder, ome["version"])
        below = copy.deepcopy({name: value for name, value in ome.items() if name != "version"})
        for multiscale in below.get("multiscales", ()):
            multiscale.get("metadata", {}).pop("version", None)  # of what made the levels
        assert '"version"' not in json.dumps(below), f"{folder}: the version has one place"
        for multiscale in ome.get("multiscales", ()):
            (_check_06 if ome["version"] == "0.6" else _check_05)(multiscale)
        if "scene" in ome:
            assert ome["version"] == "0.6"
            _check_scene(ome["scene"], folder, groups)


def _check_05(multiscale: dict[str, Any]) -> None:
    assert "coordinateSystems" not in multiscale
    axes = _checked_axes(multiscale["axes"])
    for dataset in multiscale["datasets"]:
        scale, *translation = dataset["coordinateTransformations"]
        assert (scale.keys(), len(scale["scale"])) == ({"type", "scale"}, len(axes))
        assert len(translation) <= 1
        for each in translation:
            assert (each.keys(), len(each["translation"])) == ({"type", "translation"}, len(axes))


def _check_06(multiscale: dict[str, Any]) -> None:
    assert "axes" not in multiscale
    systems = {system["name"]: system["axes"] for system in multiscale["coordinateSystems"]}
    assert len(systems) == len(multiscale["coordinateSystems"])
    outputs = set()
    for dataset in multiscale["datasets"]:
        (transformation,) = dataset["coordinateTransformations"]
        assert transformation["input"] == {"path": dataset["path"]}
        assert transformation["output"].keys() == {"name"}
        outputs.add(transformation["output"]["name"])
        axes = _checked_axes(systems[transformation["output"]["name"]])
        steps = transformation.get("transformations", [transformation])
        assert [step["type"] for step in steps] in (["scale"], ["scale", "translation"])
        assert all(len(step[step["type"]]) == len(axes) for step in steps)
        assert (len(steps) == 2) == (transformation["type"] == "sequence")
    assert len(outputs) == 1


def _check_scene(scene: dict[str, Any], folder: str, groups: dict[str, dict[str, Any]]) -> None:
    (system,) = scene["coordinateSystems"]
    related = []
    for relation in scene["coordinateTransformations"]:
        assert relation["output"] == {"name": system["name"]}
        assert relation["type"] in ("identity", "translation")
        assert len(relation.get("translation", system["axes"])) == len(system["axes"])
        path = relation["input"]["path"]
        related.append(path)
        image = groups[path if folder == "." else f"{folder}/{path}"]
        if image["version"] == "0.6":  # the other one of an upgrade that was interrupted
            systems = {each["name"]: each for each in image["multiscales"][0]["coordinateSystems"]}
            assert systems[relation["input"]["name"]]["axes"] == system["axes"]
    assert related == groups["OME"]["series"]


def _checked_axes(axes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    assert len({axis["name"] for axis in axes}) == len(axes)
    kinds = [axis["type"] for axis in axes if "type" in axis]
    assert set(kinds) <= set(_KINDS)
    return axes


def places_of(store: Path) -> dict[str, list[tuple[list[float], list[float]]]]:
    """The scale and the translation of each level of each image, its position in a scene added: where pixels
    are on the stage, whichever version says it."""
    groups, found = ome_groups(store), {}
    relations = {
        each["input"]["path"]: each.get("translation")
        for each in groups.get(".", {}).get("scene", {}).get("coordinateTransformations", ())
    }
    for folder, ome in groups.items():
        for multiscale in ome.get("multiscales", ()):
            levels = []
            for dataset in multiscale["datasets"]:
                given = dataset["coordinateTransformations"]
                steps = given[0].get("transformations", given)
                facts = {step["type"]: step[step["type"]] for step in steps}
                zeros = [0.0] * len(facts["scale"])
                in_scene = "coordinateSystems" in multiscale  # else an upgrade has not come to it yet
                own, above = facts.get("translation", zeros), (in_scene and relations.get(folder)) or zeros
                levels.append((facts["scale"], [a + b for a, b in zip(own, above, strict=True)]))
            found[folder] = levels
    return found


def labels_of(version: str, *translation: float) -> dict[str, Any]:
    """The ``ome`` attributes of labels in the plane, with pixels of one micrometre."""
    axes = [{"name": name, "type": "space", "unit": "micrometer"} for name in "yx"]
    steps: list[dict[str, Any]] = [{"type": "scale", "scale": [1.0, 1.0]}]
    if translation:
        steps.append({"type": "translation", "translation": list(translation)})
    image: dict[str, Any] = {"name": "cells", "datasets": [{"path": "0", "coordinateTransformations": steps}]}
    if version == "0.6":
        one = {"type": "sequence", "transformations": steps} if translation else steps[0]
        ends = {"input": {"path": "0"}, "output": {"name": "physical"}}
        image["datasets"][0]["coordinateTransformations"] = [{**one, **ends}]
        image["coordinateSystems"] = [{"name": "physical", "axes": axes}]
    else:
        image["axes"] = axes
    return {"version": version, "multiscales": [image], "image-label": {}}


def add_labels(image: Path, ome: dict[str, Any]) -> Path:
    """Writes labels as another program does; returns their folder."""
    labels = zarr.open_group(image, mode="r+", use_consolidated=False).create_group("labels")
    labels.attrs["ome"] = {"version": ome["version"], "labels": ["cells"]}
    cells = labels.create_group("cells")
    cells.attrs["ome"] = ome
    cells.create_array("0", shape=(16, 16), dtype="uint8", dimension_names=["y", "x"])
    return image / "labels/cells"
