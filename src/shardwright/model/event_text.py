"""Each event as a sentence, for people: on the status page, in the log of a terminal, in `shardwright
status`, and in Python's log of a writer. Programs read the name and the facts, which no sentence changes.

A sentence holds facts of its event, by name:

    {free_bytes}          as people read it, in the unit of its name: 1.5 GiB (bytes), 30 s (s)
    {frames:frame}        a count: 1 frame, 12,345 frames
    {paths:stores}        more ways to show a fact are in ``_SHOWN_AS``
    {store}               the acquisition as its users know it: its ``name``, else the last part of ``path``
    {why}                 made of an error's ``message``, ``expected`` and ``got``, or of ``error``
    [ of image {image}]   left out where a fact in the brackets is absent or empty

The table is here, below all rooms that emit events, since the writer in the user's process shows them too. A
test reads every event from the code and holds it to its sentence.
"""

from __future__ import annotations

import re
from pathlib import PurePath
from string import Formatter
from typing import TYPE_CHECKING, Any

from .display_text import duration, format_bytes, plain, size_change
from .names import acquisition_name

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

_ROW = "shard row {shard_row}[ of image {image}]"
_FIRST = "[, {frames:at index} {index:index}][ of image {image}]"

SENTENCES = {
    # an acquisition: frames
    "frames_dropped": "{store}: {frames:frame} dropped" + _FIRST,
    "frames_duplicate": "{store}: {frames:duplicate frame}" + _FIRST + ": {frames:taken}",
    "frames_late": "{store}: {frames:frame} came too late" + _FIRST,
    "frames_lost": "{store}: {frames:frame} lost" + _FIRST + "[: {reason:words}]",
    "frame_json_dropped": "{store}: the JSON of frame {sequence} is longer than {most_bytes}",
    "overload_level": "{store}: chunks are {degrade_level:level}"
    "; frames that wait fill {backlog:percent} of the ring",
    # an acquisition: its disk
    "disk_full": "{store}: the disk is full: {reason}",
    "disk_has_room": "{store}: the disk has room again",
    "disk_low": "{store}: only {free_bytes} of disk left, {shards_left:enough}",
    "io_error": "{store}: I/O error in " + _ROW + ": {reason}; {then}",
    "shard_rewritten": "{store}: " + _ROW + " is in new files, {frames_lost:frame} lost",
    "row_reopened": "{store}: " + _ROW + " is open again, with {frames_taken_back:unfinished frame}",
    "row_reopening_failed": "{store}: " + _ROW + " cannot be opened again: {reason}; {then}",
    "spilling": "{store}: " + _ROW + " goes to {root}: {reason}",
    "staging_failed": "{store}: frames are no longer staged: {reason}; {then}",
    "files_set_aside_warning": "{store}: damaged files were set aside in {folders}",
    # an acquisition: its life
    "acquisition_armed": "{store}: armed on stream {stream}, for a camera that comes within {waits_s}",
    "acquisition_disarmed": "{store}: armed no more: {reason}",
    "acquisition_opened": "{store}: begun by {host} on stream {stream}, over {transport}",
    "acquisition_detached": "{store}: waits for its camera to come back: {reason}",
    "acquisition_resumed": "{store}: its camera on {host} is back",
    "acquisition_reopened": "{store}: reopened by {host}",
    "acquisition_recovered": "{store}: found unfinished with {frames:frame}; its camera can resume it",
    "acquisition_recovery_failed": "{store}: was found unfinished, and cannot be resumed: {why}",
    "acquisition_unopened_warning": "{store}: was found unfinished, and is not open yet: {why}",
    "acquisition_refused": "{store}: refused to {host}: {why}",
    "acquisition_open_failed": "{store}: could not be opened for {host}: {why}",
    "acquisition_ended": "{store}: ended with {frames_stored:frame} stored, in {bytes_stored}[; {reason}]",
    "acquisition_failed": "{store}: failed with {frames_stored:frame} stored[: {reason}]",
    "acquisition_incomplete": "{store}: not every frame is in its place ({frames_received:frame} received)"
    "[; {frames_missing:place} without a frame][; {frames_duplicate:duplicate}][; {frames_late:frame} late]"
    "[; {frames_dropped:frame} dropped][; {frames_lost:frame} lost]",
    "layout_warning": "{store}: {warning}",
    # clients
    "client_connected": "Client connected: {software} on {host}, process {pid}[, key {client_key}]",
    "client_left": "Client left: process {pid} on {host}: {reason}",
    "client_lost": "Client lost: process {pid} on {host}: {reason}",
    "client_refused": "Client at {address} refused: {reason}[: {public_key}]",
    "client_keys_refused": "The client keys cannot be used, and no client is added: {why}",
    "client_keys_reloaded": "The client keys are read again[; added: {added}][; removed: {removed}]",
    # the daemon
    "kernels_compiling": "Starting: {meaning}",
    "kernels_compiled": "The kernels are compiled after {took_s}",
    "ready": "Ready for cameras at {endpoints}[; status page: {status_page}]"
    "[; to be resumed: {unfinished:stores}][; warnings: {warnings}]",
    "insecure_warning": "No keys are needed at {endpoints}: {meaning}",
    "leftovers_not_removed_warning": "The remains of {path} cannot be removed: {why}",
    "reloaded": "The configuration is read again[; changed: {changed}][; needs a restart: {needs_restart}]",
    "reload_failed": "The configuration is not changed, since the new one cannot be used: {why}",
    "draining": "No new acquisitions from now on; {acquisitions:acquisition} to seal",
    "stopping": "The daemon stops[ after {signal}][ after a request to {request}]",
    "stopped": "The daemon has stopped with exit code {exit_code}; {frames_received:frame} received",
    "stopped_by_force_warning": "The daemon stops at once, after a second signal: {signal}",
    "left_to_recovery_warning": "Not sealed, and left to the next start: {paths:stores}",
    "thread_died": "The thread {thread} has died, and the daemon stops[: {why}]",
    "stuck_warning": "A disk or a thread is stuck for {stall_s} (limit {limit_s})",
    "stuck_no_more": "Nothing is stuck any more",
    "events_lost": "The daemon's log has lost {lines:line}",
    "notify_failed": "The service manager cannot be reached: {error}",
    "control_died": "The control socket {path} no longer answers: {error}",
    "control_request_failed": "A request on the control socket could not be answered ({request}): {error}",
    "notification_failed": "The receiver {receiver} was not told of {about:words}: {error}",
    "web_ready": "The status page is at {url}",
    "web_died": "The status page has ended[, and starts again in {again_in_s}]: {error}",
    "web_error": "The status page reports: {error}",
    "web_open_to_the_network_warning": "The status page at {url} is open to the network",
    # compaction
    "compaction_begun": "{store}: compaction begun",
    "compaction_paused": "{store}: compaction pauses for the cameras"
    "[; ring {ring_fill:percent} full, {free_bytes} of disk left]",
    "compaction_resumed": "{store}: compaction goes on",
    "compaction_interrupted": "{store}: compaction interrupted",
    "compaction_done": "{store}: compacted[, {gain_bytes:change}][, after {seconds}]",
    "compaction_failed": "{store}: compaction failed[, and is tried again in {again_in_s}]: {why}",
    "compaction_behind": "Compaction is behind: {queued:store} to compact, the oldest due for {waited_s}",
    "compaction_record_failed": "{store}: the end of its compaction could not be recorded: {why}",
    "compaction_take_up_failed": "The queue of stores to compact cannot be read: {why}",
    "compaction_pause_failed": "Compaction cannot be paused for the cameras: {why}",
    "compaction_died": "Stores are no longer compacted: {error}",
}

