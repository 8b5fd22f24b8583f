"""The keys that a configuration names, read and checked before a socket is bound."""

from __future__ import annotations

from typing import TYPE_CHECKING

from shardwright.model.errors import ConfigError
from shardwright.wire.key_files import read_secret_key

if TYPE_CHECKING:
    from shardwright.ingest.transport.allow_list import Access

    from .load import LoadedConfig


def load_access(loaded: LoadedConfig) -> Access | None:
    """None where TCP needs no keys. Raises ``ConfigError`` with the field's line for a key or folder that
    cannot be used."""
    from shardwright.ingest.transport.allow_list import Access, AllowList
    from shardwright.ingest.transport.endpoints import zmq_library

    curve = loaded.config.ingest.curve
    if curve is None:
        return None
    if not zmq_library().has_curve:
        hint = "Install the pyzmq wheel from the package index"
        raise loaded.source.error(
            ("ingest", "curve"),
            "this build of ZeroMQ has no CURVE",
            expected="libzmq with libsodium",
            got="none",
            hint=hint,
        )
    field = "secret_key"
    try:
        secret_key = read_secret_key(curve.secret_key)
        field = "clients"
        return Access(secret_key, AllowList.read(curve.clients))
    except ConfigError as error:
        path = ("ingest", "curve", field)
        raise loaded.source.error(
            path, error.message, expected=error.expected, got=error.got, hint=error.hint
        ) from None


def access_warnings(loaded: LoadedConfig, access: Access | None) -> list[str]:
    """What whoever runs this configuration should know about who gets in. ``access``: its keys, as
    ``load_access`` found them."""
    ingest = loaded.config.ingest
    open_endpoints = [endpoint for endpoint in ingest.endpoints if endpoint.startswith("tcp://")]
    if ingest.insecure and open_endpoints:
        return [
            (
                f"ingest.insecure: whoever reaches {', '.join(open_endpoints)} may write stores and fill "
                f"the disk, and nothing is encrypted; use ingest.curve (`shardwright keygen`), unless nobody "
                f"else is on this network"
            )
        ]
    if access is not None and open_endpoints and not access.clients.names:
        return [
            (
                f"no client is let in over TCP: {access.clients.folder} holds no public key; put the "
                f"NAME.key of each camera's computer there"
            )
        ]
    return []
