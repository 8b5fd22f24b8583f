"""Sets up .venv in this checkout, or an environment of another Python beside it: setup_venv.py .venv-3.13
EXTRA .... Run by tools/setup with the Python that the environment is to have, so: standard library only,
nothing installed is assumed.

    .cache/setup.lock        held while an environment is looked at or changed: two tools started at once take
                             turns, on two Pythons as well (both may call apt-get)
    .cache/setup.json        what .venv holds; "building" while it is being made, so that an interrupted
                             set-up is started over
    .cache/setup-3.13.json   the same of .venv-3.13
    .cache/setup.log         everything pip said in the newest set-up

A stripped-down system may lack ensurepip or pip, or have an old or an externally managed one, so there are
several ways to an environment with pip in it (``WAYS``); the first that works is used. Installing is then
always the new environment's own pip. Programs that tests need and pip cannot bring come from Debian
(``DEBIAN_PACKAGES``), if root may install them.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
CACHE = ROOT / ".cache"
LOG = CACHE / "setup.log"

# What pip cannot bring, for each extra: program, or a file by its path -> the Debian package that has it, and
# what comes along.
DEBIAN_PACKAGES = {
    "test": {
        # the client in C
        "/usr/include/zmq.h": "libzmq3-dev",
        "g++": "g++",
        "gcc": "gcc libc6-dev",
        # with the libraries by which Qt and OpenGL draw napari's window on it
        "Xvfb": "xvfb libegl1 libgl1-mesa-dri "
        "libxcb-cursor0 libxcb-icccm4 libxcb-keysyms1 libxcb-shape0 libxkbcommon-x11-0",
        "chromium": "chromium",
        "chromedriver": "chromium-driver",
        "faketime": "faketime",
        "fusermount3": "fuse3",
        "h5dump": "hdf5-tools",
        "mkfs.btrfs": "btrfs-progs",
        "mkfs.ext4": "e2fsprogs",
        "mkfs.xfs": "xfsprogs",
        "nbdfuse": "libnbd-bin",
        "nbdkit": "nbdkit",
        "promtool": "prometheus",
        "qemu-storage-daemon": "qemu-system-common",
        "strace": "strace",
        "systemd-analyze": "systemd",
        "unshare": "util-linux",
    },
}

UNREACHABLE_SIGNS = (
    "connection broken by",
    "Temporary failure in name resolution",
    "Failed to establish a new connection",
    "Could not fetch URL",
    "Network is unreachable",
    "Connection refused",
    "dns error",
)


class SetupError(Exception):
    """Says what went wrong and what to do about it."""


def say(text: str) -> None:
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def run_logged(command: list[str], progress: Callable[[str], None] | None = None) -> bool:
    """Runs a command with all its output in the log; ``progress`` sees each line as well. True if it
    succeeded."""
    with LOG.open("a", encoding="utf-8", errors="replace") as log:
        log.write(f"$ {' '.join(command)}\n")
        log.flush()
        try:
            process = subprocess.Popen(
                command,
                cwd=ROOT,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                # the child shares the lock: should we be killed, the next set-up waits until it is gone too
                close_fds=False,
                text=True,
                errors="replace",
            )
        except OSError as error:
            log.write(f"{error}\n")
            return False
        with process:
            assert process.stdout is not None
            for line in process.stdout:
                log.write(line)
                if progress is not None:
                    progress(line)
        return process.returncode == 0


def log_tail(lines: int = 12) -> str:
    return "\n".join(
        "    " + line for line in LOG.read_text(encoding="utf-8", errors="replace").splitlines()[-lines:]
    )


# --- an environment with pip in it ---


def python_of(venv: Path) -> str:
    return str(venv / "bin" / "python")


def has_pip(venv: Path) -> bool:
    return run_logged([python_of(venv), "-m", "pip", "--version"])


def by_venv(venv: Path) -> bool:
    return run_logged([sys.executable, "-m", "venv", str(venv)])


def by_system_pip(venv: Path) -> bool:
    """ensurepip is missing, but some pip is there: let it put a pip into the bare environment. ``--target``
    works where it is externally managed."""
    if not run_logged([sys.executable, "-m", "venv", "--without-pip", str(venv)]):
        return False
    site_packages = (
        venv / "lib" / f"python{sys.version_info.major}.{sys.version_info.minor}" / "site-packages"
    )
    pips = [[sys.executable, "-m", "pip"], ["pip3"], ["pip"]]
    return any(
        run_logged([*pip, "install", "--target", str(site_packages), "--upgrade", "pip"]) for pip in pips
    )


def by_virtualenv(venv: Path) -> bool:
    return run_logged(["virtualenv", "--python", sys.executable, str(venv)])


def by_uv(venv: Path) -> bool:
    return run_logged(["uv", "venv", "--seed", "--no-project", "--python", sys.executable, str(venv)])


def by_apt(venv: Path) -> bool:
    """Debian keeps ensurepip in a package of its own; root may install it."""
    if os.geteuid() != 0 or shutil.which("apt-get") is None:
        return False
    package = f"python3.{sys.version_info.minor}-venv"
    say(f"this Python has neither ensurepip nor pip: installing {package} with apt-get")
    os.environ["DEBIAN_FRONTEND"] = "noninteractive"
    run_logged(["apt-get", "update"])  # a list that is old but there may still do
    return run_logged(["apt-get", "install", "-y", "--no-install-recommends", package]) and by_venv(venv)


WAYS: tuple[Callable[[Path], bool], ...] = (by_venv, by_system_pip, by_virtualenv, by_uv, by_apt)


def create_venv(venv: Path) -> None:
    say(f"creating {venv.name} with Python {sys.version.split()[0]} ({sys.executable})")
    for way in WAYS:
        if venv.exists():
            shutil.rmtree(venv)
        if way(venv) and has_pip(venv):
            return
    explain_unreachable()
    raise SetupError(
        f"no virtual environment could be made: {sys.executable} has no working venv with pip, and no pip, "
        f"virtualenv or uv is at hand.\n"
        f"  On Debian or Ubuntu, install it as root and run this again:  apt-get install python3-venv\n  "
        f"The last lines of {LOG}:\n{log_tail()}"
    )


# --- packages ---


def explain_unreachable() -> None:
    """Raises with the plain cause if the log shows that the package index did not answer."""
    text = LOG.read_text(encoding="utf-8", errors="replace")
    if any(sign in text for sign in UNREACHABLE_SIGNS):
        raise SetupError(
            "the package index could not be reached. Check the network (a proxy or a mirror is set with "
            "HTTPS_PROXY, PIP_INDEX_URL or pip.conf) "
            f"and run this again.\n  The last lines of {LOG}:\n{log_tail()}"
        )


def pip(venv: Path, *arguments: str, progress: Callable[[str], None] | None = None) -> None:
    command = [python_of(venv), "-m", "pip", "--disable-pip-version-check", *arguments]
    if not run_logged(command, progress):
        explain_unreachable()
        raise SetupError(f"pip {arguments[0]} failed. The last lines of {LOG}:\n{log_tail()}")


def show_package(line: str) -> None:
    """The package in hand, on one line that is rewritten."""
    word, _, rest = line.strip().partition(" ")
    if word in ("Collecting", "Downloading", "Installing"):
        print(f"\r\x1b[K  {word.lower()} {rest[:90]}", end="", file=sys.stderr, flush=True)


def install(venv: Path, extras: list[str]) -> None:
    start = time.monotonic()
    say(f"installing packages for: {', '.join(extras) or 'the client alone'} (a minute or two)")
    os.environ.setdefault("PIP_RETRIES", "2")
    on_terminal = sys.stderr.isatty()
    pip(venv, "install", "--upgrade", "pip")
    target = f".[{','.join(extras)}]" if extras else "."
    progress = show_package if on_terminal else None
    pip(venv, "install", "--prefer-binary", "--editable", target, progress=progress)
    if on_terminal:
        print("\r\x1b[K", end="", file=sys.stderr)
    say(f"ready after {time.monotonic() - start:.0f} s")


# --- programs of the system ---


def missing_programs(wanted: set[str]) -> dict[str, str]:
    """Programs that a wanted extra needs and that are not there, each with its Debian package."""
    path = os.pathsep.join([os.environ.get("PATH", os.defpath), "/usr/sbin", "/sbin"])
    needed = {
        program: package
        for extra in sorted(wanted)
        for program, package in DEBIAN_PACKAGES.get(extra, {}).items()
    }
    runs = os.F_OK | os.X_OK
    return {
        program: package
        for program, package in needed.items()
        if shutil.which(program, os.F_OK if "/" in program else runs, path) is None
    }


def packages_of(programs: dict[str, str]) -> list[str]:
    return sorted({package for packages in programs.values() for package in packages.split()})


def install_programs(wanted: set[str]) -> None:
    """As root on Debian they are installed. Elsewhere, or if that fails, the set-up goes on without them and
    says what is missing."""
    missing = missing_programs(wanted)
    if not missing:
        return
    packages = packages_of(missing)
    if os.geteuid() == 0 and shutil.which("apt-get") is not None:
        say(f"installing from Debian: {' '.join(packages)} (a minute)")
        os.environ["DEBIAN_FRONTEND"] = "noninteractive"
        # the program is wanted; a service that comes along in its package must not start
        os.environ["SYSTEMD_OFFLINE"] = "1"
        run_logged(["apt-get", "update"])  # a list that is old but there may still do
        run_logged(["apt-get", "install", "-y", "--no-install-recommends", *packages])
        missing = missing_programs(wanted)
    if missing:
        command = f"apt-get install {' '.join(packages_of(missing))}"
        say(
            f"{', '.join(sorted(missing))} missing: tests that need them fail, or are skipped and say so. "
            f"On Debian or Ubuntu, as root:  {command}"
        )


# --- what is there already ---


def venv_version(venv: Path) -> str:
    """The version of the environment's Python, empty if it does not run (removed, replaced, or the checkout
    was moved)."""
    code = "import sys; print(sys.version, sys.prefix)"
    try:
        done = subprocess.run([python_of(venv), "-I", "-c", code], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return ""
    return done.stdout.strip()


def state_path(venv: Path) -> Path:
    return CACHE / f"setup{venv.name.removeprefix('.venv')}.json"


def read_state(venv: Path) -> dict[str, object]:
    try:
        state = json.loads(state_path(venv).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def write_state(venv: Path, state: dict[str, object]) -> None:
    path = state_path(venv)
    draft = path.with_name(f"{path.name}.new")
    draft.write_text(json.dumps(state), encoding="utf-8")
    draft.replace(path)


@contextlib.contextmanager
def only_one() -> Iterator[None]:
    CACHE.mkdir(exist_ok=True)
    with (CACHE / "setup.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say("waiting for another set-up of this checkout")
            fcntl.flock(lock, fcntl.LOCK_EX)
        os.set_inheritable(lock.fileno(), True)
        yield


def set_up(venv: Path, wanted: set[str]) -> None:
    requirements = hashlib.sha256((ROOT / "pyproject.toml").read_bytes()).hexdigest()
    state = read_state(venv)
    python = venv_version(venv)
    usable = bool(python) and state.get("phase") == "ready" and state.get("python") == python
    installed = state.get("extras")
    extras = wanted | (set(installed) if usable and isinstance(installed, list) else set())
    if usable and state.get("requirements") == requirements and state.get("extras") == sorted(extras):
        return
    if venv.exists() and not state:
        raise SetupError(f"{venv} exists and was not made by this tool: move it away and run this again")
    write_state(venv, {"phase": "building"})
    LOG.write_text("", encoding="utf-8")
    if not usable:
        create_venv(venv)
    install(venv, sorted(extras))
    write_state(
        venv,
        {
            "phase": "ready",
            "python": venv_version(venv),
            "requirements": requirements,
            "extras": sorted(extras),
        },
    )


def main(name: str, *extras: str) -> int:
    try:
        with only_one():
            set_up(ROOT / name, set(extras))
            install_programs(set(extras))
    except SetupError as error:
        say(f"failed: {error}")
        return 1
    except KeyboardInterrupt:
        say("interrupted; the next run starts the set-up over")
        return 130
    return 0


if __name__ == "__main__":
    sys.exit(main(*sys.argv[1:]))
