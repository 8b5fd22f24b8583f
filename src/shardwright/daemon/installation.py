"""Installs the files of ``systemd/`` where systemd reads them, with the paths of this installation.

    PREFIX/lib/systemd/system/   units                          written again at each installation: a site's
                                 changes belong in drop-ins
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
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from shardwright.model.errors import ConfigError, StorageError
from shardwright.storage.files import replace_by_rename

_HERE = Path(__file__).resolve()
# in an installed package, in a checkout
SOURCES = (_HERE.parents[1] / "systemd", _HERE.parents[3] / "systemd")
# The paths in the files, which need no change where these are right.
PROGRAM_IN_FILES, CONFIG_IN_FILES = "/opt/shardwright/bin/shardwright", "/etc/shardwright"
_SYSTEM_PREFIXES = ("/", "/usr", "/usr/local")
HIDDEN_BY_UNITS = ("/home", "/root", "/run/user", "/tmp", "/var/tmp")  # noqa: S108  (ProtectHome, PrivateTmp)
UNITS = "lib/systemd/system"
_PLACES = {
    "shardwright@.service": f"{UNITS}/shardwright@.service",
    "shardwright-compact@.service": f"{UNITS}/shardwright-compact@.service",
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
    targets = {name: prefix / place for name, place in _PLACES.items()} | {EXAMPLE: config / EXAMPLE}
    planned = []
    for name, target in targets.items():
        text = installed_text(name, prefix).replace(PROGRAM_IN_FILES, str(program))
        if root is not None:
            target = root / target.relative_to("/")  # noqa: PLW2901  (only the place of writing differs)
        planned.append(PlannedFile(target, text, outcome_of(target, text, keep=name == EXAMPLE)))
    return planned


def installed_text(name: str, prefix: Path) -> str:
    """Returns the text of a file in ``systemd/``, with the configuration folder of ``prefix``. Raises
    ``StorageError``."""
    return _source(name).replace(CONFIG_IN_FILES, str(config_folder(prefix)))


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


def _source(name: str) -> str:
    folder = next((folder for folder in SOURCES if (folder / name).is_file()), None)
    if folder is None:
        raise StorageError(f"{name} is missing from this installation", hint="Install the package again.")
    return (folder / name).read_text(encoding="utf-8")


def outcome_of(target: Path, text: str, *, keep: bool) -> Outcome:
    """Returns what installing ``text`` would do. ``keep``: a changed file is never overwritten. Raises
    ``StorageError``."""
    try:
        there = target.read_text(encoding="utf-8", errors="replace")
    except FileNotFoundError:
        return "new"
    except OSError as error:
        raise StorageError(f"cannot read {target}", got=error.strerror) from None
    return "unchanged" if there == text else "kept" if keep else "updated"


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
