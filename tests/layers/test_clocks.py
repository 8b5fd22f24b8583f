"""No decision is taken by the wall clock: it may jump at any time. Each use of it is listed here, with what
it is for."""

import ast
from pathlib import Path

SOURCE = Path(__file__).parents[2] / "src" / "shardwright"

# Calls and attributes that read the wall clock, or a file's time, which came from it.
WALL_CLOCK = {
    *(
        f"time.{name}"
        for name in (
            "time",
            "time_ns",
            "localtime",
            "gmtime",
            "ctime",
            "strftime",
            "clock_gettime",
            "clock_gettime_ns",
        )
    ),
    *(f"datetime.{name}" for name in ("now", "today", "utcnow")),
    "structlog.processors.TimeStamper",
}
FILE_TIMES = {
    "st_mtime",
    "st_mtime_ns",
    "st_ctime",
    "st_ctime_ns",
    "st_atime",
    "st_atime_ns",
    "getmtime",
    "getctime",
    "getatime",
}

# (file, what is called): why it is harmless. Recorded means: written down for people, and never read back by
# this code.
ARGUED = {
    ("store/store_metadata.py", "time.time"): "recorded: when the acquisition of a plate ended",
    ("daemon/notifier.py", "datetime.now"): "told: when the event was, to people",
    ("client/send_queue.py", "time.time_ns"): "recorded: camera_ns, when the camera's side took the frame",
    ("rework/transfer/destination.py", "datetime.now"): "recorded: since when a claim is held, in the "
    "message that names its holder",
    (
        "rework/references/make_references.py",
        "time.time",
    ): "only how long to wait, at most two seconds: until the second of a file's last change is over",
    ("rework/jobs/scrub.py", "time.time"): "which stores are read and verified again, and when: a jump makes "
    "that sooner or later, and changes no store",
    ("rework/jobs/scrub.py", "st_mtime"): "when a store was last read and verified, as above",
    ("rework/runtime/done_list.py", "st_mtime_ns"): "only whether it has changed: somebody wrote to a shard "
    "after it was recorded as finished",
    ("rework/transfer/transfer_item.py", "st_mtime_ns"): "only whether it has changed: somebody wrote to a "
    "file after it was sent",
    ("rework/transfer/transfer_item.py", "st_ctime_ns"): "only whether it has changed: a mended file may "
    "have the size and the time of the damaged one",
    ("rework/jobs/new_arrays.py", "st_mtime_ns"): "only whether it has changed: the source is not what it "
    "was when new arrays were begun",
    ("disk/files.py", "st_mtime_ns"): "only whether it has changed: the identity of a file that was read",
    ("disk/changed_file.py", "st_atime_ns"): "set again as it was: the other time cannot be set alone",
    ("disk/changed_file.py", "st_mtime_ns"): "only so that it changes: a file that was edited gets a time "
    "behind the one that it had",
    (
        "ingest/transport/allow_list.py",
        "st_mtime_ns",
    ): "only whether it has changed: somebody added, replaced or removed a client's key",
    ("kernels/cache.py", "st_mtime"): "which compiled kernels of other versions are deleted first; the "
    "folder in use never is",
    ("acquire/acquisition.py", "time.time_ns"): "recorded: arrival_ns",
    ("store/store_folder.py", "time.time_ns"): "recorded: when the store was created, in its manifest",
    ("writer/writer.py", "time.time_ns"): "recorded: camera_ns of the in-process writer",
    ("daemon/events.py", "structlog.processors.TimeStamper"): "recorded: the timestamp of an event",
    ("web/finished_stores.py", "st_mtime_ns"): "shown: when a store was finished, and the order of the list; "
    "whether it has changed since",
    ("web/stored_previews.py", "time.time"): "shown: how long ago the last frame came, from its arrival_ns",
    (
        "read/live_documents.py",
        "st_mtime_ns",
    ): "only whether it has changed: the positions that were told are read again",
    ("read/live_shard.py", "st_mtime_ns"): "only whether it has changed: the generation by which a client "
    "knows a file",
    ("disk/lock.py", "datetime.now"): "recorded: since when a lock is held, in the message that names "
    "its holder",
}


def uses(file: Path) -> set[str]:
    found = set()
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Attribute):
            found |= {ast.unparse(node)} & WALL_CLOCK | {node.attr} & FILE_TIMES
        elif isinstance(node, ast.ImportFrom) and node.module in ("time", "os.path"):
            assert not {f"{node.module}.{name.name}" for name in node.names} & WALL_CLOCK, (
                f"{file}: import the module, so that its use is seen"
            )
            assert not {name.name for name in node.names} & FILE_TIMES, file
    return found


def test_every_use_of_the_wall_clock_is_argued():
    used = {
        (file.relative_to(SOURCE).as_posix(), name) for file in SOURCE.rglob("*.py") for name in uses(file)
    }
    assert used <= set(ARGUED), (
        "a new use of the wall clock: use time.monotonic for decisions, else say here what it is for"
    )
    assert set(ARGUED) <= used, "arguments for uses that are gone"


def test_the_search_finds_what_it_is_for(tmp_path):
    file = tmp_path / "x.py"
    file.write_text(
        "import time, datetime as d\nfrom datetime import "
        "datetime\ntime.time()\ndatetime.now()\nclock = time.time_ns\np.stat().st_mtime"
    )
    assert uses(file) == {"time.time", "datetime.now", "time.time_ns", "st_mtime"}
