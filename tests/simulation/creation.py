"""How a store is made, simulated: processes that want one name, one after the other, each killed, failing or
without power at some step, around the real table of what a folder tells (``recovery.leftovers``). No death
may burn the name, take a frame that was acknowledged, or leave anything behind once a creation goes well. As
``acquire.new_store`` and ``acquire.store_folder`` do; each ``yield`` is a call of the disk."""

from __future__ import annotations

import random
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from shardwright.recovery.leftovers import FolderAction, FolderFacts, row_for

if TYPE_CHECKING:
    from collections.abc import Generator

    Steps = Generator[None, None, None]

NAME = "run-1"
MOST_LIVES = 6
# as they are made
FILES = ("frames.log", "staging", "ballast", "0/zarr.json", "zarr.json", "boot", "manifest")
FIRST_GROUP = ("c.0.partial", "0.journal")


class NameTakenError(Exception):
    """The output exists already."""


class DiskError(Exception):
    """A call of the disk failed."""


@dataclass(eq=False)
class Store:
    """``frames`` were acknowledged. ``powered``: no power cut since it was made, so that empty tables tell
    that no frame came."""

    files: set[str] = field(default_factory=set)
    frames: int = 0
    powered: bool = True
    locked: bool = False

    def facts(self) -> FolderFacts:
        manifest = "manifest" in self.files
        unbegun = manifest and self.powered and not self.frames
        return FolderFacts(
            making=False, manifest=manifest, bare=not manifest and not self.frames, unbegun=unbegun
        )


@dataclass(eq=False)
class Making:
    """A folder in which a store is made, and is removed: ``store`` is in it."""

    store: Store | None = None
    locked: bool = True


class Root:
    """``names``: what is there now. A rename whose folder was not synced may be undone by a power cut."""

    def __init__(self, rng: random.Random) -> None:
        self.rng = rng
        self.store: Store | None = None  # under its name
        self.making: list[Making] = []
        # what the name stood for, and the folder that was renamed from or to
        self._unsynced: tuple[Store | None, Making] | None = None

    def rename(self, making: Making, *, publish: bool) -> None:
        before = self.store
        self.store, making.store = making.store, self.store
        self._unsynced = (before, making)
        if not publish:
            self.making.append(making)

    def sync(self) -> None:
        self._unsynced = None

    def die(self, *, power: bool) -> None:
        """Of whoever was at it."""
        for making in self.making:
            making.locked = False
        if power and self._unsynced is not None and self.rng.random() < 0.5:
            before, making = self._unsynced
            making.store, self.store = self.store, before
            if making not in self.making and making.store is not None:
                self.making.append(making)
        self._unsynced = None
        for store in (self.store, *(making.store for making in self.making)):
            if store is not None:
                store.locked, store.powered = False, store.powered and not power


def create(root: Root) -> Steps:
    """Until the client hears that it may send. Raises ``NameTakenError``; what ``DiskError`` finds is taken
    back."""
    yield from _free_name(root)
    if root.store is not None:
        raise NameTakenError
    for making in [making for making in root.making if not making.locked]:
        yield
        root.making.remove(making)
    yield
    making = Making(Store())
    root.making.append(making)
    store = making.store
    try:
        assert store is not None
        yield
        store.locked = True
        for name in FILES:
            yield
            store.files.add(name)
        yield
        root.rename(making, publish=True)
        yield
        root.sync()
        for name in FIRST_GROUP:
            yield
            store.files.add(name)
    except DiskError:
        if root.store is store:
            _withdraw(root)
        raise
    finally:
        if making in root.making:
            root.making.remove(making)  # a failure to do so leaves it to the next one


def _free_name(root: Root) -> Steps:
    if root.store is None or root.store.locked:
        return
    row = row_for(root.store.facts())
    if row.action is FolderAction.WITHDRAW:
        yield
        _withdraw(root)
        yield
        root.making.clear()


def _withdraw(root: Root) -> None:
    """Its name goes in one step."""
    root.rename(Making(), publish=False)
    root.sync()


def play(seed: int) -> tuple[int, str | None]:
    """(deaths and failures, what was wrong). The last creation goes well, unless a frame was acknowledged
    before."""
    rng = random.Random(seed)
    root = Root(rng)
    crashes = 0
    for left in reversed(range(rng.randint(1, MOST_LIVES))):
        acknowledged = 0 if root.store is None else root.store.frames
        ends = rng.choice(("kill", "power", "error")) if left else "well"
        crashes += ends != "well"
        try:
            _live(root, ends, rng.randint(0, 16))
        except NameTakenError:
            if not acknowledged and (root.store is None or root.store.powered):
                return crashes, "the name is burned: nothing is there that was acknowledged"
            root.die(power=False)
            continue
        if acknowledged and (root.store is None or root.store.frames < acknowledged):
            return crashes, f"{acknowledged} frames that were acknowledged are gone"
        if ends == "well" and (root.store is None or root.making):
            return crashes, "a store that was made is not there, or something is left beside it"
    return crashes, None


def _live(root: Root, ends: str, at: int) -> None:
    """One process, which dies or fails at that step, or later."""
    steps = create(root)
    for number, _ in enumerate(steps):
        if ends == "well" or number < at:
            continue
        if ends == "error":
            with suppress(DiskError):
                steps.throw(DiskError())
            root.die(power=False)
        else:
            _kill(root, steps, power=ends == "power")
        return
    assert root.store is not None
    if root.rng.random() < 0.3:
        root.store.frames += 1
    root.die(power=ends == "power")


def _kill(root: Root, steps: Steps, *, power: bool) -> None:
    """Nothing is cleaned up: what the generator does when it is closed is undone."""
    store, making = root.store, [(one, one.store) for one in root.making]
    steps.close()
    root.store, root.making[:] = store, [one for one, _ in making]
    for one, content in making:
        one.store = content
    root.die(power=power)
