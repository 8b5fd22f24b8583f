"""The native library: found, complete, and a clear error when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.codecs import native_library
from shardwright.model.errors import CodecError


@pytest.fixture
def fresh(monkeypatch):
    """The look-ups without what they remember."""
    monkeypatch.setattr(native_library, "library", native_library.cache(native_library.library.__wrapped__))
    monkeypatch.setattr(
        native_library, "available", native_library.cache(native_library.available.__wrapped__)
    )


def test_every_symbol_is_there():
    assert native_library.available()
    assert all(hasattr(native_library.library(), name) for name in native_library.SYMBOLS)


def test_a_missing_symbol_is_named(fresh, monkeypatch):
    monkeypatch.setattr(native_library, "SYMBOLS", ("blosc2_shuffle", "blosc3_shuffle"))
    with pytest.raises(CodecError, match=r"none of blosc3_shuffle in blosc2 \d"):
        native_library.library()
    assert not native_library.available()


def test_a_library_that_does_not_load_is_named(fresh, monkeypatch, tmp_path):
    broken = tmp_path / "libblosc2.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native_library, "library_path", lambda: broken)
    with pytest.raises(CodecError, match=r"cannot load the codec library: .*libblosc2\.so"):
        native_library.library()
    assert not native_library.available()


def test_a_package_without_a_library_is_named(fresh, monkeypatch):
    monkeypatch.setattr(native_library.metadata, "files", lambda _: [])
    with pytest.raises(CodecError, match="carries no shared library"):
        native_library.library_path()
    assert not native_library.available()


def test_the_library_lies_in_the_blosc2_package():
    assert Path(native_library.library_path()).is_file()
    assert "blosc2" in native_library.library_path().parts
