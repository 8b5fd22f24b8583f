"""AcquisitionSpec: the images of one acquisition, validated once at the border and frozen.

An acquisition of one image without a name is that image's store. Several images are a collection: positions
and cameras are series ``0``, ``1``, ... or with the paths that they have (``bioformats2raw.layout`` 3), the
fields of a plate lie in their wells. ``metadata`` writes the documents of either.
"""

from __future__ import annotations

import json
from contextlib import suppress
from dataclasses import replace
from functools import cached_property
from numbers import Integral
from typing import TYPE_CHECKING, Any

from pydantic import ConfigDict, Field, PrivateAttr, ValidationError, field_validator, model_validator

from shardwright.model.display_text import FactSheet
from shardwright.model.errors import InvalidNameError, SpecError, UnknownImageError
from shardwright.model.names import MAX_IMAGE_PATH_CHARACTERS, checked_image_path, folders_to, key_in
from shardwright.model.write_options import (
    DEFAULT_OME_VERSION,
    OmeVersion,
    check_options,
    index_location_of,
)
from shardwright.wire.messages import MAX_IMAGES

from .grid import Grid, Grids
from .ome_version import FORMS
from .plate import MAX_IMAGE_NAME_CHARACTERS, Plate
from .spec import POSITIONS_AXIS, ArraySpec, _Frozen, group_attributes, parse_spec, problems_of, visible_name
from .stage_position import StagePosition  # noqa: TC001  (pydantic reads the annotation)

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    import numpy as np

    from shardwright.model.write_options import LiveMode, PartialChunks

    from .spec import Dimension

ARRAY_NAME = "0"  # of an image's array, in the folder of the image
MAX_SPEC_BYTES = 192 << 10  # it travels in one control message
MAX_ADDED_BYTES = 512 << 10  # as JSON, of the images that are added while it runs: in the same message


def level_path(array_path: str, level: int) -> str:
    """Returns the path of a level of the image whose array is at ``array_path``."""
    return f"{array_path.removesuffix(ARRAY_NAME)}{level}"


class Image(_Frozen):
    """One image of an acquisition. ``array``: if it differs from the acquisition's. ``attributes``: JSON for
    the zarr.json of the image's group. ``position``: of the stage, such as ``{"x": 350.5, "y": 1200}`` in
    micrometres; without it that of its first frame, if that has one, once the acquisition has ended.
    ``path``: of its folder in the store, such as ``"Pos0"``; without it that is its number, counted from 0.
    """

    name: str = Field(min_length=1, max_length=MAX_IMAGE_NAME_CHARACTERS)
    array: ArraySpec | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    position: StagePosition | None = None
    path: str | None = Field(default=None, max_length=MAX_IMAGE_PATH_CHARACTERS)

    _json_ready = field_validator("attributes")(group_attributes)

    _visible = field_validator("name")(visible_name)

    @field_validator("path")
    @classmethod
    def _in_store(cls, value: str | None) -> str | None:
        try:
            return None if value is None else checked_image_path(value)
        except InvalidNameError as error:
            raise ValueError(f"path: {error.message}, expected {error.expected}, got {error.got}") from None

    def is_plain(self, array: ArraySpec | None) -> bool:
        """Returns whether its name says all, in an acquisition with this array."""
        has_more = self.attributes or self.position is not None or self.path is not None
        return self.array in (None, array) and not has_more

    def to_json(self, *, with_position: bool = True) -> dict[str, Any]:
        """Returns JSON values, without what says nothing."""
        facts = self.model_dump(mode="json")
        if not with_position:
            facts["position"] = None
        elif facts["position"] is not None:
            facts["position"] = {k: v for k, v in facts["position"].items() if v is not None}
        return {name: value for name, value in facts.items() if value not in (None, {})}


