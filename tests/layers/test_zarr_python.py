"""zarr-python is used by its public names, which a new version keeps, and the package imports it in one
module."""

from __future__ import annotations

import functools
import inspect
import re
from pathlib import Path

import grimp
import pytest
import zarr
import zarr.codecs
import zarr.storage
from zarr.abc.store import Store

from shardwright.codecs import zarr_python
from shardwright.read.zarr_store import LiveShardingCodec, LiveStore, PinnedShardingCodec
from shardwright.rework.chunks.chunk_store import ChunkStore

ROOT = Path(__file__).parents[2]
# also in text: tests start Python with code of their own
PRIVATE_PATH = re.compile(
    r"\bzarr\.([\w.]+\.)?(core\b|_(?!_))|\bfrom zarr(\.\w+)* import .*\b(core\b|_(?!_))"
)
ALLOWED = {
    # run by hand with zarr-python 2.18, which alone writes storage transformers, under no public name
    "tests/foreign/fixtures/make_transformer.py",
    "tests/layers/test_zarr_python.py",  # the samples below
}
OURS = (ChunkStore, LiveShardingCodec, LiveStore, PinnedShardingCodec)
THEIRS = (
    *(zarr.Array, zarr.AsyncArray, zarr.Group, zarr.AsyncGroup, Store, zarr.codecs.ShardingCodec),
    *(getattr(zarr.storage, name) for name in zarr.storage.__all__ if name.endswith(("Path", "Store"))),
)


@functools.cache
def files() -> dict[str, str]:
    paths = [path for folder in ("src", "tests", "tools") for path in (ROOT / folder).rglob("*.py")]
    return {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in sorted(paths)}


def private_names(kind: type) -> set[str]:
    """Names with one underscore of the classes that zarr-python defines, among a class and its bases."""
    theirs = [base for base in kind.__mro__ if base.__module__.partition(".")[0] == "zarr"]
    names = {name for base in theirs for name in (*vars(base), *inspect.get_annotations(base))}
    return {name for name in names if re.match("_[^_]", name) and not name.startswith("_abc_")}


def test_one_module_imports_it():
    imports = grimp.build_graph("shardwright", include_external_packages=True, cache_dir=None)
    assert imports.find_modules_that_directly_import("zarr") == {zarr_python.__name__}


def test_no_private_path_of_it_is_named():
    named = {name for name, text in files().items() if PRIVATE_PATH.search(text)}
    assert named == ALLOWED


@pytest.mark.parametrize("kind", OURS)
def test_a_class_of_ours_has_no_private_name_of_its_bases(kind):
    """As an override it would depend on when zarr-python calls it; as a name of our own, hide theirs."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("shardwright.")]
    assert not private_names(kind) & {name for base in ours for name in vars(base)}


def test_no_private_attribute_of_its_objects_is_used():
    """Unless we have that name too: which object an attribute is of cannot be told from the text."""
    private = "|".join(sorted(set().union(*map(private_names, THEIRS))))
    used = {name: file for file, text in files().items() for name in re.findall(rf"\.({private})\b", text)}
    ours = rf"\bdef ({private})\b|\bself\.({private})(?::| =|, )|^    ({private}):"
    defined = {
        name for text in files().values() for names in re.findall(ours, text, re.MULTILINE) for name in names
    }
    assert not {name: file for name, file in used.items() if name not in defined}


@pytest.mark.parametrize(
    "text",
    [
        "from zarr.core.buffer import cpu",
        "from zarr import core",
        "import zarr._cli",
        "zarr.storage._local.LocalStore",
        "from zarr.storage import LocalStore, _common",
    ],
)
def test_a_private_path_is_seen(text):
    assert PRIVATE_PATH.search(text)


def test_a_public_path_is_none():
    assert not PRIVATE_PATH.search("from zarr.buffer import cpu; zarr.__version__; zarr.codecs.ZstdCodec")
