"""Explains to a user why access to a file was refused (EACCES). Users and groups by name, if the system has
names."""

from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


def refusing(path: Path) -> Path:
    """Returns the first folder on the way to ``path`` that this process may not enter, else ``path``."""
    return next(
        (folder for folder in reversed(path.absolute().parents) if not os.access(folder, os.X_OK)),
        path.absolute(),
    )


def owners(path: Path) -> str:
    """Returns ``/run/shardwright of shardwright:shardwright, mode 0750``; the path alone if these cannot be
    read."""
    try:
        facts = path.stat()
    except OSError:
        return str(path)
    return (
        f"{path} of {user_name(facts.st_uid)}:{group_name(facts.st_gid)}, mode "
        f"{stat.S_IMODE(facts.st_mode):04o}"
    )


def how_to_connect(path: Path) -> str:
    """Returns a sentence on how this user can connect to the Unix socket ``path``, which refused."""
    closed = refusing(path)
    try:
        facts = closed.stat()
    except OSError:
        return "Run this as the user of the daemon, or as root."
    for_the_group = stat.S_IXGRP if stat.S_ISDIR(facts.st_mode) else stat.S_IWGRP
    owner, group = user_name(facts.st_uid), group_name(facts.st_gid)
    if facts.st_mode & for_the_group:
        return (
            f"Members of the group {group} may: as root, usermod -aG {group} {user_name(os.geteuid())}, "
            f"then log in again."
        )
    return (
        f"Only the user {owner} may. To let a group in, set ingest.group in the daemon's configuration; "
        f"else run this as {owner}."
    )


def user_name(number: int) -> str:
    try:
        import pwd

        return pwd.getpwuid(number).pw_name
    except (ImportError, KeyError):
        return str(number)


def group_name(number: int) -> str:
    try:
        import grp

        return grp.getgrgid(number).gr_name
    except (ImportError, KeyError):
        return str(number)
