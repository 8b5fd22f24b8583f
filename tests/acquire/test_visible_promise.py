"""Random small acquisitions: whatever is told to be visible is there when zarr-python reads the files,
through deaths, resumes and ends."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import zarr
from tests.harness.writing import how

import shardwright as sw
from shardwright.acquire import live_scheduler
from shardwright.disk import failpoints
from shardwright.model.errors import ResumeError, ShardwrightError, VisibilityError

if TYPE_CHECKING:
    from pathlib import Path

    from shardwright.model.write_options import LiveMode

pytestmark = [
    pytest.mark.usefixtures("each_file_syncs_alone"),
    pytest.mark.filterwarnings("ignore::shardwright.model.errors.LayoutWarning"),
    pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning"),
]
SHAPES: dict[str, tuple[int | None, ...]] = {
    "t": (None,),
    "counted": (12,),
    "tc": (None, 2),
    "ragged": (None, None),
}


def die() -> None:
    raise KeyboardInterrupt


@dataclass
class Story:
    """One acquisition. ``sent``: of each image, and of all, the place and pixel of each sequence; pixel 0 of
    what is settled."""

    path: Path
    rng: random.Random
    live: LiveMode
    sent: list[tuple[str, tuple[int, ...], int]] = field(default_factory=list)

    def begin(self) -> sw.Writer:
        rng = self.rng
        self.names = rng.choice([("0",), ("left", "right")])
        self.shape = {name: SHAPES[rng.choice(list(SHAPES))] for name in self.names}
        arrays = {}
        for name, outer in self.shape.items():
            axes = "tzyx" if outer == (None, None) else "tcyx"[: len(outer)] + "yx"
            depth, many = rng.choice([1, 1, 2, 3]), rng.choice([1, 2, 4])
            if outer == (None, None):
                chunks, shards = {"t": 1, "z": depth}, {"t": 1, "z": depth * many}
            elif len(outer) == 2:
                chunks, shards = {"t": 1, "c": rng.choice([1, 2])}, {"t": many, "c": 2}
            else:
                chunks, shards = {"t": depth}, {"t": depth * many}
            arrays[name] = sw.default_layout(
                (*outer, 8, 8), "uint16", axes, chunks=chunks, shards=shards if rng.random() < 0.7 else False
            )
        what = {"images": arrays} if len(arrays) > 1 else {"spec": arrays["0"]}
        return sw.create(
            self.path, live=self.live, threads=2, **what, **how(on_duplicate="count", **self.pace())
        )

    def pace(self) -> dict[str, int]:
        slow = self.rng.random() < 0.5
        return {"store_within_ms": 3_600_000 if slow else 5, "sync_interval_ms": 3_600_000 if slow else 5}

    def next_place(self, name: str) -> tuple[int, ...] | None:
        """In order, with gaps, and some that came before."""
        taken = [place for image, place, _ in self.sent if image == name]
        newest = max(taken, default=None)
        outer, rng = self.shape[name], self.rng
        if taken and rng.random() < 0.1:
            return rng.choice(taken)
        if len(outer) == 1:
            t = (newest[0] if newest else -1) + rng.choice([1, 1, 1, 1, 2])
            if rng.random() < 0.2:
                t = max(0, t - 3)
            return (t,) if outer[0] is None or t < outer[0] else None
        t, z = newest or (0, -1)
        step = (t, z + 1) if z < 1 or (outer[1] is None and rng.random() < 0.3) else (t + 1, 0)
        return (max(0, t - 1), rng.choice([0, 1])) if rng.random() < 0.15 else step

    def send(self, writer: sw.Writer) -> None:
        name = self.rng.choice(self.names)
        place = self.next_place(name)
        if place is None:
            return
        is_new = all(each[:2] != (name, place) for each in self.sent)
        value = len(self.sent) + 1
        image = {"image": name} if len(self.names) > 1 else {}
        writer.append(np.full((8, 8), value, np.uint16), index=place, **image)
        self.sent.append((name, place, value if is_new else 0))

    def look(self, watermark: sw.Watermark) -> None:
        """What the watermark tells is what a reader sees that opens the files now. A shard that was opened
        again is replaced when it is sealed: whoever reads the index of one and chunks of the other reads once
        more."""
        assert watermark.visible <= watermark.stored
        for name, count in watermark.images.items():
            assert count <= len(self.of_image(name))
        told = self.sent[: watermark.visible]
        told += [each for name, count in watermark.images.items() for each in self.of_image(name)[:count]]
        for _ in range(3):
            try:
                missing = self.missing(told)
            except RuntimeError as error:  # blosc's
                missing = [error]
            if not missing:
                return
        raise AssertionError(watermark, missing)

    def of_image(self, name: str) -> list[tuple[str, tuple[int, ...], int]]:
        return [frame for frame in self.sent if frame[0] == name]

    def missing(self, frames: list[tuple[str, tuple[int, ...], int]]) -> list[Any]:
        """Those of these frames that zarr-python does not see, and what it sees instead."""
        seen: dict[str, np.ndarray] = {}
        missing = []
        for name, place, value in frames:
            if value and name not in seen:
                folder = "0" if len(self.names) == 1 else f"{self.names.index(name)}/0"
                seen[name] = zarr.open_array(self.path / folder, mode="r")[...]
            if value:
                inside = all(p < n for p, n in zip(place, seen[name].shape, strict=False))
                found = seen[name][place].max() if inside else None
                if found != value:
                    missing.append((name, place, value, found, seen[name].shape))
        return missing

    def end(self, writer: sw.Writer) -> sw.Writer | None:
        """Kills or closes it, and goes on with it as far as that is possible."""
        told = writer.watermark
        if self.rng.random() < 0.6:
            writer.flush("stored", 60)
            told = writer.watermark
            failpoints.set_hook("sealer.before_command", die)
            with pytest.raises(ShardwrightError):
                writer.close()
            failpoints.set_hook("sealer.before_command", None)
            self.look(told)
            if self.rng.random() < 0.3:
                sw.resume(self.path, threads=2).close()
                return None
        else:
            writer.close()
            self.look(writer.watermark)
            assert writer.watermark.visible == len(self.sent)
        settings = sw.WriteSettings(on_duplicate="count", **self.pace())
        try:
            again = sw.resume(self.path, threads=2, settings=settings)
        except ResumeError:
            assert self.names == ("0",), "nothing is open but a counted axis"
            assert self.shape["0"] == (12,), "which was filled"
            return None
        self.look(again.watermark)
        self.look(told)
        return again


@pytest.mark.parametrize("live", ["none", "index", "append"])
@pytest.mark.parametrize("seed", range(4))
def test_whatever_is_told_is_there(tmp_path, monkeypatch, live, seed):
    monkeypatch.setattr(live_scheduler, "SHOW_INTERVAL_S", 0.0)
    story = Story(tmp_path / "a.ome.zarr", random.Random(seed), live)
    writer: sw.Writer | None = story.begin()
    for part in range(3):
        if writer is None:
            break
        for _ in range(story.rng.randrange(4, 16)):
            story.send(writer)
            story.look(writer.watermark)
            if (act := story.rng.random()) < 0.3:
                try:
                    writer.flush("visible", 60)
                    assert writer.watermark.visible == len(story.sent)
                except VisibilityError:
                    assert writer.watermark.visible < len(story.sent)
            elif act < 0.4:
                writer.flush("durable" if act < 0.35 else "stored", 60)
            story.look(writer.watermark)
        if part < 2:
            writer = story.end(writer)
    if writer is not None:
        writer.close()
        story.look(writer.watermark)
