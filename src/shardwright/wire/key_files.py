"""Key files of CURVE, ZeroMQ's encryption: a pair is two text files, in the form that pyzmq (``zmq.auth``)
and czmq write and read.

    NAME.key           curve
                           public-key = "40 characters of Z85"        may be public
    NAME.key_secret    the same, and below it
                           secret-key = "40 characters of Z85"        mode 0600, never leaves its computer

Other lines are ignored. Every refusal is a ``ConfigError`` that names the file, never its content.
"""

from __future__ import annotations

import os
import re
import stat
from typing import TYPE_CHECKING, Literal

from shardwright.model.errors import ConfigError, OutputExistsError
from shardwright.model.names import checked_name

if TYPE_CHECKING:
    from pathlib import Path

PUBLIC_SUFFIX, SECRET_SUFFIX = ".key", ".key_secret"
MAX_FILE_BYTES = 64 << 10
KEY_CHARACTERS = 40
_Z85 = "0123456789abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ.-:+=^!/*?&<>()[]{}@%$#"
_LINE = r"^[ \t]*%s[ \t]*=[ \t]*(?P<quote>[\"']?)(?P<key>.*?)(?P=quote)[ \t\r]*$"
_PERMISSIONS_ARE_POSIX = os.name == "posix"


def read_public_key(path: Path) -> bytes:
    """Returns the public key in ``path``, as Z85. Raises ``ConfigError``, also for a file that others may
    write to: it decides who gets access."""
    text, mode = _read(path)
    key = _key(text, path, "public-key", f"a file NAME{PUBLIC_SUFFIX}")
    _check_mode(path, mode, 0o002, "one that others cannot write to", "o-w")
    return key


def read_secret_key(path: Path) -> bytes:
    """Returns the secret key in ``path``, as Z85. Raises ``ConfigError``, also for a file that others may
    read."""
    text, mode = _read(path)
    if _field(text, "secret-key") is None and _field(text, "public-key") is not None:
        expected = f"the secret one, {path.stem}{SECRET_SUFFIX}, that `shardwright keygen` made with it"
        raise ConfigError(f"{path} is a public key", expected=expected)
    _check_mode(path, mode, 0o077, "mode 0600", "go-rwx")
    return _key(text, path, "secret-key", f"a file NAME{SECRET_SUFFIX}")


def read_secret_text(path: Path) -> str:
    """Returns the text of a file with other secrets. Raises ``ConfigError``, also if others may read it."""
    text, mode = _read(path)
    _check_mode(path, mode, 0o077, "mode 0600", "go-rwx")
    return text


def write_key_pair(folder: Path, name: str, public: bytes, secret: bytes) -> tuple[Path, Path]:
    """Writes both files and returns their paths. Raises ``OutputExistsError`` if one exists, ``ConfigError``
    if it cannot write."""
    stem = checked_name(name)
    public_path, secret_path = folder / (stem + PUBLIC_SUFFIX), folder / (stem + SECRET_SUFFIX)
    public_line, secret_line = (
        f'    public-key = "{public.decode()}"\n',
        (f'    secret-key = "{secret.decode()}"\n'),
    )
    _write(
        secret_path,
        f"# CURVE key pair of {stem}. SECRET: never give it away.\ncurve\n{public_line}{secret_line}",
        0o600,
    )
    try:
        _write(
            public_path,
            f"# CURVE public key of {stem}, for the other side of its connections.\ncurve\n{public_line}",
            0o644,
        )
    except BaseException:
        secret_path.unlink()
        raise
    return public_path, secret_path


def _is_key(key: str) -> bool:
    """Returns whether these characters encode 32 bytes (ZeroMQ RFC 32)."""
    digits = [_Z85.find(character) for character in key]
    groups = (digits[i : i + 5] for i in range(0, KEY_CHARACTERS, 5))
    return (
        len(key) == KEY_CHARACTERS
        and min(digits) >= 0
        and all(sum(d * 85 ** (4 - i) for i, d in enumerate(group)) < 2**32 for group in groups)
    )


def _read(path: Path) -> tuple[str, int]:
    """Returns the file's text and mode."""
    try:
        if not path.is_file():  # opening a pipe would wait for a writer
            raise ConfigError(
                f"cannot read the key file {path}",
                got="another kind of file" if path.exists() else "no such file",
            )
        with path.open("rb") as file:
            mode = stat.S_IMODE(os.fstat(file.fileno()).st_mode)
            raw = file.read(MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigError(f"cannot read the key file {path}", got=error.strerror) from None
    if len(raw) > MAX_FILE_BYTES:
        raise ConfigError(f"{path} is too long for a key file", expected=f"at most {MAX_FILE_BYTES} bytes")
    return raw.decode("utf-8", "replace"), mode


def _check_mode(path: Path, mode: int, forbidden: int, expected: str, change: str) -> None:
    if _PERMISSIONS_ARE_POSIX and mode & forbidden:
        raise ConfigError(
            f"the key file {path} is open to others",
            expected=expected,
            got=f"mode {mode:04o}",
            hint=f"`chmod {change} {path}`",
        )


def _field(text: str, field: Literal["public-key", "secret-key"]) -> re.Match[str] | None:
    return re.search(_LINE % field, text, re.MULTILINE)


def _key(text: str, path: Path, field: Literal["public-key", "secret-key"], expected: str) -> bytes:
    found = _field(text, field)
    if found is None:
        raise ConfigError(
            f"{path} holds no {field}", expected=expected, hint="`shardwright keygen NAME` makes a pair"
        )
    if not _is_key(found["key"]):
        expected, got = f"{KEY_CHARACTERS} characters of Z85", f"{len(found['key'])} characters"
        raise ConfigError(f"{path} holds no usable {field}", expected=expected, got=got)
    return found["key"].encode()


def _write(path: Path, text: str, mode: int) -> None:
    try:
        descriptor = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, mode)
    except FileExistsError:
        raise OutputExistsError(
            "this key exists already", got=str(path), hint="Choose another name, or remove it first"
        ) from None
    except OSError as error:
        raise ConfigError(f"cannot write the key file {path}", got=error.strerror) from None
    try:
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            file.write(text)
    except BaseException as error:
        path.unlink()  # half a key is useless, and would block another try
        if isinstance(error, OSError):
            raise ConfigError(f"cannot write the key file {path}", got=error.strerror) from None
        raise