def images_by_name(value: Any) -> Any:
    """Turns names alone into images, and a mapping of names to arrays. Raises ``ValueError`` for their number
    alone."""
    if isinstance(value, Integral):
        names = [f"pos{number}" for number in range(min(3, int(value)) if int(value) > 0 else 3)]
        raise ValueError(f"images: expected their names, such as images={names}, got {value}")  # noqa: TRY004
    if isinstance(value, dict):
        return tuple({"name": name, "array": array} for name, array in value.items())
    if isinstance(value, list | tuple):
        return tuple({"name": each} if isinstance(each, str) else each for each in value)
    return value


def acquired_in_order(array: Any, axes: Sequence[str]) -> Any:
    """Returns an array, or its JSON, with its frame axes in this order of acquisition. If it names them in
    another one, that is the order in which they are stored. What does not fit is returned as it is."""
    facts = array.model_dump() if isinstance(array, ArraySpec) else array
    try:
        by_name = {d["name"] if isinstance(d, dict) else d.name: d for d in facts["dimensions"]}
        names, axes = list(by_name), list(axes)
        fit = len(names) == len(facts["dimensions"]) and sorted(names[:-2]) == sorted(axes)
    except (AttributeError, KeyError, TypeError):  # also of names that do not compare
        return array  # its own check says what is wrong
    if not fit or names[:-2] == axes:
        return array
    dimensions = [by_name[name] for name in (*axes, *names[-2:])]
    return {**facts, "dimensions": dimensions, "storage_order": facts.get("storage_order") or names}


