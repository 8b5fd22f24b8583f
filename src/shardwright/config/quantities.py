"""Value types of the configuration: byte sizes, counts that may be ``auto``, endpoints and paths.

Each is a plain Python value after validation and describes to JSON Schema exactly what it accepts. Relative
paths count from the folder of the configuration file (given as validation context), so that a configuration
means the same wherever the daemon is started.
"""

from __future__ import annotations

import ipaddress
import os
import re
from decimal import Decimal
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, BeforeValidator, Field, WithJsonSchema

from shardwright.disk.beneath import user_path
from shardwright.model.local_path import ADDRESS_PATTERN, local_path

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydantic_core.core_schema import ValidationInfo

UNIT_BYTES = {
    "B": 1,
    **{f"{p}B": 1000**i for i, p in enumerate("kMGT", 1)},
    **{f"{p}iB": 1024**i for i, p in enumerate("KMGT", 1)},
}
SIZE_PATTERN = r"^[0-9]{1,15}(\.[0-9]{1,6})? ?(B|kB|MB|GB|TB|KiB|MiB|GiB|TiB)$"
LISTEN_PATTERN = r"^([0-9]{1,3}(\.[0-9]{1,3}){3}|\[[0-9A-Fa-f:.]+\]|localhost):(\*|[0-9]{1,5})$"
HOST_PATTERN = r"^([A-Za-z0-9_]([A-Za-z0-9_.-]*[A-Za-z0-9_])?|\[[0-9A-Fa-f:.]+\])$"
ORIGIN_PATTERN = r"^(\*|https?://[A-Za-z0-9_.:\[\]-]+)$"
ENDPOINT_PATTERN = r"^(ipc://[^@].*|tcp://([A-Za-z0-9._*-]+|\[[0-9A-Fa-f:.%]+\]):(\*|[0-9]{1,5}))$"
WEB_PATTERN = r"^https?://[A-Za-z0-9._:\[\]-]+([/?][!-~]*)?$"  # without user:password@
PATH_PATTERN = rf"^(?!{ADDRESS_PATTERN})[\s\S]*\S"
SOCKET_PATTERN = rf"^(?!{ADDRESS_PATTERN})[^@\s]"
# sockaddr_un.sun_path has 108 bytes, the last one for the terminating zero.
MAX_SOCKET_PATH_BYTES = 107
MAX_NAME_BYTES = 255  # of one folder or file
MAX_PATH_BYTES = 3072  # PATH_MAX is 4096; files of a store lie deeper
MAX_SIZE_BYTES = 2**60
MAX_THREADS = 1024


def parse_size_bytes(value: Any) -> int:
    """Returns bytes from ``64MiB``, ``1.5 GiB``, ``500MB`` or a whole number of bytes. Raises
    ``ValueError``."""
    size = Decimal(0)
    if isinstance(value, int) and not isinstance(value, bool):
        size = Decimal(value)
    elif isinstance(value, str) and (match := re.fullmatch(SIZE_PATTERN, value)):
        unit = match.group(2)
        size = Decimal(value.removesuffix(unit).strip()) * UNIT_BYTES[unit]
    if 0 < size <= MAX_SIZE_BYTES and size == int(size):
        return int(size)
    raise ValueError(
        "expected a size such as 64MiB or 4GiB, or a whole number of bytes, above 0 and at most 2^60"
    )


def auto_or_count(most: int) -> Callable[[Any], Any]:
    def checked(value: Any) -> Any:
        if value == "auto" or (isinstance(value, int) and not isinstance(value, bool) and 0 < value <= most):
            return value
        raise ValueError(f"expected 'auto' or a whole number from 1 to {most}")

    return checked


def auto_or_count_schema(most: int) -> WithJsonSchema:
    return WithJsonSchema(
        {"anyOf": [{"const": "auto"}, {"type": "integer", "exclusiveMinimum": 0, "maximum": most}]}
    )


def config_folder(info: ValidationInfo) -> Path:
    """Returns the folder that relative paths count from; the working directory for models built in Python."""
    return Path((info.context or {}).get("folder", "."))


def _resolved(path: str, info: ValidationInfo) -> str:
    # before it is joined: then nothing tells that it was an address, or had a null character
    local_path(path)
    # Not Path.resolve: a symbolic link may serve to keep a socket's path short.
    resolved = os.path.abspath(config_folder(info) / path)  # noqa: PTH100
    longest = max(len(os.fsencode(name)) for name in resolved.split("/"))
    if longest > MAX_NAME_BYTES or len(os.fsencode(resolved)) > MAX_PATH_BYTES:
        raise ValueError(f"expected a path of at most {MAX_PATH_BYTES} bytes, {MAX_NAME_BYTES} in each name")
    return resolved


