"""What the simulated disk keeps of names when power is lost."""

from __future__ import annotations

import os
import random
from contextlib import suppress
from typing import TYPE_CHECKING

from .disk import Killed, SimulatedDisk

if TYPE_CHECKING:
    from pathlib import Path

FOLDER = os.O_RDONLY | os.O_DIRECTORY


def _disk(root: Path, number: int) -> SimulatedDisk:
    root.mkdir()
    return SimulatedDisk(root, random.Random(number))


def _moved_to_a_new_folder(root: Path, number: int) -> SimulatedDisk:
    """A disk on which a durable file has been moved to a folder whose name is not."""
    disk = _disk(root, number)
    above = disk.open(str(root), FOLDER)
    disk.make_folder(above, "work", 0o755)
    work = disk.open(str(root / "work"), FOLDER)
    file = disk.open(str(root / "work" / "shard"), os.O_RDWR | os.O_CREAT)
    for descriptor in (file, work, above):
        disk.sync(descriptor)
    disk.make_folder(above, "new", 0o755)
    new = disk.open(str(root / "new"), FOLDER)
    disk.rename(work, "shard", new, "shard")
    disk.sync(work)  # by a process that knows nothing of the folder
    disk.kill(disk.process)
    return disk


def test_a_file_that_moves_to_a_new_folder_keeps_a_name(tmp_path: Path) -> None:
    for number in range(20):
        root = tmp_path / str(number)
        disk = _moved_to_a_new_folder(root, number)
        disk.lose_power()
        assert [path.relative_to(root).as_posix() for path in root.rglob("shard")] == ["new/shard"]
        disk.end()


def test_a_folder_that_moves_twice_has_one_name(tmp_path: Path) -> None:
    found = set()
    for number in range(40):
        disk = _disk(root := tmp_path / str(number), number)
        above = disk.open(str(root), FOLDER)
        disk.make_folder(above, "making", 0o755)
        making = disk.open(str(root / "making"), FOLDER)
        disk.make_folder(making, "store", 0o755)
        disk.sync(making)
        disk.sync(above)
        disk.rename(making, "store", above, "store")
        disk.rename(above, "store", above, "removed")
        disk.kill(disk.process)
        disk.lose_power()
        (name,) = (path.relative_to(root).as_posix() for path in root.rglob("*") if path.name != "making")
        found.add(name)
        disk.end()
    assert found == {"making/store", "store", "removed"}


def test_who_is_killed_within_a_write_has_written_its_first_bytes(tmp_path: Path) -> None:
    found = set()
    for number in range(60):
        disk = _disk(root := tmp_path / str(number), number)
        disk.torn = random.Random(number)
        file = disk.open(str(root / "file"), os.O_RDWR | os.O_CREAT)

        def is_killed(disk: SimulatedDisk = disk) -> None:
            disk.process.is_dead = True

        disk.pause = is_killed
        with suppress(Killed):
            disk.write(file, b"abcdef", 0)
        found.add((root / "file").read_bytes())
        disk.kill(disk.process)
        disk.end()
    assert all(b"abcdef".startswith(data) for data in found)
    assert len(found) > 4, "some are whole, and some are not"
