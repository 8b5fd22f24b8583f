"""Names of acquisitions and streams, plain file names that cannot leave the output root, and of folders."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from .errors import InvalidNameError

if TYPE_CHECKING:
    from pathlib import Path

MAX_NAME_CHARACTERS = 1024  # of any text that is sent as a name, valid or not
DOCUMENT = "zarr.json"  # of each group and array
STORE_SUFFIX = ".ome.zarr"
ARCHIVE_SUFFIX = ".ozx"  # of a store in one zip file (RFC-9 of OME-Zarr)
# of a store, beside its images; some filesystems know no upper and lower case
OWN_FOLDERS = ("frames", "frames.parquet", "ome")
WORKSPACE = ".shardwright"  # folder of a store, and beside spilled shards: files in progress
DAMAGED = ".shardwright.damaged"  # beside a workspace: damaged files that a recovery set aside
REWRITE_SUFFIX = ".rewrite"  # behind the names of files that are to replace others
MOVE_PREFIX = "move."  # in the work folder of a store: of the records of moves from here, and of their lock
MOVE_LOCK_NAME = f"{MOVE_PREFIX}lock"  # beside the lock of an array's other jobs, which is taken as well
UPGRADE_RECORD = "ome.job"  # in the work folder of a store: of an upgrade of its metadata
WORK_FOLDER = ".compact"  # folder of an array, and of a store: the jobs that repack it
EDIT_FOLDER = ".shardwright-edit"  # folder of an array: updates of its shards that are under way
PARITY_FOLDER = ".shardwright-parity"  # folder of an array: PAR2 files of its shard rows
REBUILD_SUFFIX = ".rechunk"  # of the hidden folder beside a store that is being made of another
NAME_PATTERN = r"[A-Za-z0-9][A-Za-z0-9._-]{0,127}"
MAX_IMAGE_PATH_CHARACTERS = 128  # with the coordinates of a shard behind it, it is one name of a file
_PART = (
    r"[A-Za-z0-9][A-Za-z0-9_-]*(\.[A-Za-z0-9_-]+)*"  # a name that no filesystem shortens: no dot at its end
)
IMAGE_PATH_PATTERN = rf"{_PART}(/{_PART}){{0,3}}"
_NAME = re.compile(NAME_PATTERN)
_IMAGE_PATH = re.compile(IMAGE_PATH_PATTERN)
_OTHER_FORMAT = re.compile(r"\.(tiff?|btf|h5|hdf5|ims|zip|ozx|png|jpe?g|npy)", re.IGNORECASE)  # no folders
# Beside stores: what recovery and later jobs take for files in progress, and remove or continue; documents of
# Zarr v3 and v2, for which readers take whatever has such a name.
_TAKEN_NAMES = re.compile(
    rf"{re.escape(WORKSPACE)}.*|{re.escape(WORK_FOLDER)}|\..*{re.escape(REBUILD_SUFFIX)}(\.[0-9a-f]{{16}})?"
    r"|zarr\.json|\.z(array|group|attrs|metadata)",
    re.DOTALL,
)


def key_in(folder: str, name: str) -> str:
    """Returns the key of a name in a folder of a store; an empty folder is the store's own."""
    return f"{folder}/{name}" if folder else name


def folders_to(path: str) -> list[str]:
    """Returns a folder of a store and those above it, the highest first, without the store's own."""
    parts = path.split("/")
    return ["/".join(parts[: i + 1]) for i in range(len(parts))]


def is_visible_key(key: str) -> bool:
    """Returns whether a key may be one of a store: no part of it is empty or hidden, as our own files are."""
    return all(part and not part.startswith(".") and "\0" not in part for part in key.split("/"))


def checked_name(name: str) -> str:
    """Returns ``name`` if it is one plain path component. Raises ``InvalidNameError``."""
    if not isinstance(name, str) or not _NAME.fullmatch(name) or ".." in name:
        raise InvalidNameError(
            "not a usable name",
            expected="letters, digits, '.', '_' and '-', at most 128, starting with a letter or digit, "
            "without '..'",
            got=repr(name)[:160],
        )
    return name


