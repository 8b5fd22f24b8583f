"""Makes the configuration and folders of one instance of the service, and drop-ins that let it write there.

CONFIG/NAME.yaml                  the example with sockets and a root of its own; never
                                  changed again, it is the site's
PREFIX/lib/systemd/system/        for folders outside of /var/lib/shardwright: written at each
                                  installation,
    shardwright@NAME.service.d/           removed when there are none
    shardwright-compact@NAME.service.d/
output.root, output.spill_root    made for the daemon's user; one that exists is left as it is
"""

from __future__ import annotations

import pwd
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from shardwright.config.load import load_config, parse_config
from shardwright.model.errors import ConfigError, StorageError
from shardwright.model.extras import install_line
from shardwright.model.permissions import group_name, user_name

from .installation import (
    EXAMPLE,
    HIDDEN_BY_UNITS,
    SERVICES,
    UNITS,
    PlannedFile,
    below,
    check_path,
    config_folder,
    drop_in,
    packaged_text,
)
from .web_child import check_packages

if TYPE_CHECKING:
    from shardwright.config.model import Config

USER = "shardwright"  # shardwright.sysusers
STATE = Path("/var/lib/shardwright")  # StateDirectory= of the units
DROP_IN = "paths.conf"
FOLDER_MODE = 0o2750  # files below it belong to the folder's group
_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


@dataclass(frozen=True)
class PlannedFolder:
    """A folder to make. ``later``: its owner, the daemon's user, does not exist yet. ``kept``: it has another
    owner."""

    path: Path
    outcome: Literal["new", "unchanged", "kept", "later"]
    owner: str

    def to_dict(self) -> dict[str, Any]:
        return {"path": str(self.path), "outcome": self.outcome, "owner": self.owner}

    @property
    def command(self) -> str:
        """The command that makes it."""
        return f"install -d -o {USER} -g {USER} -m {FOLDER_MODE:o} {self.path}"


@dataclass(frozen=True)
class Instance:
    """An instance to install. ``packages``: the command that installs what the configuration uses and this
    environment lacks."""

    name: str
    files: list[PlannedFile]
    folders: list[PlannedFolder]
    packages: str | None

    def by_hand(self) -> list[str]:
        """Returns commands for folders that could not be made yet, except the one that systemd makes
        (StateDirectory=)."""
        return [
            folder.command
            for folder in self.folders
            if folder.outcome == "later" and folder.path != STATE / self.name
        ]


def plan_instance(name: str, prefix: Path, root: Path | None = None) -> Instance:
    """Plans an instance, with regard to its existing files; changes nothing. ``prefix``, ``root``: as for
    ``plan_installation``.

    Raises ``ConfigError`` for a name that no unit can have, and for a configuration that is invalid or whose
    folders a service cannot use; ``StorageError``.
    """
    if not _NAME.fullmatch(name) or f"{name}.yaml" == EXAMPLE:
        raise ConfigError(
            "not a name for an instance",
            expected="letters, digits, _, . and -, and not example",
            got=repr(name),
        )
    path = config_folder(prefix) / f"{name}.yaml"
    text = re.sub(r"(?<=shardwright[/@])example\b", name, packaged_text(EXAMPLE))
    target = below(root, path)
    if target.exists():
        file, config = PlannedFile(target, "", "left"), load_config(target).config
    else:
        file, config = (
            PlannedFile(target, text, "new"),
            parse_config(text, file=str(path), folder=path.parent).config,
        )
    folders = [folder for folder in (config.output.root, config.output.spill_root) if folder is not None]
    for folder in folders:
        _check_folder(path, folder)
    elsewhere = [folder for folder in folders if not folder.is_relative_to(STATE)]
    files = [
        file,
        *(
            drop_in(
                below(root, prefix / UNITS / f"{service.replace('@', f'@{name}')}.d" / DROP_IN),
                _folder_paths(elsewhere),
            )
            for service in SERVICES
        ),
    ]
    planned = [] if root is not None else [_plan_folder(folder) for folder in folders]
    return Instance(name, [one for one in files if one is not None], planned, _missing_packages(config))


def make_folders(folders: list[PlannedFolder]) -> None:
    """Makes the folders whose outcome is ``new``. Raises ``StorageError``."""
    for folder in folders:
        if folder.outcome != "new":
            continue
        try:
            folder.path.mkdir(parents=True)
            shutil.chown(folder.path, USER, USER)
            folder.path.chmod(FOLDER_MODE)
        except OSError as error:
            raise StorageError(
                f"cannot make {folder.path}", got=error.strerror, hint=f"As root: {folder.command}"
            ) from None


def _check_folder(config: Path, folder: Path) -> None:
    check_path(folder, f"a folder of {config}")
    if any(folder.is_relative_to(hidden) for hidden in HIDDEN_BY_UNITS):
        raise ConfigError(
            f"{config}: services cannot see home folders and /tmp",
            expected="output folders elsewhere",
            got=str(folder),
        )


def _folder_paths(folders: list[Path]) -> str:
    """Returns the settings of a drop-in, none without folders. ``-`` before a folder: if it is missing the
    service still starts, and the daemon reports it."""
    if not folders:
        return ""
    return (
        f"[Unit]\nRequiresMountsFor={' '.join(map(str, folders))}\n\n"
        f"[Service]\nReadWritePaths={' '.join(f'-{folder}' for folder in folders)}\n"
    )


def _plan_folder(path: Path) -> PlannedFolder:
    try:
        facts = path.stat()
    except FileNotFoundError:
        return PlannedFolder(path, "new" if service_account() else "later", USER)
    except OSError as error:
        raise StorageError(f"cannot look at {path}", got=error.strerror, hint="Run it as root.") from None
    owner = user_name(facts.st_uid)
    return PlannedFolder(
        path, "unchanged" if owner == USER else "kept", f"{owner}:{group_name(facts.st_gid)}"
    )


def service_account() -> pwd.struct_passwd | None:
    """Returns the daemon's user, None where it does not exist yet."""
    try:
        return pwd.getpwnam(USER)
    except KeyError:
        return None


def _missing_packages(config: Config) -> str | None:
    if config.http.enabled:
        try:
            check_packages()
        except ConfigError:
            return f"{Path(sys.executable).parent}/{install_line('web')}"
    return None
