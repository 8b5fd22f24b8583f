"""Copies the files of ``systemd/`` to where systemd reads them. What differs in this installation, the
program and the configuration's folder, a drop-in says.

    PREFIX/lib/systemd/system/   units as they are packaged     written again at each installation: a site's
        SERVICE.d/installation.conf                             changes belong in drop-ins of its own
    PREFIX/lib/sysusers.d/, tmpfiles.d/                         the user, and folders
    PREFIX/share/doc/shardwright/site.conf.example              a drop-in to begin with
    CONFIG/example.yaml          a configuration to begin with; one that was changed is never overwritten, the
                                 new one is written beside it

CONFIG is /etc/shardwright for the prefixes of a system (/, /usr, /usr/local), PREFIX/etc/shardwright for
others. ``root``: everything is written below that folder, as for a package or an image; the contents of the
files stay the same.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardwright.disk.files import replace_by_rename
from shardwright.model.errors import ConfigError, StorageError

_HERE = Path(__file__).resolve()
# in an installed package, in a checkout
SOURCES = (_HERE.parents[1] / "systemd", _HERE.parents[3] / "systemd")
# The paths in the files, which need no change where these are right.
PROGRAM_IN_FILES, CONFIG_IN_FILES = "/opt/shardwright/bin/shardwright", "/etc/shardwright"
_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
HIDDEN_BY_UNITS = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  (ProtectHome, PrivateTmp)
UNITS = "lib/systemd/system"
SERVICES = ("shardwright@.service", "shardwright-compact@.service")
# of other names than those of an instance (``DROP_IN``): of two drop-ins of one name systemd reads one
_DROP_IN = "installation.conf"
_PATHS = {
    **{name: f"{UNITS}/{name}" for name in SERVICES},
    "shardwright-compact@.timer": f"{UNITS}/shardwright-compact@.timer",
    "shardwright.sysusers": "lib/sysusers.d/shardwright.conf",
    "shardwright.tmpfiles": "lib/tmpfiles.d/shardwright.conf",
    "site.conf.example": "share/doc/shardwright/site.conf.example",
}
EXAMPLE = "example.yaml"

Outcome = Literal["new", "updated", "unchanged", "kept", "left", "removed"]


@dataclass(frozen=True)
class PlannedFile:
    """A file to install. ``outcome`` ``kept``: a user changed it, so ``target`` stays and ``text`` is written
    beside it, to ``written``. ``left``: it is not ours."""

    target: Path
    text: str
    outcome: Outcome

    @property
    def written(self) -> Path:
        return self.target.with_name(f"{self.target.name}.new") if self.outcome == "kept" else self.target

    def to_dict(self) -> dict[str, Any]:
        return {
            "path": str(self.target),
            "outcome": self.outcome,
            "written": str(self.written) if self.outcome == "kept" else None,
        }


def this_program() -> Path:
    """Returns the ``shardwright`` command of this environment. Raises ``ConfigError`` where there is none."""
    beside = Path(sys.executable).parent / "shardwright"
    found = str(beside) if beside.exists() else shutil.which("shardwright")
    if found is None:
        raise ConfigError(
            "no shardwright command is installed here",
            expected=str(beside),
            hint="Install the package with pip, or give --program.",
        )
    return Path(found).absolute()


def config_folder(prefix: Path) -> Path:
    return Path(CONFIG_IN_FILES) if str(prefix) in _SYSTEM_PREFIXES else prefix / "etc" / "shardwright"


def plan_installation(prefix: Path, program: Path, root: Path | None = None) -> list[PlannedFile]:
    """Returns the files to write; changes nothing. ``prefix`` and ``program`` are absolute. Raises
    ``ConfigError``, ``StorageError``."""
    _check_program(program)
    config = config_folder(prefix)
    check_path(config, "the configuration's folder")
    planned: list[PlannedFile | None] = []
    for name, path in _PATHS.items():
        text = packaged_text(name)
        if name == "shardwright.tmpfiles":  # tmpfiles.d knows no drop-ins
            text = text.replace(CONFIG_IN_FILES, str(config))
        planned.append(planned_file(below(root, prefix / path), text))
    planned.append(planned_file(below(root, config / EXAMPLE), packaged_text(EXAMPLE), keep=True))
    for name in SERVICES:
        paths = _other_paths(packaged_text(name), program, config)
        planned.append(drop_in(below(root, prefix / UNITS / f"{name}.d" / _DROP_IN), paths))
    return [file for file in planned if file is not None]


def _other_paths(unit: str, program: Path, config: Path) -> str:
    """Returns the settings of a unit that name the program or the configuration's folder, with those of this
    installation; nothing where they are the unit's own. An empty value first: these settings are lists."""
    moved = unit.replace(PROGRAM_IN_FILES, str(program)).replace(CONFIG_IN_FILES, str(config))
    found = ""
    for own, here in zip(*(re.split(r"(?m)^(?=\[)", text)[1:] for text in (unit, moved)), strict=True):
        settings = re.findall(r"(?m)^(\w+)=(.*)$", here)
        changed = dict.fromkeys(key for key, value in settings if f"\n{key}={value}\n" not in own)
        found += f"{here.splitlines()[0]}\n" if changed else ""
        for name in changed:
            found += "".join([f"{name}=\n", *(f"{key}={value}\n" for key, value in settings if key == name)])
    return found