def checked_socket_path(path: str) -> str:
    """Returns ``path`` itself. Raises ``ValueError`` where it is longer than a Unix socket's address."""
    length = len(os.fsencode(path))
    if length > MAX_SOCKET_PATH_BYTES:
        raise ValueError(
            f"too long for a Unix socket: {path}, expected at most {MAX_SOCKET_PATH_BYTES} "
            f"bytes, got {length}"
        )
    return path


def _endpoint(value: str, info: ValidationInfo) -> str:
    if value.startswith("ipc://"):
        return "ipc://" + checked_socket_path(_resolved(value.removeprefix("ipc://"), info))
    port = value.rpartition(":")[2]
    if port != "*" and not 0 < int(port) < 65536:
        raise ValueError("expected a TCP port from 1 to 65535, or *")
    return value


def _endpoint_form(value: Any) -> Any:
    if not isinstance(value, str) or not re.match(ENDPOINT_PATTERN, value):
        raise ValueError("expected ipc://PATH or tcp://ADDRESS:PORT")
    return value


def _listen(value: Any) -> Any:
    if not isinstance(value, str) or not re.match(LISTEN_PATTERN, value):
        raise ValueError("expected ADDRESS:PORT, such as 127.0.0.1:8790 or [::1]:8790")
    host, _, port = value.rpartition(":")
    try:
        ipaddress.ip_address("127.0.0.1" if host == "localhost" else host.strip("[]"))
    except ValueError:
        raise ValueError("expected an IP address of this machine, or localhost, before the port") from None
    if port != "*" and not 0 < int(port) < 65536:
        raise ValueError("expected a TCP port from 1 to 65535, or *")
    return value


def program_path(name: str, info: ValidationInfo) -> str:
    """Returns the name of a program; a path, if it is one, from the configuration's folder."""
    return _resolved(name, info) if "/" in name else name


def _path(what: str, value: Any) -> Any:
    if not isinstance(value, str | Path) or not str(value).strip():
        raise ValueError(f"expected a {what}")
    return value


def _absolute(value: Path, info: ValidationInfo) -> Path:
    return Path(_resolved(str(value), info))


def _resolved_folder(value: Path, info: ValidationInfo) -> Path:
    return user_path(_resolved(str(value), info))  # below it no link is followed


def _socket_unless(words: tuple[str, ...], value: Any, info: ValidationInfo) -> Any:
    if value in words:
        return value
    if not isinstance(value, str) or not value.strip() or value.startswith("@"):
        raise ValueError(f"expected {', '.join(map(repr, words))} or the path of a Unix socket")
    return checked_socket_path(_resolved(value, info))


Size = Annotated[
    int,
    BeforeValidator(parse_size_bytes),
    WithJsonSchema(
        {
            "anyOf": [
                {"type": "integer", "exclusiveMinimum": 0, "maximum": MAX_SIZE_BYTES},
                {"type": "string", "pattern": SIZE_PATTERN},
            ]
        }
    ),
]
AutoOrThreads = Annotated[
    int | Literal["auto"], BeforeValidator(auto_or_count(MAX_THREADS)), auto_or_count_schema(MAX_THREADS)
]
Endpoint = Annotated[
    str,
    AfterValidator(_endpoint),
    BeforeValidator(_endpoint_form),
    WithJsonSchema({"type": "string", "pattern": ENDPOINT_PATTERN}),
]
SocketFile = Annotated[
    str,
    BeforeValidator(partial(_socket_unless, ("auto",))),
    WithJsonSchema({"type": "string", "pattern": SOCKET_PATTERN}),
]
OptionalSocketFile = Annotated[
    str,
    BeforeValidator(partial(_socket_unless, ("auto", "none"))),
    WithJsonSchema({"type": "string", "pattern": SOCKET_PATTERN}),
]
Listen = Annotated[
    str, BeforeValidator(_listen), WithJsonSchema({"type": "string", "pattern": LISTEN_PATTERN})
]
WebAddress = Annotated[str, Field(pattern=WEB_PATTERN)]
Argument = Annotated[str, Field(pattern=r"^[^\u0000]*$", max_length=4096)]
HostName = Annotated[str, Field(pattern=HOST_PATTERN)]
Origin = Annotated[str, Field(pattern=ORIGIN_PATTERN)]
File = Annotated[
    Path,
    AfterValidator(_absolute),
    BeforeValidator(partial(_path, "file")),
    WithJsonSchema({"type": "string", "pattern": PATH_PATTERN}),
]
Folder = Annotated[
    Path,
    AfterValidator(_resolved_folder),
    BeforeValidator(partial(_path, "folder")),
    WithJsonSchema({"type": "string", "pattern": PATH_PATTERN}),
]
