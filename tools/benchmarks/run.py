"""Runs comparisons and parts and makes a record of them, with the facts of the machine: no names of hosts,
users or folders.

Every comparison and part by itself: one that fails is told and does not stop the others. Ctrl-C ends the run
without a record.
"""

from __future__ import annotations

import json
import os
import platform
import subprocess
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from types import ModuleType
from typing import Any

from .cases import (
    cameras,
    fair,
    flat,
    kernel,
    latency,
    opening,
    outcome,
    overload,
    plates,
    prediction,
    reading,
    scaling,
    seen,
    shards,
    small,
    start,
)
from .cases.throughput import Comparison, outcomes_of
from .contest import compare
from .processes import say
from .record import BUSY_CORES, Machine, Record
from .testbed import Places

# in the order of the record
PARTS: dict[str, ModuleType] = {
    "latency": latency,
    "small": small,
    "cameras": cameras,
    "overload": overload,
    "fair": fair,
    "flat": flat,
    "prediction": prediction,
    "reading": reading,
    "seen": seen,
    "shards": shards,
    "plates": plates,
    "opening": opening,
    "kernel": kernel,
    "scaling": scaling,
    "start": start,
}
QUICK_FRAMES, QUICK_ROUNDS = 64, 2
SOFTWARE = (
    "shardwright",
    "acquire-zarr",
    "tensorstore",
    "zarr",
    "zarrs",
    "numcodecs",
    "blosc2",
    "numba",
    "numpy",
    "pyzmq",
)
ROOT = Path(__file__).resolve().parents[2]
NOTES = """\
Peers write through the page cache and never sync; the bench syncs for them, inside their time.
-uncopied reads frames where they lie (copy=False); -claim counts the copy by which its camera fills a slot.
Floors write no file format, no frame table and no index; the kernel floor takes frames from where they lie.
floor-together: each frame copied into a ring, the kernel, and O_DIRECT to the disk, all at once.\
""".splitlines()


def make_record(
    comparisons: Sequence[Comparison], parts: Sequence[str], places: Places, *, quick: bool
) -> Record:
    compared, measured, outcomes = {}, {}, []
    (head, dirty), facts = commit(), machine_facts(places.disk)
    for comparison in comparisons:
        one = timed(comparison.name, partial(_compared, comparison, places, quick))
        compared[comparison.name] = one
        outcomes += outcomes_of(one["rows"], comparison)
    for part in parts:
        try:
            measured[part] = timed(part, partial(PARTS[part].measure, places, quick))
        except Exception as error:  # noqa: BLE001  (an hour of other measurements must not be lost with it)
            text = str(error).replace(str(places.disk), "FOLDER").replace(str(places.memory), "FOLDER")
            measured[part] = {"rows": [], "error": text}
            say(f"{part} failed: {error}")
        outcomes += outcomes_of_part(part, measured[part]["rows"])
    return Record(
        date=datetime.now(UTC).isoformat(timespec="seconds"),
        commit=head,
        dirty=dirty,
        machine=Machine.model_validate(facts),
        software={name: _version(name) for name in SOFTWARE},
        quick=quick,
        comparisons=compared,
        parts=measured,
        outcomes=outcomes,
        notes=NOTES,
    )


def timed(name: str, measure: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What ``measure`` returns, with the seconds it took and the cores that were busy with other work just
    before: ``cores_busy_before``, 0 on an idle machine."""
    say(f"--- {name}")
    busy, begin_s = cores_busy(), time.monotonic()
    if busy > BUSY_CORES:
        say(f"the machine is not idle: {busy:.2f} cores are busy with other work")
    found = measure()
    return {"took_s": round(time.monotonic() - begin_s), "cores_busy_before": round(busy, 2), **found}


def _compared(comparison: Comparison, places: Places, quick: bool) -> dict[str, Any]:
    taking_part = comparison.entries(QUICK_FRAMES if quick else None)
    rounds = QUICK_ROUNDS if quick else comparison.rounds
    results = compare(taking_part, rounds, places.folder(comparison.place) / "work")
    case = json.loads(taking_part[0].case.to_json())
    return {"rounds": rounds, "case": case, "rows": [result.row() for result in results]}


def outcomes_of_part(part: str, rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The figures that are asked of a part, of each of its rows."""
    found = []
    for asked in PARTS[part].ASKED:
        for row in rows:
            value = float(row[asked.measure])
            spread = row.get(f"{asked.measure}_spread", {"least": value, "most": value})
            where = {"measured_in": f"{part}/{row['name']}", "headline": row["headline"]}
            names = {"name": asked.measure, "ours": row["name"], "against": part}
            found.append(outcome(asked, value, spread["least"], spread["most"], **names, **where))
    return found


def machine_facts(folder: Path) -> dict[str, Any]:
    """``folder``: where the disk cases write; it exists."""
    return {
        "cpu": cpu_model(),
        "cores": len(os.sched_getaffinity(0)),
        "memory_bytes": os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"),
        "kernel": platform.release(),
        "filesystem": filesystem_of(folder),
        "python": platform.python_version(),
    }


def filesystem_of(folder: Path) -> str:
    """Its type, such as ext4: that of the deepest mount above the folder."""
    text = Path("/proc/self/mounts").read_text(encoding="utf-8", errors="replace")
    above = [
        (len(mount), number, kind)
        for number, (_, mount, kind, *_) in enumerate(line.split() for line in text.splitlines())
        if folder.resolve().is_relative_to(mount)
    ]
    return max(above)[2]  # of two mounts on the same folder the later one is seen


def cpu_model() -> str:
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines()
    models = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(models, platform.machine())


def _version(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def cores_busy(seconds: float = 1.0) -> float:
    """The cores that all processes together, and others on the same host, take of this machine while the
    caller sleeps."""
    begin = _busy_seconds()
    time.sleep(seconds)
    return (_busy_seconds() - begin) / seconds


def _busy_seconds() -> float:
    """User, nice, system, interrupts and stolen, of the first line of /proc/stat; idle and waiting for the
    disk left out."""
    counts = map(int, Path("/proc/stat").read_text(encoding="ascii").split()[1:9])
    user, nice, system, _, _, irq, softirq, steal = counts
    return (user + nice + system + irq + softirq + steal) / os.sysconf("SC_CLK_TCK")


def commit() -> tuple[str | None, bool]:
    """The checkout's commit (None outside of one); true where measured code differs from it."""
    changed = _git("status", "--porcelain", "--untracked-files=no", "--", "src", "tools/benchmarks/*.py")
    return _git("rev-parse", "HEAD"), bool(changed)


def _git(*arguments: str) -> str | None:
    command = ["git", "-C", str(ROOT), *arguments]
    try:
        done = subprocess.run(command, check=True, capture_output=True, text=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip() or None