def checked_image_path(path: str) -> str:
    """Returns ``path`` if an image can lie there in its store. Raises ``InvalidNameError``."""
    parts = path.lower().split("/")
    if not _IMAGE_PATH.fullmatch(path) or len(path) > MAX_IMAGE_PATH_CHARACTERS:
        expected = (
            f"1 to 4 names with '/' between them, each of letters, digits, '.', '_' and '-', starting with a "
            f"letter or digit, with no '.' at its end or beside another; at most {MAX_IMAGE_PATH_CHARACTERS} "
            f"characters in all"
        )
        raise InvalidNameError("not a usable path in a store", expected=expected, got=repr(path)[:160])
    if parts[0] in OWN_FOLDERS or DOCUMENT in parts:
        raise InvalidNameError(
            "the path of other files of a store",
            expected=f"another name than {', '.join(OWN_FOLDERS)} and {DOCUMENT}, upper or lower case",
            got=repr(path),
        )
    return path


def is_archive_name(name: str) -> bool:
    """Returns whether a store of this name is one zip file, in upper or lower case."""
    return name.lower().endswith(ARCHIVE_SUFFIX)


def store_name(name: str) -> str:
    """Returns the folder name of an acquisition: ``name`` with the suffix that viewers look for. Raises
    ``InvalidNameError``."""
    name = checked_name(name)
    return name if name.endswith(".zarr") else name + STORE_SUFFIX


def acquisition_name(store: str) -> str:
    """Returns the name of the acquisition whose folder, or file, has this name."""
    return (store[: -len(ARCHIVE_SUFFIX)] if is_archive_name(store) else store).removesuffix(STORE_SUFFIX)


def checked_new_store(path: Path) -> Path:
    """Returns the path of a store that is to be made, if its name is not one of ours, of Zarr's metadata, or
    of a file of another format. Raises ``InvalidNameError``."""
    if _OTHER_FORMAT.fullmatch(path.suffix):
        raise InvalidNameError(
            f"a store is a folder in the OME-Zarr format, no {path.suffix.lower()} file",
            expected=f"a path such as {path.stem.removesuffix('.ome')}{STORE_SUFFIX}",
            got=repr(str(path)),
            hint=f"`shardwright compact STORE --to NAME{ARCHIVE_SUFFIX}` makes one file of a finished store"
            if path.suffix.lower() == ARCHIVE_SUFFIX
            else None,
        )
    if _TAKEN_NAMES.fullmatch(path.name):
        raise InvalidNameError(
            "this name would be taken for files in progress, or for metadata",
            expected=f"a store's name that is not {WORKSPACE}..., {WORK_FOLDER}, .NAME{REBUILD_SUFFIX} or a "
            "metadata file's of Zarr",
            got=repr(str(path)),
        )
    return path


def checked_new_archive(path: Path) -> Path:
    """Returns the path of an archive that is to be made, unless it would be hidden. Raises
    ``InvalidNameError``."""
    if path.name.startswith("."):
        raise InvalidNameError(
            "this name would be hidden, and nothing that lists stores shows it",
            expected=f"a path such as embryo{ARCHIVE_SUFFIX}",
            got=repr(str(path)),
        )
    return path


def numbered(path: Path, number: int) -> Path:
    """Returns the path with a number behind its name: ``embryo_2.ome.zarr``."""
    suffix = _suffix(path)
    return path.with_name(f"{path.name.removesuffix(suffix)}_{number}{suffix}")


def number_behind(path: Path, other: Path) -> int | None:
    """Returns the number with which ``numbered`` makes ``other`` of ``path``; None if none does."""
    suffix = _suffix(path)
    digits = other.name.removesuffix(suffix).removeprefix(f"{path.name.removesuffix(suffix)}_")
    fits = digits.isdecimal() and len(digits) < 10 and numbered(path, int(digits)) == other
    return int(digits) if fits else None


def _suffix(path: Path) -> str:
    return STORE_SUFFIX if path.name.endswith(STORE_SUFFIX) else path.suffix