class AcquisitionSpec(FactSheet, _Frozen):
    """The images of an acquisition, by name and with ``array``, the specification of those that do not bring
    their own. Neither ``images`` nor ``plate``: one image without a name.

    ``plate``: the images are its fields, all of them unless ``images`` names those that differ.
    ``order``: the names of all frame axes in the order in which frames are acquired, slowest first, with
    ``p`` where the images change, such as ``("t", "p", "z", "c")``. Arrays that name their axes in another
    order are stored in theirs, unless they have a ``storage_order``; here ``array`` then has them in the
    order of acquisition. Without ``order`` the arrays say it, images may change at any frame, and memory is
    planned for that. One image without a name has an ``order`` without ``p``. ``attributes``: JSON for the
    zarr.json of the store's group. ``ome_version``: of its metadata, None as the settings say.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", ignored_types=(cached_property,))

    array: ArraySpec | None = None
    images: tuple[Image, ...] = Field(default=(), max_length=MAX_IMAGES)
    plate: Plate | None = None
    order: tuple[str, ...] | None = None
    attributes: dict[str, Any] = Field(default_factory=dict)
    ome_version: OmeVersion | None = None

    # Those that were added while it ran: no field, since nobody declares them. Their numbers follow those of
    # the declared ones, none of which changes.
    _added: tuple[Image, ...] = PrivateAttr(default=())

    _json_ready = field_validator("attributes")(group_attributes)
    _by_name = field_validator("images", mode="before")(images_by_name)

    @model_validator(mode="before")
    @classmethod
    def _in_order(cls, value: Any) -> Any:
        """Brings the arrays to the acquisition's order."""
        order = value.get("order") if isinstance(value, dict) else None
        if not isinstance(order, list | tuple) or not all(isinstance(name, str) for name in order):
            return value
        axes = [name for name in order if name != POSITIONS_AXIS]
        facts = {**value, "images": images_by_name(value.get("images", ()))}
        if isinstance(facts["images"], tuple):
            facts["images"] = tuple(_image_in_order(image, axes) for image in facts["images"])
        if "array" in facts:
            facts["array"] = acquired_in_order(facts["array"], axes)
        return facts

    @model_validator(mode="after")
    def _consistent(self) -> AcquisitionSpec:
        names: set[str] = set()
        for image in self.images:
            if image.name in names:
                raise ValueError(f"images: names must differ, got {image.name!r} twice")
            names.add(image.name)
        if self.plate is not None:
            fields = self.plate.images()
            if outside := sorted(names - set(fields))[:1]:
                raise ValueError(
                    f"images: {outside[0]!r} is no field of the plate, expected a name such as {fields[0]!r}"
                )
        if self.array is None and (self.plate is not None or any(i.array is None for i in self.images)):
            raise ValueError("array: missing, and some images have none of their own")
        if self.array is None and not self.images:
            raise ValueError("array: missing")
        self._check_images()
        return self

    def _check_images(self) -> None:
        """Raises ``ValueError`` for images that do not go together, declared or added."""
        if "image" in self.frame_fields and not self.is_single:
            raise ValueError("frame_fields: 'image' is a column of the frame table already")
        for field in ("frame_fields", "frame_json_bytes"):
            if len({getattr(array, field) for array in self.distinct_arrays}) > 1:
                raise ValueError(f"images: {field} must be the same for all, since there is one frame table")
        if len({array.frame_places for array in self.distinct_arrays}) > 1:
            raise ValueError("images: interleaved, with as many channels, must be the same for all")
        self._check_order()
        self._check_positions()
        self._check_folders()

    def _check_folders(self) -> None:
        """No image lies in another one's folder, nor inside it, also on filesystems that do not tell upper
        from lower case."""
        own = [image for image in self._named_images if image.path is not None]
        if not own:
            return
        if self.plate is not None:
            raise ValueError(
                f"images: {own[0].name!r} has a path, but those of a plate lie in their wells; the plate may "
                f"name the fields of its wells, such as fields={[own[0].path]}"
            )
        image_in: dict[str, str] = {}  # by their folders, in lower case
        spelled: dict[str, str] = {}  # likewise: those, and the folders above them
        for image, folder in zip(self.names, self.folders, strict=True):
            if (other := image_in.setdefault(folder.lower(), image)) != image:
                raise ValueError(
                    f"images: {other!r} and {image!r} would have one folder, {folder!r}; that of an image "
                    f"without a path is its number, counted from 0"
                )
            for above in folders_to(folder):
                if (first := spelled.setdefault(above.lower(), above)) != above:
                    raise ValueError(
                        f"images: paths differ by upper and lower case alone, {first!r}, {above!r}"
                    )
        for folder, image in image_in.items():
            if outer := [image_in[above] for above in folders_to(folder)[:-1] if above in image_in]:
                raise ValueError(f"images: {image!r} would lie inside the folder of {outer[0]!r}")

    def _check_positions(self) -> None:
        for image, array in zip(self.names, self.arrays, strict=True):
            position = self._positions.get(image)
            if position is not None and (axes := position.unplaced(array)):
                raise ValueError(
                    f"images: {image!r} has a position along {', '.join(axes)}, so these axes need a length "
                    f'as their unit, such as Dimension(name="{axes[0]}", scale=0.5, unit="um")'
                )

    def _check_order(self) -> None:
        if self.order is None:
            return
        if self.order.count(POSITIONS_AXIS) != (0 if self.is_single else 1):
            raise ValueError(
                f"order: names the axes of several images and {POSITIONS_AXIS!r} for the images, once; got "
                f"{list(self.order)}" + (", and there is one image without a name" if self.is_single else "")
            )
        axes = [name for name in self.order if name != POSITIONS_AXIS]
        for array in self.distinct_arrays:
            if self.order[0] == POSITIONS_AXIS and axes and array.dimensions[0].count is None:
                raise ValueError(
                    f"order: the images change slowest, so {array.dimensions[0].name!r} needs a count: none "
                    f"but the first image would ever come"
                )
            if array.interleaved and self.order[-1] == POSITIONS_AXIS:
                raise ValueError("order: ends with the channels, since a frame of colours has all of them")
            if axes != [d.name for d in array.dimensions[:-2]]:
                raise ValueError(
                    f"order: expected every frame axis of every image once; got {list(self.order)} for "
                    f"{[d.name for d in array.dimensions[:-2]]}"
                )
        if self.is_single:
            # The array has it. Past the freeze: the model is still being made, and two specifications of the
            # same image must be equal and have the same JSON, however the order was given.
            self.__dict__["order"] = None

    def _facts(self) -> dict[str, object]:
        facts: dict[str, object] = {}
        if not self.is_single:
            facts["images"] = f"{len(self.names)}: {', '.join(self.names[:4])}"
            facts["images"] = f"{facts['images']}{', ...' if len(self.names) > 4 else ''}"
        if self.order is not None:
            facts["order"] = self.order
        return {**facts, "arrays": self.distinct_arrays}

    @property
    def is_single(self) -> bool:
        """True for one image without a name, whose store is the acquisition's."""
        return not self.images and self.plate is None

    @property
    def added(self) -> tuple[Image, ...]:
        """The images that were added while it ran, in the order of their numbers."""
        return self._added

    @property
    def _named_images(self) -> tuple[Image, ...]:
        """All that say more than a field of the plate does."""
        return (*self.images, *self._added)

    @cached_property
    def names(self) -> tuple[str, ...]:
        """The names of all images, by their numbers; one empty name if there is only one image."""
        added = tuple(image.name for image in self._added)
        if self.plate is not None:
            return (*self.plate.images(), *added)
        return (*(image.name for image in self.images), *added) or ("",)

    @cached_property
    def whole_plate(self) -> Plate | None:
        """The plate with the wells of added images. Raises ``ValueError`` for one that is no field of a
        well."""
        plate = self.plate
        if plate is not None:
            for image in self._added:
                plate = plate.with_field(image.name)
        return plate

    @cached_property
    def arrays(self) -> tuple[ArraySpec, ...]:
        """The specification of each image, by their numbers. Images with equal ones have the same object."""
        # One object for equal ones, however the user wrote them: encoders and limits make their tables once
        # for each object.
        shared: dict[tuple[str, str], ArraySpec] = {}
        if self.array is not None:
            shared[_values_of(self.array)] = self.array
        own = {
            image.name: shared.setdefault(_values_of(image.array), image.array)
            for image in self._named_images
            if image.array is not None
        }
        arrays = [own.get(name, self.array) for name in self.names]
        return tuple(array for array in arrays if array is not None)

    @cached_property
    def distinct_arrays(self) -> tuple[ArraySpec, ...]:
        """The specifications in ``arrays``, each once."""
        return tuple({id(array): array for array in self.arrays}.values())

    @cached_property
    def folders(self) -> tuple[str, ...]:
        """The folder of each image's group in the store, by their numbers; an empty one if there is one image
        without a name. All other places of an image follow from it."""
        if self.is_single or self.plate is not None:
            return self.names
        return tuple(image.path or str(number) for number, image in enumerate(self._named_images))

    @cached_property
    def paths(self) -> tuple[str, ...]:
        """The folder of each image's array in the store."""
        return tuple(key_in(folder, ARRAY_NAME) for folder in self.folders)

    def level_paths(self, image: int) -> list[str]:
        """Returns the folders of an image's array and of the levels above it."""
        return [level_path(self.paths[image], level) for level in range(1 + self.arrays[image].level_count)]

    def all_array_paths(self) -> list[str]:
        """Returns the folders of all arrays: of each image and of its levels."""
        return [path for image in range(len(self.paths)) for path in self.level_paths(image)]

    @cached_property
    def _attributes(self) -> dict[str, dict[str, Any]]:
        return {image.name: image.attributes for image in self._named_images}

    def attributes_of(self, image: int | None) -> dict[str, Any]:
        """The attributes of an image's group, or of the store's (None): of a single image both are one."""
        return self.attributes if image is None else self._attributes.get(self.names[image], {})

    @cached_property
    def _positions(self) -> dict[str, StagePosition]:
        return {image.name: image.position for image in self._named_images if image.position is not None}

    def position_of(self, image: int) -> StagePosition | None:
        """Returns where an image is, if that was declared."""
        return self._positions.get(self.names[image])

    def array_of(self, image: int | None) -> ArraySpec | None:
        """Returns the array of the image whose group this is; of the store's (None) that of a single one, or
        None."""
        return self.arrays[image or 0] if image is not None or self.is_single else None

    @cached_property
    def scene_axes(self) -> tuple[Dimension, ...] | None:
        """The axes of the scene that has the positions of the images; None where the images have their own:
        before OME-Zarr 0.6, of one image without a name and of a plate, and where images differ in their
        axes, so that no translation relates them."""
        if (
            self.is_single
            or self.plate is not None
            or not FORMS[self.ome_version or DEFAULT_OME_VERSION].has_scenes
        ):
            return None
        axes = {
            tuple((d.name, d.axis_type, d.unit) for d in array.stored_dimensions)
            for array in self.distinct_arrays
        }
        return self.arrays[0].stored_dimensions if len(axes) == 1 else None

    @cached_property
    def _numbers(self) -> dict[str, int]:
        # Asked for each frame, and a plate has thousands of names.
        return {name: number for number, name in enumerate(self.names)}

    def number_of(self, image: str | None) -> int:
        """Returns the number of an image. None: the only one. Raises ``UnknownImageError``."""
        if image is None and len(self.names) == 1:
            return 0
        number = self._numbers.get(image) if isinstance(image, str) else None
        if number is None:
            known = ", ".join(map(repr, self.names[:8])) + (", ..." if len(self.names) > 8 else "")
            raise UnknownImageError(
                "the frame names no image of this acquisition" if image is None else "there is no such image",
                expected=f"one of {known}" if not self.is_single else "no name: there is only one image",
                got=image,
            )
        return number

    @property
    def frame_fields(self) -> tuple[str, ...]:
        return self.arrays[0].frame_fields

    @property
    def frame_json_bytes(self) -> int:
        return self.arrays[0].frame_json_bytes

    @property
    def frame_places(self) -> int:
        """As ``ArraySpec.frame_places``, the same for all images."""
        return self.arrays[0].frame_places

    @property
    def total_frames(self) -> int | None:
        """The number of frames that its counts say; None if an axis has none."""
        total = self.grids.total_frames
        return None if total is None else total // self.frame_places

    @property
    def frame_descriptor(self) -> np.dtype[np.void]:
        """The descriptor of the frames of all images."""
        return self.arrays[0].frame_descriptor

    @property
    def slot_form(self) -> tuple[str, tuple[int, int]]:
        """(dtype, (rows, columns)) of a slot of the ring, as messages describe frames: those of the array, or
        with several images just bytes."""
        if self.is_single:
            return self.arrays[0].dtype, self.arrays[0].frame_shape
        return "uint8", (1, self.grids.slot_bytes)

    @cached_property
    def grids(self) -> Grids:
        """The grids of all images, for a new store."""
        slower = None if self.order is None else self.order.index(POSITIONS_AXIS)
        firsts: dict[int, Grid] = {}  # images share their arrays
        each = [
            firsts[id(array)].of_image(i)
            if id(array) in firsts
            else firsts.setdefault(id(array), Grid.of(array, i))
            for i, array in enumerate(self.arrays)
        ]
        grids = Grids(tuple(each), slower)
        return grids.split_rows(grids.most_row_shards, grids.most_across)

    def in_rows(self, shards: int, across: int = 1) -> AcquisitionSpec:
        """Returns the specification for a store whose shard rows are split as ``Grids.split_rows`` says."""
        # Not a field: it is what a writer chose for one store, so the manifest keeps it, and the JSON that
        # clients send has nothing of it.
        spec = self.model_copy()
        spec.__dict__["grids"] = self.grids.split_rows(shards, across)
        return spec

    def in_place(self) -> AcquisitionSpec:
        """Returns the specification for a store whose frames are put into their chunks as they come. Where a
        chunk is a single frame, that changes nothing. Raises ``SpecError`` when an array has chunks that no
        frame has bytes of: compressed, with a checksum, or of levels."""
        for array in self.distinct_arrays:
            _check_in_place(array)
        spec = self.model_copy()
        if self.grids.frames_per_slab > 1:
            spec.__dict__["grids"] = replace(self.grids, in_place=True)
        return spec

    def to_json(self, *, for_client: bool = False) -> dict[str, Any]:
        """Returns JSON values: those of the array alone if there is one image without a name, and no more to
        say. ``for_client``: without what clients of earlier releases refuse, and none needs: then, and the
        positions of images."""
        if self.is_single and (for_client or not (self.attributes or self.ome_version)):
            later = {"channels", "levels"} if for_client else None
            return self.arrays[0].model_dump(mode="json", exclude=later)
        facts = self.model_dump(mode="json", exclude={"images"})
        if for_client or self.ome_version is None:
            del facts["ome_version"]
        facts["images"] = [self._json_of(image, for_client=for_client) for image in self.images]
        if self.plate is not None and not self.plate.acquisitions:
            del facts["plate"]["acquisitions"]
        return facts

    def added_json(self, *, for_client: bool = False, first: int | None = None) -> list[Any]:
        """Returns JSON values of the added images, from the one with the number ``first`` on; as
        ``to_json``, which has the declared ones."""
        declared = len(self.names) - len(self._added)
        some = self._added[max(0, (first or 0) - declared) :]
        return [self._json_of(image, for_client=for_client) for image in some]

    def _json_of(self, image: Image, *, for_client: bool) -> Any:
        # one that has the acquisition's array is a name alone
        return image.name if image.is_plain(self.array) else image.to_json(with_position=not for_client)

    def without_added(self) -> AcquisitionSpec:
        """Returns the specification as it was declared."""
        return self._copy(()) if self._added else self

    def _copy(self, added: tuple[Image, ...]) -> AcquisitionSpec:
        """Returns a copy with other added images, without anything that was derived from these."""
        spec = self.model_copy()
        for derived in spec.__dict__.keys() - type(self).model_fields.keys():
            del spec.__dict__[derived]
        spec._added = added  # noqa: SLF001
        return spec

    def with_images(
        self, images: Iterable[Image], row_shards: int = 1, across_shards: int = 1
    ) -> AcquisitionSpec:
        """Returns the specification with more images behind those that it has: of an acquisition that runs.
        One that it has already changes nothing. ``row_shards``, ``across_shards``: as for ``in_rows``, of the
        same store. Raises ``SpecError`` for a name of another image, and for what cannot go together."""
        new: dict[str, Image] = {}
        for image in images:
            if self.order is not None:
                axes = [name for name in self.order if name != POSITIONS_AXIS]
                image = parse_image(_image_in_order(image, axes))  # noqa: PLW2901
            known = new.get(image.name) or self._image_named(image.name)
            if known is None:
                new[image.name] = image
            elif not self._are_same(image, known):
                raise SpecError(
                    f"there is another image {image.name!r} already",
                    expected="the same array, position, path and attributes, or another name",
                    hint="Call it with what it was added with: that changes nothing",
                )
        if not new:
            return self
        if len(self.names) + len(new) > MAX_IMAGES:
            raise SpecError("too many images in one acquisition", expected=f"at most {MAX_IMAGES}")
        self._check_takes_images(tuple(new.values()))
        spec = self._copy((*self._added, *new.values()))
        try:
            # Objects that are there stay: encoders and layouts are shared by them.
            arrays = dict(zip(map(_values_of, self.distinct_arrays), self.distinct_arrays, strict=True))
            own = [array for image in new.values() if (array := image.array or self.array) is not None]
            own = [arrays.setdefault(_values_of(array), array) for array in own]
            spec.__dict__["arrays"] = (*self.arrays, *own)
            grids = self.grids
            for array in own:
                grids = grids.with_grid(Grid.of(array, len(grids.grids)), row_shards, across_shards)
            spec.__dict__["grids"] = grids
            spec._check_images()  # noqa: SLF001
            _ = spec.whole_plate
        except ValueError as error:
            problem = problems_of(error) if isinstance(error, ValidationError) else str(error)
            raise SpecError(f"the image {next(iter(new))!r} cannot be added", got=problem) from None
        self._check_added(spec, own)
        return spec

    def _check_added(self, spec: AcquisitionSpec, arrays: Sequence[ArraySpec]) -> None:
        """Raises ``SpecError`` if this acquisition cannot become ``spec``, with images of ``arrays`` more."""
        if spec.grids.in_place:
            for array in arrays:
                _check_in_place(array)
        if self.scene_axes is not None and spec.scene_axes is None:
            raise SpecError(
                f"the image {spec.names[len(self.names)]!r} has other axes than the scene of this store",
                expected=[dimension.name for dimension in self.scene_axes],
                hint='Give it the same axes and units, or record it in a store of ome_version "0.5"',
            )
        if (length := len(json.dumps(spec.added_json()))) > MAX_ADDED_BYTES:
            raise SpecError(
                "the specifications of the images that were added are too long with this one",
                expected=f"at most {MAX_ADDED_BYTES} bytes as JSON",
                got=length,
                hint="Begin another acquisition, or give images shorter names and no array of their own",
            )

    def _check_takes_images(self, new: tuple[Image, ...]) -> None:
        """Raises ``SpecError`` unless images can be added to this acquisition."""
        if self.is_single:
            raise SpecError(
                "an acquisition of one image without a name takes no other: its store is that image",
                expected="an acquisition of named images, or of a plate",
                hint='Create it with images=["overview"], and the others are added to that',
            )
        if self.order is not None and self.order[0] != POSITIONS_AXIS:
            raise SpecError(
                "the order of this acquisition returns to each image: a later one would lack frames",
                expected='no order, or one that begins with "p"',
                got=list(self.order),
                hint="Without an order each frame names its image",
            )
        if self.array is None and (bare := [image.name for image in new if image.array is None]):
            raise SpecError(
                f"the image {bare[0]!r} has no array, and the acquisition has none for all",
                expected="add_image(NAME, array=...)",
            )

    def _image_named(self, name: str) -> Image | None:
        """Returns an image of this acquisition, None if there is none of that name."""
        if name not in self._numbers or self.is_single:
            return None
        return self._images_by_name.get(name, Image(name=name))

    @cached_property
    def _images_by_name(self) -> dict[str, Image]:
        return {image.name: image for image in self._named_images}

    def _are_same(self, *images: Image) -> bool:
        """Returns whether two images of one name are the same: with equal arrays, wherever the index is."""
        one, other = (
            (array and _values_of(array)[1], image.model_copy(update={"array": None}))
            for image in images
            for array in [image.array or self.array]
        )
        return one == other


