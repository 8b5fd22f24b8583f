"""The public surface: exactly ``__all__``, and nothing heavy at import."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import shardwright

HEAVY = {
    "blosc2",
    "llvmlite",
    "numba",
    "zmq",
    "shardwright.kernels",
    "shardwright.acquire",
    "shardwright.client",
    "shardwright.codecs",
    "shardwright.disk",
}


SOURCE = str(Path(shardwright.__file__).parents[1])


def loaded_by(code: str) -> set[str]:
    """The modules that a fresh interpreter has after running ``code``, and had not before."""
    code = (
        f"import sys; sys.path.insert(0, {SOURCE!r}); before = set(sys.modules); {code}; "
        "print(*set(sys.modules) - before)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return set(done.stdout.split())


def test_every_exported_name_is_there():
    for name in shardwright.__all__:
        assert getattr(shardwright, name) is not None
    assert sorted(shardwright.__all__) == shardwright.__all__
    assert set(shardwright.__all__) == {
        "AcquisitionSpec",
        "ArraySpec",
        "ArrayView",
        "Blosc",
        "Channel",
        "ChunkStore",
        "Connection",
        "Curve",
        "Dimension",
        "Estimate",
        "FollowedFrame",
        "FrameClaim",
        "Gzip",
        "Image",
        "Levels",
        "LiveStore",
        "Plate",
        "Receipt",
        "RegionReport",
        "Stream",
        "Watermark",
        "WriteSettings",
        "Writer",
        "Zstd",
        "acquisitions",
        "connect",
        "create",
        "default_layout",
        "erase",
        "errors",
        "estimate",
        "follow",
        "frame_table",
        "open",
        "open_array",
        "open_xarray",
        "release_memory",
        "resume",
        "save",
        "shard_regions",
        "update",
        "update_metadata",
    }


def test_every_exported_name_is_explained():
    for name in shardwright.__all__:
        assert inspect.getdoc(getattr(shardwright, name)), name


def test_what_a_public_function_returns_has_a_public_name():
    """Annotations may name classes that are loaded when first used."""
    for name in shardwright.__all__:
        call = getattr(shardwright, name)
        if inspect.isfunction(call):
            given = set(re.findall(r"\w+", inspect.signature(call).return_annotation))
            unknown = (
                given
                - set(shardwright.__all__)
                - {"Iterator", "None", "pd", "DataFrame", "xarray", "DataArray", "tuple", "slice"}
            )
            assert not unknown, f"{name} returns {unknown}"


def test_what_is_loaded_when_first_used_is_listed_before():
    assert loaded_by("import shardwright; assert set(shardwright.__all__) <= set(dir(shardwright))")


def test_nothing_else_is_exported_by_accident():
    with pytest.raises(AttributeError, match="'shardwright' has no attribute 'nothing'"):
        shardwright.nothing  # noqa: B018


def test_import_loads_our_errors_and_the_standard_library_alone():
    """Whatever a program does first: it looks at names, it says its version. NumPy, pydantic and our models
    took a third of a second."""
    loaded = loaded_by("import shardwright; dir(shardwright), shardwright.errors.SpecError")
    others = {name for name in loaded if name.partition(".")[0] not in sys.stdlib_module_names}
    ours = ("model", "model.error_text", "model.errors", "model.extras", "model.versions")
    assert others == {"shardwright", *(f"shardwright.{name}" for name in ours)}


def test_connect_loads_no_compiler_and_no_codec_library():
    assert loaded_by("import shardwright; shardwright.connect") & HEAVY == {"zmq", "shardwright.client"}
