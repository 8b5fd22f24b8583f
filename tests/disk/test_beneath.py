"""Paths without links: by one call of the kernel, and step by step where it has none."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from shardwright.disk import beneath, spill_links, system
from shardwright.disk.files import make_directories, open_regular, read_range
from shardwright.disk.lock import StoreLock
from shardwright.model.errors import LinkError, StorageError

if TYPE_CHECKING:
    from collections.abc import Callable

READ = os.O_RDONLY | os.O_NONBLOCK


@pytest.fixture(params=["at once", "step by step"], autouse=True)
def way(request, monkeypatch):
    """Both ways must do the same; the first is what this machine has."""
    if request.param == "step by step":
        monkeypatch.setattr(system, "has_openat2", lambda: False)
    else:
        assert system.has_openat2(), "these tests need Linux 5.6 for one of the two ways"


@pytest.fixture
def outside(tmp_path):
    folder = tmp_path / "outside"
    (folder / "inner").mkdir(parents=True)
    (folder / "file").write_bytes(b"theirs")
    return folder


@pytest.fixture
def store(tmp_path, outside):
    folder = tmp_path / "store"
    (folder / "a" / "b").mkdir(parents=True)
    (folder / "a" / "file").write_bytes(b"ours")
    (folder / "to-folder").symlink_to(outside)
    (folder / "to-file").symlink_to(outside / "file")
    (folder / "to-nowhere").symlink_to(outside / "missing")
    (folder / "to-itself").symlink_to("to-itself")
    (folder / "within").symlink_to("a")
    return folder


def seen(folder: Path) -> dict[str, bytes | str]:
    return {
        path.relative_to(folder).as_posix(): "folder" if path.is_dir() else path.read_bytes()
        for path in folder.rglob("*")
    }


LINKS = ("to-folder", "to-file", "to-nowhere", "to-itself", "within")

OPENED: dict[str, Callable[[Path], object]] = {
    "read": lambda path: beneath.open_file(path, READ),
    "write": lambda path: beneath.open_file(path, os.O_RDWR | os.O_CREAT | os.O_TRUNC),
    "append": lambda path: beneath.open_file(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT),
    "folder": lambda path: beneath.open_file(path, os.O_RDONLY | os.O_DIRECTORY),
    "look": lambda path: beneath.open_file(path, os.O_PATH),
    "regular": open_regular,
    "range": lambda path: read_range(path, 0, 1),
    "lock": StoreLock.take,
    "names": beneath.names_in,
    "folders": make_directories,
    "facts": beneath.filesystem_of,
    "again": lambda path: beneath.make_folder(path, exist_ok=True),
    "tree": beneath.remove_tree,
}


@pytest.mark.parametrize("link", LINKS)
@pytest.mark.parametrize("call", OPENED)
def test_a_link_is_refused_and_named(store: Path, outside: Path, link: str, call: str) -> None:
    before = seen(outside)
    with pytest.raises(LinkError, match=f"{store / link} is a symbolic link") as caught:
        OPENED[call](store / link)
    assert isinstance(caught.value, StorageError)
    assert caught.value.hint is not None
    assert seen(outside) == before
    assert (store / link).is_symlink()


BELOW: dict[str, Callable[[Path], object]] = OPENED | {
    "stat": beneath.stat,
    "exists": beneath.exists,
    "is_file": beneath.is_file,
    "is_dir": beneath.is_dir,
    "is_link": beneath.is_link,
    "unlink": beneath.unlink,
    "unlink if there": lambda path: beneath.unlink(path, missing_ok=True),
    "make": beneath.make_folder,
    "remove": beneath.remove_folder,
    "link": lambda path: beneath.make_link(path, Path("x")),
    "read link": beneath.read_link,
    "replace it": lambda path: beneath.replace(path.parents[1] / "a" / "file", path),
    "rename it": lambda path: beneath.replace(path, path.parents[1] / "new"),
    "exchange": lambda path: beneath.rename_with(path, path.parents[1] / "a" / "file", 2),
    "second name": lambda path: beneath.add_name(path.parents[1] / "a" / "file", path),
}


@pytest.mark.parametrize("name", ["file", "inner", "missing"])
@pytest.mark.parametrize("call", BELOW)
def test_nothing_is_reached_through_a_link_to_a_folder(
    store: Path, outside: Path, call: str, name: str
) -> None:
    before = seen(outside)
    with pytest.raises(LinkError, match=f"{store / 'to-folder'} is a symbolic link"):
        BELOW[call](store / "to-folder" / name)
    assert seen(outside) == before
    assert (store / "a" / "file").read_bytes() == b"ours"


def test_a_link_is_a_name_of_its_own(store: Path, outside: Path) -> None:
    before = seen(outside)
    link = store / "to-file"
    assert stat.S_ISLNK(beneath.stat(link).st_mode)
    assert beneath.exists(link)
    assert beneath.is_link(link)
    assert not beneath.is_file(link)
    assert not beneath.is_dir(store / "to-folder")
    assert beneath.read_link(link) == outside / "file"
    beneath.replace(link, store / "moved")
    assert (store / "moved").is_symlink()
    beneath.replace(store / "a" / "file", store / "moved")
    assert (store / "moved").read_bytes() == b"ours"
    beneath.unlink(store / "to-folder")
    assert not (store / "to-folder").is_symlink()
    assert seen(outside) == before


def test_a_tree_is_removed_with_its_links_alone(store: Path, outside: Path) -> None:
    before = seen(outside)
    assert {path.name for path in beneath.all_below(store)} == {*LINKS, "a", "b", "file"}
    beneath.remove_tree(store)
    assert not store.exists()
    assert seen(outside) == before


def test_a_folder_that_is_swapped_for_a_link_between_two_calls(store: Path, outside: Path) -> None:
    """What was looked at is not what is opened: each call refuses on its own."""
    before = seen(outside)
    path = store / "a" / "file"
    assert beneath.is_file(path)
    (store / "a").rename(store / "away")
    (store / "a").symlink_to(outside)
    for call in (beneath.unlink, open_regular, beneath.stat, StoreLock.take):
        with pytest.raises(LinkError, match=str(store / "a")):
            call(path)
    assert seen(outside) == before


@pytest.mark.parametrize("path", [".", "..", "a/..", "a/../a/b", "/", "/proc", "a/b"])
def test_other_paths_lead_where_they_say(store: Path, monkeypatch: pytest.MonkeyPatch, path: str) -> None:
    monkeypatch.chdir(store)
    for flags in (os.O_RDONLY | os.O_DIRECTORY, os.O_PATH):
        descriptor = beneath.open_file(path, flags)
        assert os.path.samestat(os.fstat(descriptor), Path(path).stat())
        assert not os.get_inheritable(descriptor)
        os.close(descriptor)


def test_a_path_may_begin_at_a_descriptor(store: Path) -> None:
    folder = os.open(store, os.O_PATH)
    try:
        descriptor = beneath.open_file("a/file", READ, folder=folder)
        assert os.read(descriptor, 9) == b"ours"
        os.close(descriptor)
        assert beneath.stat("a/file", folder=folder).st_size == 4
        with pytest.raises(LinkError, match="to-folder is a symbolic link"):
            beneath.open_file("to-folder/file", READ, folder=folder)
    finally:
        os.close(folder)


@pytest.mark.parametrize(
    ("path", "flags", "number"),
    [
        ("missing", READ, errno.ENOENT),
        ("missing/file", READ, errno.ENOENT),
        ("a/file/below", READ, errno.ENOTDIR),
        ("a/file", os.O_RDONLY | os.O_DIRECTORY, errno.ENOTDIR),
        ("a/file", os.O_RDWR | os.O_CREAT | os.O_EXCL, errno.EEXIST),
        ("a", os.O_RDWR, errno.EISDIR),
        ("a\0b", READ, errno.EINVAL),
        ("n" * 300, READ, errno.ENAMETOOLONG),
    ],
)
def test_other_errors_are_those_of_open(store: Path, path: str, flags: int, number: int) -> None:
    with pytest.raises(OSError, match=os.strerror(number)) as caught:
        beneath.open_file(store / path, flags)
    assert caught.value.errno == number


def test_files_are_made_with_a_mode_and_without_a_name(store: Path) -> None:
    os.close(beneath.open_file(store / "new", os.O_RDWR | os.O_CREAT | os.O_EXCL, 0o600))
    assert stat.S_IMODE((store / "new").stat().st_mode) == 0o600
    descriptor = beneath.open_file(store, os.O_RDWR | os.O_TMPFILE, 0o600)
    assert os.fstat(descriptor).st_nlink == 0
    os.close(descriptor)


def test_no_descriptor_is_left_open(store: Path) -> None:
    before = len(list(Path("/proc/self/fd").iterdir()))
    for call in BELOW.values():
        with pytest.raises(LinkError):
            call(store / "to-folder" / "file")
    assert len(list(Path("/proc/self/fd").iterdir())) == before


def test_a_named_pipe_ends_nothing(store: Path) -> None:
    os.mkfifo(store / "pipe")
    with pytest.raises(OSError, match="no regular file"):
        open_regular(store / "pipe")
    with pytest.raises(StorageError, match="no regular file"):
        StoreLock.take(store / "pipe")


# The border


def test_a_users_links_are_resolved_once(tmp_path: Path, store: Path, outside: Path) -> None:
    (store / "zarr.json").write_text("{}")
    (tmp_path / "link").symlink_to(store)
    (tmp_path / "root").symlink_to(tmp_path)
    assert beneath.user_path(tmp_path / "link") == store
    assert beneath.user_path(tmp_path / "root" / "link" / "a") == store / "a"
    assert beneath.user_path(tmp_path / "link" / ".." / "outside" / "file") == outside / "file"
    assert beneath.user_path(tmp_path / "link", is_new=True) == tmp_path / "link"
    assert beneath.user_path(tmp_path / "root" / "new" / "store") == tmp_path / "new" / "store"


@pytest.mark.parametrize("inside", ["to-folder", "to-file", "to-folder/file", "within"])
def test_links_within_a_store_are_not_resolved(store: Path, inside: str) -> None:
    (store / "zarr.json").write_text("{}")
    assert beneath.user_path(store / inside) == store / inside


# Spilled shards


@pytest.fixture
def shard(tmp_path):
    """The link of a spilled shard; its file is in ``spill``."""
    link, file = tmp_path / "data/s.zarr/0/c/1/0", tmp_path / "spill/s.zarr/0/c/1/0"
    link.parent.mkdir(parents=True)
    file.parent.mkdir(parents=True)
    (tmp_path / "data/s.zarr/zarr.json").write_text("{}")
    (tmp_path / "data/s.zarr/0/zarr.json").write_text("{}")
    file.write_bytes(b"spilled")
    link.symlink_to(file)
    return link


def spilled_bytes(shard: Path) -> bytes:
    with open_regular(shard, spilled=True) as file:
        return file.read()


def test_a_spilled_shard_is_read_through_its_link(tmp_path: Path, shard: Path) -> None:
    assert spilled_bytes(shard) == b"spilled"
    assert spill_links.shard_status(shard).st_size == 7
    relative = os.path.relpath(tmp_path / "spill/s.zarr/0/c/1/0", shard.parent)
    shard.unlink()
    shard.symlink_to(relative)
    assert spilled_bytes(shard) == b"spilled"
    (tmp_path / "spill").rename(tmp_path / "mounted")
    (tmp_path / "spill").symlink_to(tmp_path / "mounted")
    assert spilled_bytes(shard) == b"spilled", "a link above the spilled store is the user's own"
    with pytest.raises(LinkError):
        open_regular(shard, writing=True, spilled=True)
    with pytest.raises(LinkError):
        open_regular(shard)


@pytest.mark.parametrize(
    "target",
    [
        "/etc/passwd",
        "spill/s.zarr/0/c/1/1",
        "spill/t.zarr/0/c/1/0",
        "spill/0/c/1/0",
        "secret",
        "0/c/1/0",
        "c/1/0",
    ],
)
def test_a_link_to_a_file_of_another_name_is_not_read(tmp_path: Path, shard: Path, target: str) -> None:
    file = tmp_path / target
    if not file.exists():
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"theirs")
    shard.unlink()
    shard.symlink_to(file)
    with pytest.raises(LinkError, match=f"{shard} is a symbolic link.*SPILL_ROOT/s.zarr/0/c/1/0"):
        spilled_bytes(shard)


@pytest.mark.parametrize(
    "key", [".ssh/id_rsa", ".zarr.json.new", "0/c/notes", "0/shards.crc32c", "0/1", "0/c/1/0.txt", "c"]
)
@pytest.mark.parametrize("as_a_store", [True, False], ids=["", "whose documents a move has deleted"])
def test_a_link_that_is_at_no_shards_key_is_not_followed(tmp_path: Path, key: str, as_a_store: bool) -> None:
    """However well its file is named: a store may have the name of any folder."""
    link, theirs = tmp_path / "data/user" / key, tmp_path / "home/user" / key
    for file in (link, theirs):
        file.parent.mkdir(parents=True)
    theirs.write_bytes(b"theirs")
    if as_a_store:
        (tmp_path / "data/user/zarr.json").write_text("{}")
    link.symlink_to(theirs)
    for look in (spilled_bytes, spill_links.shard_status, spill_links.spilled_file):
        with pytest.raises(LinkError, match="is a symbolic link"):
            look(link)


def test_a_spilled_shard_is_found_while_its_store_is_deleted(tmp_path: Path, shard: Path) -> None:
    """A move deletes the documents first."""
    for document in ("zarr.json", "0/zarr.json"):
        (tmp_path / "data/s.zarr" / document).unlink()
    assert spilled_bytes(shard) == b"spilled"


def test_a_spilled_shard_is_absent_only_without_its_link(tmp_path: Path, shard: Path) -> None:
    """Without its file alone it is an error: to a reader an absent shard is fill value."""
    (tmp_path / "spill").rename(tmp_path / "unmounted")
    for look in (spilled_bytes, spill_links.shard_status):
        with pytest.raises(LinkError, match="is the second root mounted"):
            look(shard)
    shard.unlink()
    for look in (spilled_bytes, spill_links.shard_status):
        with pytest.raises(FileNotFoundError):
            look(shard)


def test_a_shard_of_another_store_is_not_read(tmp_path: Path, shard: Path) -> None:
    """It may have the same name; the folders of a store hold documents, those of spilled shards none."""
    for place in ("spill/s.zarr", "spill/s.zarr/0"):
        document = tmp_path / place / "zarr.json"
        document.write_text("{}")
        with pytest.raises(LinkError):
            spilled_bytes(shard)
        document.unlink()
    assert spilled_bytes(shard) == b"spilled"


def test_the_file_behind_the_link_is_a_file_and_no_link(tmp_path: Path, shard: Path) -> None:
    file = tmp_path / "spill/s.zarr/0/c/1/0"
    file.unlink()
    (tmp_path / "secret").write_bytes(b"theirs")
    file.symlink_to(tmp_path / "secret")
    with pytest.raises(LinkError, match=f"{file} is a symbolic link"):
        spilled_bytes(shard)
    file.unlink()
    os.mkfifo(file)
    with pytest.raises(OSError, match="no regular file"):
        spilled_bytes(shard)
    file.unlink()
    file.parent.rename(tmp_path / "elsewhere")
    file.parent.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LinkError, match=f"{file.parent} is a symbolic link"):
        spilled_bytes(shard)


def test_a_folder_that_cannot_be_listed_is_not_empty(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Who took it for empty would remove a store that has frames. One that is gone is."""
    (tmp_path / "a" / "b").mkdir(parents=True)
    opens = beneath.open_file

    def fails(path: Path, *arguments: Any, **more: Any) -> int:
        if path.name == "b":
            raise OSError(errno.EIO, os.strerror(errno.EIO))
        return opens(path, *arguments, **more)

    assert list(beneath.all_below(tmp_path / "gone")) == []
    monkeypatch.setattr(beneath, "open_file", fails)
    with pytest.raises(OSError, match="Input/output"):
        list(beneath.all_below(tmp_path))