def in_ome_version(version: OmeVersion, spec: AcquisitionSpec) -> AcquisitionSpec:
    """Returns the specification with the version of OME-Zarr that its settings say, unless it says one
    itself. The default one is None then, as in the manifests of earlier releases."""
    wanted = spec.ome_version or version
    recorded = None if wanted == DEFAULT_OME_VERSION else wanted
    if spec.ome_version == recorded:
        return spec
    # A copy, which keeps the cached ``arrays`` and ``grids``: of what is cached, one depends on the version.
    changed = spec.model_copy(update={"ome_version": recorded})
    changed.__dict__.pop("scene_axes", None)
    return changed


def same_but_for_version(one: AcquisitionSpec, other: AcquisitionSpec) -> bool:
    """Returns whether two specifications differ in nothing but the version of OME-Zarr."""
    return one == other.model_copy(update={"ome_version": one.ome_version})


def in_chunks_as(partial_chunks: PartialChunks, spec: AcquisitionSpec) -> AcquisitionSpec:
    """Returns the specification with frames where ``partial_chunks`` says. Raises ``SpecError`` for arrays
    whose frames cannot be put into chunks."""
    return spec.in_place() if partial_chunks == "in_place" else spec


def _check_in_place(array: ArraySpec) -> None:
    """Raises ``SpecError`` for an array with chunks that no frame has bytes of."""
    check_options(
        partial_chunks="in_place",
        codec="none" if array.codec is None else array.codec.name,
        chunk_checksum=array.chunk_checksum,
        levels=array.levels is not None,
    )


