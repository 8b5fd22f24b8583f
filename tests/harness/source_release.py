"""The source distributions of other projects, with their tests: unpacked below ``.cache``."""

from __future__ import annotations

import shutil
import sys
import tempfile
from pathlib import Path
from typing import NamedTuple

from .cached_environment import CACHE, installing, pip


class SourceRelease(NamedTuple):
    """``archive``: as the package index has it, for pip. ``folder``: what is in it."""

    version: str
    archive: Path
    folder: Path


def source_release(project: str, version: str = "", sha256: str = "") -> SourceRelease:
    """Returns a release of a project, by its hash; without a ``version`` the newest one. It is downloaded if
    it is not there, the newest one always. Raises ``CannotInstallError``."""
    releases = CACHE / "releases"
    with installing(), tempfile.TemporaryDirectory(dir=CACHE) as temporary:
        found = list(releases.glob(f"{project.replace('-', '_')}-{version}.tar.gz")) if version else []
        if not found:
            wanted = Path(temporary) / "wanted"
            wanted.write_text(f"{project}=={version} --hash=sha256:{sha256}\n" if version else f"{project}\n")
            took = Path(temporary) / "took"
            pip(sys.executable, "download", "--no-deps", "--no-binary", project, "-d", took, "-r", wanted)
            releases.mkdir(exist_ok=True)
            found = [path.replace(releases / path.name) for path in took.iterdir()]
        (archive,) = found
        name = archive.name.removesuffix(".tar.gz")
        if not (releases / name).exists():
            unpacked = Path(temporary) / "unpacked"
            shutil.unpack_archive(archive, unpacked, filter="data")
            (unpacked / name).replace(releases / name)
    return SourceRelease(name.rpartition("-")[2], archive, releases / name)