def below(root: Path | None, path: Path) -> Path:
    """Returns where a file is written that belongs to ``path``."""
    return path if root is None else root / path.relative_to("/")


def install(planned: list[PlannedFile]) -> None:
    """Writes the files, each atomically. Raises ``StorageError``."""
    for file in planned:
        if file.outcome in ("unchanged", "left"):
            continue
        draft = file.written.with_name(f".{file.written.name}.draft")
        try:
            if file.outcome == "removed":
                file.target.unlink(missing_ok=True)
                continue
            file.written.parent.mkdir(parents=True, exist_ok=True)
            draft.write_text(file.text, encoding="utf-8")
            draft.chmod(0o644)
            replace_by_rename(draft, file.written)
        except OSError as error:
            hint = (
                "Run it as root, or give a --prefix of your own."
                if isinstance(error, PermissionError)
                else None
            )
            raise StorageError(f"cannot write {file.written}", got=error.strerror, hint=hint) from None


def packaged_text(name: str) -> str:
    """Returns the text of a file in ``systemd/``. Raises ``StorageError``."""
    folder = next((folder for folder in SOURCES if (folder / name).is_file()), None)
    if folder is None:
        raise StorageError(f"{name} is missing from this installation", hint="Install the package again.")
    return (folder / name).read_text(encoding="utf-8")


def planned_file(target: Path, text: str, *, keep: bool = False) -> PlannedFile:
    """Returns the file with what installing it would do. ``keep``: a changed file is never overwritten.
    Raises ``StorageError``."""
    try:
        there = target.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return PlannedFile(target, text, "new")
    except OSError as error:
        raise StorageError(f"cannot read {target}", got=error.strerror) from None
    return PlannedFile(target, text, "unchanged" if there == text else "kept" if keep else "updated")


def drop_in(target: Path, settings: str) -> PlannedFile | None:
    """Returns a drop-in; without ``settings`` the one to remove, None where there is none."""
    if settings:
        note = "# Written by `shardwright install`, at each run. Your own changes: `systemctl edit`.\n"
        return planned_file(target, note + settings)
    return PlannedFile(target, "", "removed") if target.exists() else None


def _check_program(program: Path) -> None:
    check_path(program, "the program")
    if any(program.is_relative_to(folder) for folder in HIDDEN_BY_UNITS):
        hint = (
            "Install shardwright into an environment such as /opt/shardwright (python3 -m venv), and run "
            "that one's install command."
        )
        raise ConfigError(
            "services cannot see home folders and /tmp",
            expected="a program elsewhere",
            got=str(program),
            hint=hint,
        )
    if not os.access(program, os.X_OK):
        raise ConfigError("the program cannot be run", expected="an executable file", got=str(program))


def check_path(path: Path, what: str) -> None:
    """Raises ``ConfigError`` for a path that a unit would read as another one: there blanks separate, and %
    begins a specifier."""
    if not path.is_absolute() or any(
        character.isspace() or character in "%\"'\\$;" for character in str(path)
    ):
        raise ConfigError(
            f"{what} cannot stand in a unit",
            expected="an absolute path without blanks, quotes, %, $ and ;",
            got=str(path),
        )