def with_index_for(live: LiveMode, spec: AcquisitionSpec) -> AcquisitionSpec:
    """Returns the specification with the index of each shard where ``live`` needs it. Raises ``SpecError``
    when an array says that it is elsewhere."""
    if index_location_of(live) is None:
        return spec

    images = tuple(image_with_index_for(live, image) for image in spec.images)
    # Made anew: a copy would keep the cached ``arrays`` and ``grids`` of the index that was elsewhere.
    return AcquisitionSpec(
        array=None if spec.array is None else _array_with_index_for(live, spec.array),
        images=images,
        plate=spec.plate,
        order=spec.order,
        attributes=spec.attributes,
        ome_version=spec.ome_version,
    )


def image_with_index_for(live: LiveMode, image: Image) -> Image:
    """As ``with_index_for``, of one image."""
    if index_location_of(live) is None or image.array is None:
        return image
    return image.model_copy(update={"array": _array_with_index_for(live, image.array)})


def _array_with_index_for(live: LiveMode, array: ArraySpec) -> ArraySpec:
    location, shards = index_location_of(live), array.actual_index_location != "none"
    says = shards and "index_location" in array.model_fields_set  # without shards it says nothing
    check_options(
        live=live,
        index_checksum=array.index_checksum,
        shards=shards,
        index_location=array.index_location if says else None,
    )
    if not shards or array.actual_index_location == location:
        return array
    return array.model_copy(update={"index_location": location})