_LEVELS = {
    "configured": "compressed as configured again",
    "faster": "compressed faster, and less",
    "uncompressed": "no longer compressed",
}
_SHOWN_AS: dict[str, Callable[[Any], str]] = {
    "level": lambda label: _LEVELS[label],
    "percent": lambda part: f"{part:.0%}",
    "index": lambda index: f"({', '.join(map(str, index))})",
    "at index": lambda frames: "at index" if frames == 1 else "the first at index",
    "taken": lambda frames: "its place is taken" if frames == 1 else "their places are taken",
    "enough": lambda rows: (
        f"enough for {_shown('', rows, 'more shard row')}" if rows else "not enough for another shard row"
    ),
    "change": size_change,
    "stores": lambda paths: ", ".join(map(_store, paths)),
    # a status or reason of the frame table; any other text stays
    "words": lambda text: text.replace("_", " ") if re.fullmatch("[a-z_]+", text) else text,
}
_OPTIONAL = re.compile(r"\[([^\[\]]*)\]")
_OF_THE_LINE = ("number", "timestamp", "level", "event", "exception", "exc_info", "shortened")


def event_text(event: str, facts: Mapping[str, Any]) -> str:
    """Returns the sentence of an event, and its hint as a second one. Of an event that this release does not
    know, or whose facts are not all there, such as one that was much too long, the name and the facts."""
    try:
        text = sentence(event, facts)
    except Exception:  # noqa: BLE001  (facts of another release, of any type, must not end who shows them)
        known = [
            f"{plain(name)} {_shown(name, fact)}"
            for name, fact in facts.items()
            if name not in ("hint", "repeated", *_OF_THE_LINE)
        ]
        text = ": ".join(filter(None, (plain(event).replace("_", " "), ", ".join(known))))
    if "repeated" in facts:
        text += f" (and {_shown('repeated', facts['repeated'], 'more event')} like it)"
    hint = _shown("hint", facts.get("hint") or "")
    return f"{text}. {hint}" if hint else text


