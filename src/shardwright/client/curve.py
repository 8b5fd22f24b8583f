"""The keys of the camera's side: their files, where these are named, and how new pairs are made."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import zmq

from shardwright.model.errors import ConfigError
from shardwright.model.local_path import local_path
from shardwright.wire.key_files import read_public_key, read_secret_key, write_key_pair

if TYPE_CHECKING:
    from pathlib import Path

SECRET_KEY_VARIABLE, DAEMON_KEY_VARIABLE = "SHARDWRIGHT_SECRET_KEY", "SHARDWRIGHT_DAEMON_KEY"


@dataclass(frozen=True)
class Curve:
    """Files for a daemon that demands keys: ``secret_key`` is this client's own (``NAME.key_secret``), whose
    public half is on the daemon's list; ``daemon_key`` is the daemon's public one (``NAME.key``).
    ``shardwright keygen`` makes both kinds."""

    secret_key: str | os.PathLike[str]
    daemon_key: str | os.PathLike[str]


@dataclass(frozen=True)
class Keys:
    """The keys of one connection, as Z85."""

    public: bytes
    secret: bytes = field(repr=False)
    daemon: bytes


def keys_for(endpoint: str, curve: Curve | None) -> Keys | None:
    """Returns the keys for ``endpoint``: those of ``curve``, else of the environment; None for ipc. Raises
    ``ConfigError``."""
    curve = curve or _from_environment()
    if curve is None or not endpoint.startswith("tcp://"):
        return None
    if not zmq.has("curve"):
        raise ConfigError(
            "this build of ZeroMQ has no CURVE",
            expected="libzmq with libsodium",
            hint="The wheels of pyzmq have it",
        )
    secret_file, daemon_file = local_path(curve.secret_key), local_path(curve.daemon_key)
    secret, daemon = read_secret_key(secret_file), read_public_key(daemon_file)
    return Keys(zmq.curve_public(secret), secret, daemon)


def make_key_pair(folder: Path, name: str) -> tuple[Path, Path]:
    """Writes a new pair, ``NAME.key`` and ``NAME.key_secret``, and returns the paths. Raises as
    ``write_key_pair`` does."""
    public, secret = zmq.curve_keypair()
    return write_key_pair(folder, name, public, secret)


def _from_environment() -> Curve | None:
    names = (SECRET_KEY_VARIABLE, DAEMON_KEY_VARIABLE)
    secret_key, daemon_key = (os.environ.get(name) for name in names)
    if not secret_key and not daemon_key:
        return None
    if not secret_key or not daemon_key:
        raise ConfigError(
            "only one of the two keys is in the environment",
            expected=" and ".join(names),
            got=names[0] if secret_key else names[1],
        )
    return Curve(secret_key, daemon_key)