def _values_of(array: ArraySpec) -> tuple[str, str]:
    """Returns what is equal of equal specifications: an index at its default place counts as one there."""
    return array.index_location, array.model_dump_json(exclude={"index_location"})


def _image_in_order(image: Any, axes: Sequence[str]) -> Any:
    if isinstance(image, Image):
        image = dict(image)  # with models inside, as they are
    if isinstance(image, dict) and image.get("array") is not None:
        return {**image, "array": acquired_in_order(image["array"], axes)}
    return image


def image_count(facts: dict[str, Any]) -> int:
    """Returns how many images an acquisition of these ``images`` or this ``plate`` has; 1 where they are
    wrong, which ``parse_acquisition`` says."""
    with suppress(ValidationError, TypeError):
        if "plate" in facts:
            return len(Plate.model_validate(facts["plate"]).images())
        return len(facts.get("images", ())) or 1
    return 1


def parse_image(facts: Any) -> Image:
    """Returns an image of its JSON, or of its name alone. Raises ``SpecError`` naming the first few wrong
    fields."""
    try:
        return Image.model_validate({"name": facts} if isinstance(facts, str) else facts)
    except ValidationError as error:
        raise SpecError("the image is wrong", got=problems_of(error)) from None


def parse_acquisition(facts: AcquisitionSpec | ArraySpec | dict[str, Any] | None) -> AcquisitionSpec:
    """Returns the specification of an acquisition, or that of its only image as one. Raises ``SpecError``
    naming the first few wrong fields."""
    try:
        if not isinstance(facts, dict | AcquisitionSpec) or (
            isinstance(facts, dict) and not facts.keys() & {"images", "plate", "array"}
        ):
            return AcquisitionSpec(array=parse_spec(facts))
        spec = AcquisitionSpec.model_validate(facts)
    except ValidationError as error:
        raise SpecError("the acquisition's specification is wrong", got=problems_of(error)) from None
    if (not spec.is_single or spec.attributes) and (
        length := len(json.dumps(spec.to_json()))
    ) > MAX_SPEC_BYTES:
        raise SpecError(
            "the acquisition's specification is too long",
            expected=f"at most {MAX_SPEC_BYTES} bytes as JSON",
            got=length,
            hint="Give images shorter names, and an array of their own only where it differs",
        )
    return spec