def sentence(event: str, facts: Mapping[str, Any]) -> str:
    """Returns the sentence alone. Raises ``LookupError`` for an unknown event or a fact that is absent."""
    known = {**facts, **dict(_made(facts))}
    shown = _OPTIONAL.sub(
        lambda part: part[1] if all(_is_there(known.get(name)) for name in facts_in(part[1])) else "",
        SENTENCES[event],
    )
    return "".join(
        text if name is None else text + _shown(name, known[name], how or "")
        for text, name, how, _ in Formatter().parse(shown)
    )


def facts_in(template: str) -> list[str]:
    """Returns the names of the facts in a sentence of the table, or in a part of it."""
    return [name for _, name, _, _ in Formatter().parse(template) if name is not None]


def _made(facts: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    if "name" in facts:
        yield "store", str(facts["name"]) or "(no name)"
    elif "path" in facts:
        yield "store", _store(facts["path"])
    if "message" in facts:
        further = [f"{name} {facts[name]}" for name in ("expected", "got") if facts.get(name) is not None]
        more = f" (and {len(facts['others'])} more)" if facts.get("others") else ""
        yield "why", "; ".join((str(facts["message"]), *further)) + more
    elif "error" in facts:
        yield "why", str(facts["error"])


def _store(path: str) -> str:
    return acquisition_name(PurePath(path).name)


def _is_there(fact: Any) -> bool:
    return fact is not None and fact not in ("", [], ())


def _shown(name: str, fact: Any, how: str = "") -> str:
    if how in _SHOWN_AS:
        fact = _SHOWN_AS[how](fact)
    if isinstance(fact, list | tuple):
        return ", ".join(_shown(name, each) for each in fact)
    # no number that can be shown in a unit: not finite, or an integer beyond a float
    is_count = isinstance(fact, int | float) and not isinstance(fact, bool) and abs(fact) < 1 << 63
    if not is_count:
        return plain(" ".join(str(fact).split()))
    units = name.split("_")
    if "bytes" in units:
        return format_bytes(fact)
    if units[-1] in ("s", "seconds"):
        return duration(fact) if fact >= 10 else f"{round(fact, 1):g} s"
    return f"{fact:,} {how}{'' if fact == 1 else 's'}" if how else str(fact)
