"""Compiles the kernels at installation, into the folder where the units' daemons look for them
(``CacheDirectory=``), so that their first start need not."""

from __future__ import annotations

import os
import subprocess
import sys
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from shardwright.model.permissions import user_name

from .instance import service_account

if TYPE_CHECKING:
    import pwd

FOLDER = Path("/var/cache/shardwright")
TIMEOUT_S = 600.0
_WARM_UP = """
from shardwright.kernels import CACHE_FOLDER
from shardwright.kernels.cache import is_compiled
from shardwright.kernels.warm_up import warm_up
warm_up()
print(is_compiled(CACHE_FOLDER))
"""


@dataclass(frozen=True)
class CompiledKernels:
    """The result of a compilation. ``owner``: the user that compiled. ``why_not``: None when the kernels are
    there."""

    folder: Path
    owner: str
    took_s: float
    why_not: str | None

    def to_dict(self) -> dict[str, Any]:
        return {**asdict(self), "folder": str(self.folder)}


def compile_for_units(folder: Path = FOLDER) -> CompiledKernels:
    """Compiles as the service's user, or as this one where that does not exist yet: systemd gives the folder
    to the service's user when it starts it. What goes wrong is an answer and no error: the daemon compiles
    what it does not find."""
    begun_s, account = time.monotonic(), _account()
    try:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        if account is not None:
            os.chown(folder, account.pw_uid, account.pw_gid)
        why_not = _run(folder, account)
    except OSError as error:
        why_not = f"{error.filename or folder}: {error.strerror}"
    owner = user_name(os.geteuid()) if account is None else account.pw_name
    return CompiledKernels(folder, owner, round(time.monotonic() - begun_s, 1), why_not)


def _account() -> pwd.struct_passwd | None:
    account = service_account()
    return account if account is not None and account.pw_uid != os.geteuid() else None


def _run(folder: Path, account: pwd.struct_passwd | None) -> str | None:
    """Returns why it failed, None if it did not. Not as root in a folder of the service's user, who could
    lead it elsewhere."""
    environment = {name: value for name, value in os.environ.items() if name != "NUMBA_CACHE_DIR"}
    try:
        done = subprocess.run(  # noqa: S603  (our own interpreter)
            [sys.executable, "-P", "-c", _WARM_UP],
            env={**environment, "CACHE_DIRECTORY": str(folder)},
            cwd="/",
            user=None if account is None else account.pw_uid,
            group=None if account is None else account.pw_gid,
            extra_groups=None if account is None else [],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return f"not done after {TIMEOUT_S:.0f} s"
    if done.returncode != 0:
        return (done.stderr.strip().splitlines() or [f"exit code {done.returncode}"])[-1]
    if done.stdout.strip() != "True":
        return "it must be writable, and belong to one user alone"
    return None
