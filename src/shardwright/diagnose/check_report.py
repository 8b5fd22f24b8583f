"""The report of ``shardwright check``: will this configuration run here, why not, and will it keep up.

start.py           the start of the daemon, tried and undone
output_folder.py   each output folder
trial.py           the cameras at full speed, when asked for; what follows from it: verdict.py
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from shardwright.daemon.notifier import message_of, send
from shardwright.model.errors import ShardwrightError

from .output_folder import FOLDER_CHECKS, Needs, look_at_folder
from .start import Finding, StartTrial, new_folders_removed, refusal
from .verdict import judge

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from shardwright.config.load import LoadedConfig
    from shardwright.config.plan import Plan

    from .output_folder import OutputFolder
    from .start import Result
    from .verdict import CamerasVerdict, Measured, StreamVerdict

    Measure = Callable[[LoadedConfig, Plan], Measured]

_HELD: dict[str, tuple[Result, str]] = {
    "yes": ("ok", "can be held"),
    "barely": ("warn", "can be held, barely"),
    "no": ("bad", "cannot be held"),
    "unknown": ("warn", "not known whether it can be held"),
}
_TOO_FAST = (
    "It reached {:,.1f} frames a second. Lower its frame rate, record a smaller region, or set a codec that "
    "costs less, output.root to a faster disk or reliability.overload to degrade."
)
_ADVICE = {"barely": _TOO_FAST, "no": _TOO_FAST, "unknown": "Give its frame_rate_hz, or --frame-rate."}


@dataclass(frozen=True)
class CheckReport:
    """The report of one check. ``plan``: None where the configuration cannot work. ``verdict``: None without
    cameras."""

    findings: tuple[Finding, ...]
    plan: Plan | None = None
    verdict: CamerasVerdict | None = None

    @property
    def ok(self) -> bool:
        """True if it will run, and keep up where that was measured."""
        return not any(finding.result == "bad" for finding in self.findings)

    def to_dict(self) -> dict[str, Any]:
        return {
            "ok": self.ok,
            "findings": [finding.to_dict() for finding in self.findings],
            "plan": None if self.plan is None else self.plan.to_dict(),
            "keep_up": None if self.verdict is None else self.verdict.to_dict(),
        }


def check_reload(loaded: LoadedConfig, frame_rate_hz: float | None = None) -> CheckReport:
    """Checks whether a running daemon would accept the configuration at a reload. Makes only the plan."""
    trial = StartTrial(loaded, frame_rate_hz=frame_rate_hz)
    return _report(loaded, trial, trial.findings, None)


def check_notify(loaded: LoadedConfig) -> CheckReport:
    """Sends a test to each receiver of notifications, and nothing else."""
    findings = []
    for i, receiver in enumerate(loaded.config.notify):
        why, last = send(receiver, message_of("test", "This is a test of shardwright's notifications"))
        found = ": ".join(dict.fromkeys(filter(None, (why, last)))) if why else "has taken a test"
        findings.append(Finding(f"notify[{i}]: {receiver.label}", "bad" if why else "ok", found))
    return CheckReport(tuple(findings) or (Finding("notify", "bad", "there is no receiver"),))


def check_start(
    loaded: LoadedConfig,
    frame_rate_hz: float | None = None,
    measure: Measure | None = None,
    *,
    beside: bool = False,
) -> CheckReport:
    """Checks whether ``serve`` would start, and how this machine suits it. ``measure`` measures the rates
    that the machine can hold; it is not called if ``serve`` would not start, nor while cameras acquire,
    unless ``beside``."""
    measured: Measured | None = None
    with new_folders_removed(loaded.config):
        trial = StartTrial(loaded, frame_rate_hz=frame_rate_hz)
        trial.run()
        findings = [*trial.findings, *_findings_here(loaded, trial)]
        if measure is not None:
            if (obstacle := _obstacle(trial, beside=beside)) is not None:
                findings.append(obstacle)
            else:
                assert trial.plan is not None
                try:
                    measured = measure(loaded, trial.plan)
                except ShardwrightError as error:
                    findings.append(refusal("measurement", error))
    return _report(loaded, trial, findings, measured)


def _report(
    loaded: LoadedConfig, trial: StartTrial, findings: list[Finding], measured: Measured | None
) -> CheckReport:
    plan = trial.plan
    if plan is None or not plan.streams:
        return CheckReport(tuple(findings), plan)
    verdict = judge(plan, loaded.config.output.low_water, measured)
    held = [] if measured is None else [_held(stream) for stream in verdict.streams]
    return CheckReport((*findings, *held), plan, verdict)


def _findings_here(loaded: LoadedConfig, trial: StartTrial) -> Iterator[Finding]:
    output = loaded.config.output
    folders: list[OutputFolder] = []
    for field, path in trial.folders.items():
        try:
            folders.append(look_at_folder(field, path, output.io, output.low_water))
        except (OSError, ShardwrightError) as error:
            yield refusal(field, error)
    needs = Needs.of(trial.plan)
    for folder in folders:
        for name, check_folder in FOLDER_CHECKS.items():
            yield Finding(f"{folder.field}: {name}", *check_folder(folder, needs))


def _obstacle(trial: StartTrial, *, beside: bool) -> Finding | None:
    """Returns the reason why nothing can be measured, or None. A running daemon is no reason: the measurement
    has sockets of its own."""
    if trial.plan is not None and not trial.plan.streams:
        return Finding("measurement", "bad", "there is no camera to measure", "Describe them under streams.")
    in_the_way = [finding for finding in trial.findings if finding.result == "bad"]
    if len(in_the_way) > (0 if trial.running is None else 1):
        return Finding("measurement", "warn", "not measured, since the daemon would not run")
    names = [acquisition["name"] for acquisition in (trial.running or {}).get("acquisitions", [])]
    if names and not beside:
        return Finding(
            "measurement",
            "bad",
            f"cameras are acquiring ({', '.join(names[:5])}), and a measurement would disturb them",
            "Wait until they have ended, or give --beside.",
        )
    return None


def _held(stream: StreamVerdict) -> Finding:
    load = "" if stream.load is None else f", at {stream.load:.0%} of what this machine can do"
    result, says = _HELD[stream.held]
    advice = _ADVICE.get(stream.held)
    if advice is not None and stream.sustained_frame_rate_hz is not None:
        advice = advice.format(stream.sustained_frame_rate_hz)
    return Finding(f"stream {stream.name}: rate", result, says + load, advice)
