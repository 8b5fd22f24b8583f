"""The native library: found, complete, and a clear error when it is not."""

from __future__ import annotations

from pathlib import Path

import pytest

from shardwright.codecs import native
from shardwright.model.errors import CodecError


@pytest.fixture
def fresh(monkeypatch):
    """The look-ups without what they remember."""
    monkeypatch.setattr(native, "library", native.cache(native.library.__wrapped__))
    monkeypatch.setattr(native, "available", native.cache(native.available.__wrapped__))


def test_every_symbol_is_there():
    assert native.available()
    assert all(hasattr(native.library(), name) for name in native.SYMBOLS)


def test_a_missing_symbol_is_named(fresh, monkeypatch):
    monkeypatch.setattr(native, "SYMBOLS", ("blosc2_shuffle", "blosc3_shuffle"))
    with pytest.raises(CodecError, match=r"none of blosc3_shuffle in blosc2 \d"):
        native.library()
    assert not native.available()


def test_a_library_that_does_not_load_is_named(fresh, monkeypatch, tmp_path):
    broken = tmp_path / "libblosc2.so"
    broken.write_bytes(b"not a library")
    monkeypatch.setattr(native, "library_path", lambda: broken)
    with pytest.raises(CodecError, match=r"cannot load the codec library: .*libblosc2\.so"):
        native.library()
    assert not native.available()


def test_a_package_without_a_library_is_named(fresh, monkeypatch):
    monkeypatch.setattr(native.metadata, "files", lambda _: [])
    with pytest.raises(CodecError, match="carries no shared library"):
        native.library_path()
    assert not native.available()


def test_the_library_lies_in_the_blosc2_package():
    assert Path(native.library_path()).is_file()
    assert "blosc2" in native.library_path().parts
