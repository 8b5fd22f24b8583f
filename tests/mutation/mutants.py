"""The list of mutants: what each takes out of the writer, by text that runs at the start of every process,
and the suite that must catch it.

What a kill can show is ordering and bookkeeping: the page cache survives it. Syncs are the power cuts'
business, errors that are swallowed the fault suites', checksums of bytes at rest the unit tests' of the
formats.
"""

from __future__ import annotations

from dataclasses import replace

from .mutant import Mutant
from .rooms import ROOMS

_NOTHING = "nothing = lambda *a, **k: None\n"
_NO_SYNC_OF_NAMES = """
import shardwright.disk.files as m
named, sync = m.AtomicFile._named, m.sync_directory
def unsynced(self, target):
    m.sync_directory = lambda path: None
    try:
        named(self, target)
    finally:
        m.sync_directory = sync
m.AtomicFile._named = unsynced
"""

# Checksums that are computed and written as ever, and agree with whatever is found.
_AGREES = """
import types
from crc32c import crc32c
class Agrees(int):
    __hash__ = int.__hash__
    def __eq__(self, other): return True
    def __ne__(self, other): return False
def agreeing(*a): return Agrees(crc32c(*a))
"""

# A function that the writer's modules import by name is replaced in its own module before anyone imports it.
KILLS = [
    Mutant(
        "no-chunk-journal",
        "journal write: the chunks of a slab are not journaled",
        "kills",
        "import shardwright.kernels.journal_kernels as m\nm.journal_chunks = lambda *a: 0",
    ),
    Mutant(
        "no-frame-journal",
        "journal write: the frames of a slab are not journaled",
        "kills",
        "import shardwright.kernels.journal_kernels as m\nm.journal_frames = lambda *a: 0",
    ),
    Mutant(
        "no-staging",
        "journal write: frames of unfinished slabs are not staged",
        "kills",
        "import shardwright.kernels.journal_kernels as m\nm.stage_frames = lambda *a: 0",
        ("--scene", "slow camera"),
    ),
    Mutant(
        "ack-before-store",
        "ordering: a slab is reported as stored before it is",
        "kills",
        """
import time
import shardwright.acquire.encoding as m
def run(self, state):
    job, command = self.job, self.job.command
    job.task_ended(m.TaskTimes(0, 0, job.overload.level, 0), 0, None)
    time.sleep(0.01)
    job.encoder.encode(command.frames, job.records, command.slab, command.files, self.first, self.stop, state, job.overload.level)
m.SlabTask.run = run
""",  # noqa: E501
    ),
    Mutant(
        "ack-before-staging",
        "ordering: a frame is reported as stored before it is staged",
        "kills",
        """
import time
import shardwright.acquire.encoding as m
stage = m.StageTask.run
def run(self, state):
    told = []
    self._send(None, None)
    time.sleep(0.01)
    stage(m.StageTask(self.command, self.area, self.encoder, self.samples, told.append), state)
m.StageTask.run = run
""",
        ("--scene", "slow camera"),
    ),
    Mutant(
        "ack-before-parts",
        "ordering: a frame is reported as stored before it is in its chunks",
        "kills",
        """
import time
import shardwright.acquire.encoding as m
def run(self, state):
    joined = [0 * of_chunk for of_chunk in self.encoder.join(m.np.zeros(1 << 20, "u1"), 0)]
    self._write()
    self._send(None, (joined[0], joined[1] == 1))
    time.sleep(0.01)
    self._put_in_place(state)
m.StageTask.run = run
""",
        ("--scene", "in place"),
    ),
    Mutant(
        "parts-not-synced",
        "sync: a frame in its chunks is durable once its record is",
        "power",
        """
import shardwright.acquire.core as m
def note_staged(self, row, sequences):
    self.shard_rows.note_frames(self._owner_of(row))
    self._ledger.add(m.STAGED, self._time.s, sequences, release=self._ledger.holds_pixels)
    if not self._ledger.holds_pixels:
        self._released.append(sequences)
m.Core._note_staged = note_staged
""",
    ),
    Mutant(
        "rename-first",
        "ordering: a shard gets its final name before its index",
        "kills",
        """
import os
import shardwright.shard.open_shard as m
finish = m.OpenShard._finish_file
def renamed_first(self, step):
    if (self.entries["offset"] != m.EMPTY).any():
        self._folders.make(self.final_path.parent)
        os.rename(self.working_path, self.final_path)
    return finish(self, step)
m.OpenShard._finish_file = renamed_first
m.rename_without_replacing = lambda source, target: None
""",
        ("--scene", "plain"),
    ),
    Mutant(
        "no-index",
        "write: the index of a shard",
        "kills",
        "import shardwright.disk.slot_file as m\nm.SlotFile.write = lambda self, offset, data: None",
    ),
    Mutant(
        "no-shard-row-block",
        "journal write: the frames of a sealed shard row do not go to the frame log",
        "kills",
        "import shardwright.shard.frame_log as m\nm.FrameLog.append_rows = lambda self, records: None",
    ),
    Mutant(
        "journal-deleted-first",
        "ordering: the journal is deleted before its frames are in the frame log",
        "kills",
        """
import shardwright.acquire.seal as m
name_shards = m.name_shards
def named(together, *a, **k):
    name_shards(together, *a, **k)
    for files in together.going:
        files.journal.path.unlink(missing_ok=True)
        files.journal.delete = files.journal.close
m.name_shards = named
""",
        ("--scene", "plain", "--io", "pwrite", "--count", "400"),
    ),
    Mutant(
        "staged-frames-forgotten",
        "recovery does not look into the staging area",
        "kills",
        "import numpy\nimport shardwright.scan.store_scan as m\n"
        "m._staged = lambda *a: (None, numpy.zeros(0, numpy.int64))",
    ),
    Mutant(
        "manifest-deleted-last",
        "ordering: the manifest outlives what it describes",
        "kills",
        """
import os
import shardwright.store.store_folder as m
def remove(self):
    for placement in reversed(self.placements()):
        folder = os.open(placement.workspace, os.O_RDONLY)
        for name in sorted(os.listdir(folder), key=lambda name: name.startswith("acquisition.")):
            os.unlink(name, dir_fd=folder)
        os.close(folder)
        placement.workspace.rmdir()
    self.close()
m.StoreFolder.remove_workspace = remove
""",
        ("--scene", "plain", "--io", "pwrite", "--syscall", "unlinkat"),
    ),
]

FENCING = [
    Mutant(
        "no-lock",
        "lock: nobody is kept out",
        "fencing",
        "import shardwright.disk.lock as m\nm._lock_file = lambda path, descriptor: None",
        ("-k", "one_gets_it"),
    ),
    Mutant(
        "no-epoch-check",
        "epoch check, and the look at the lock beside it, before every act that shows or destroys",
        "fencing",
        """
import shardwright.store.ownership as m
m.Ownership.may_rename = m.Ownership.may_remove = lambda self: None
""",
    ),
    Mutant(
        "no-new-epoch",
        "epoch: a take-over does not count",
        "fencing",
        """
import shardwright.shard.manifest as m
write = m.write_manifest
m.write_manifest = lambda workspace, manifest, *more, **named: write(workspace, __import__("dataclasses").replace(manifest, writer_epoch=1), *more, **named)
""",  # noqa: E501
    ),
    Mutant(
        "old-inodes",
        "fencing: a take-over uses files that the old writer still has open",
        "take-over",
        "import shardwright.recovery.resume as m\nm.take_files = lambda store, still_ours: store",
    ),
]

POWER = [
    Mutant(
        "no-shard-sync",
        "sync of a shard's data",
        "power",
        _NOTHING + "import shardwright.disk.slot_file as m\nm.SlotFile.sync = nothing",
        ("--filesystem", "btrfs"),
    ),
    Mutant(
        "no-journal-sync",
        "sync of a journal",
        "power",
        _NOTHING + "import shardwright.shard.journal as m\nm.ShardRowJournal.sync = nothing",
        ("--filesystem", "ext4"),
    ),
    Mutant(
        "no-staging-sync",
        "sync of the staging area",
        "power",
        _NOTHING + "import shardwright.shard.staging as m\nm.StagingArea.sync = nothing",
        ("--filesystem", "ext4"),
    ),
    Mutant(
        "no-log-sync",
        "sync of the frame log",
        "power",
        _NOTHING + "import shardwright.shard.frame_log as m\nm.FrameLog.sync = nothing",
        ("--filesystem", "ext4"),
    ),
    Mutant(
        "no-directory-sync",
        "directory sync, everywhere",
        "power",
        _NOTHING + "import shardwright.disk.files as m\nm.sync_directory = nothing",
        ("--filesystem", "xfs", "--seed", "20"),
    ),
    Mutant(
        "rename-before-sync",
        "ordering: a shard is renamed before it is synced",
        "power",
        """
import shardwright.shard.open_shard as m
m.OpenShard.sync = lambda self: None
""",
        ("--filesystem", "btrfs"),
    ),
]

FAULTS = [
    Mutant(
        "write-errors-swallowed",
        "error of a kernel's system call",
        "faults",
        "import shardwright.acquire.encoding as m\nm.raise_errno = lambda number: None",
    ),
    Mutant(
        "sync-errors-swallowed",
        "error of a sync",
        "faults",
        """
import shardwright.disk.slot_file as m
sync = m.SlotFile.sync
def quiet(self):
    try:
        sync(self)
    except OSError:
        pass
m.SlotFile.sync = quiet
""",
    ),
    Mutant(
        "sparse-shards",
        "preallocation: shards are only made long",
        "faults",
        "import os\nimport shardwright.disk.files as m\n"
        "m.preallocate = lambda fd, nbytes, *, start=0: os.ftruncate(fd, start + nbytes) is None",
    ),
]

FORMATS = [
    Mutant(
        "no-index-checksum",
        "checksum test of a shard's index",
        "formats",
        """
import numpy
import shardwright.shard.index as m
m.LittleEndian.decode = lambda self, data, chunks: numpy.frombuffer(data[:-4], m.INDEX_ENTRY)
""",
    ),
    Mutant(
        "no-chunk-checksum-in-recovery",
        "checksum test of a chunk that a journal names",
        "recovery",
        """
import shardwright.shard.read_back as m
m._check_chunks = lambda pool, shard, table, believed, progress: 0
""",
    ),
]

FORMATS += [
    Mutant(
        f"no-{name}-checksum",
        f"checksum test of {what}",
        suite,
        "import shardwright.shard.row_checksum as m\nm.checked_rows = lambda rows, seed: m.written_rows(rows)"
        if name == "journal-entry"  # of all rows at once
        else f"{_AGREES}import {module} as m\nm.crc32c = types.SimpleNamespace(crc32c=agreeing)",
    )
    for name, what, module, suite in (
        (
            "header",
            "the header page of a journal and of the staging area",
            "shardwright.shard.file_header",
            "formats",
        ),
        (
            "journal-entry",
            "chunk entries and frame records in a journal",
            "shardwright.shard.journal",
            "formats",
        ),
        ("staged-pixels", "the pixels of a staged frame", "shardwright.shard.staging", "formats"),
        ("frame-log", "blocks of the frame log", "shardwright.shard.frame_log", "formats"),
        ("inner", "a chunk that ends in a crc32c of its own", "shardwright.codecs.decode", "formats"),
    )
]
FORMATS.append(
    Mutant(
        "no-manifest-checksum",
        "checksum test of the manifest",
        "formats",
        """
import shardwright.shard.checked_json as m
class Agrees(bytes):
    __hash__ = bytes.__hash__
    def __eq__(self, other): return True
    def __ne__(self, other): return False
encode = m.encode_checked
m.encode_checked = lambda facts: Agrees(encode(facts))
""",
    )
)

COMPACTION = [
    Mutant(
        "compact-no-file-sync",
        "compaction: sync of the packed file",
        "power-compaction",
        """
import os
import shardwright.disk.working_file as m
finish = m.WorkingFile.finish
def unsynced(self, nbytes):
    sync, os.fsync = os.fsync, lambda descriptor: None
    try:
        finish(self, nbytes)
    finally:
        os.fsync = sync
m.WorkingFile.finish = unsynced
""",
        ("--filesystem", "btrfs"),
    ),
    Mutant(
        "compact-no-directory-sync",
        "compaction: sync of the folder in which a packed file got its name",
        "power-compaction",
        _NO_SYNC_OF_NAMES,
        ("--filesystem", "xfs"),
    ),
    Mutant(
        "compact-no-verification",
        "compaction: what the disk gives back is not compared",
        "compaction",
        _NOTHING + "import shardwright.rework.shard_copy as m\nm.check_copy = nothing",
        ("-k", "back_wrong"),
    ),
    Mutant(
        "compact-in-place",
        "compaction: the packed bytes are written over the old file, instead of a rename",
        "compaction",
        """
import os
import shardwright.disk.working_file as m
def write_over(self, target, may_replace):
    data = self.path.read_bytes()
    descriptor = os.open(target, os.O_WRONLY)
    for offset in range(0, len(data), 4096):
        m.reach("compact.before_write")
        os.pwrite(descriptor, data[offset : offset + 4096], offset)
    m.reach("compact.before_truncate")
    os.ftruncate(descriptor, len(data))
    os.fsync(descriptor)
    os.close(descriptor)
    self._file.discard()
m.WorkingFile.replace = write_over
""",
        ("-k", "kill and pack"),
    ),
    Mutant(
        "compact-no-source-check",
        "compaction: whether the source was written to meanwhile is not looked at",
        "compaction",
        "import shardwright.rework.source_shard as m\nm.SourceShard.is_as_it_was = lambda self: True",
        ("-k", "written_to"),
    ),
    Mutant(
        "compact-leftovers-stay",
        "compaction: working files of a job that died are not cleared",
        "compaction",
        "import shardwright.rework.runtime.work_folder as m\nm.WorkFolder.clear_leftovers = lambda self: []",
        ("-k", "kill and pack"),
    ),
]

MOVES = [
    Mutant(
        "move-no-file-sync",
        "move: sync of a file at the destination, and of the record",
        "power-move",
        "import os\nos.fsync = os.fdatasync = lambda descriptor: None",
    ),
    Mutant(
        "move-no-directory-sync",
        "move: sync of the folder in which a file got its name at the destination",
        "move",
        _NO_SYNC_OF_NAMES
        + "import shardwright.rework.transfer.local_folder as n\nn.sync_directory = lambda path: None",
        ("-k", "every_name_at_the_destination"),
    ),
    Mutant(
        "move-no-deletion-sync",
        "move: the steps in which the source is deleted are not made durable one after another",
        "power-move",
        "import shardwright.rework.transfer.move_store as m\n"
        "m._sync_what_is_left = lambda folders: list(folders) and None",
        ("--filesystem", "btrfs"),
    ),
    Mutant(
        "move-no-read-back",
        "move: what the destination gives back is not compared",
        "move",
        "import shardwright.rework.transfer.transfer_item as m\nm._first_wrong = lambda *a: None",
    ),
    Mutant(
        "move-no-check-of-earlier-runs",
        "move: what earlier runs have sent is not read back before the source goes",
        "move",
        "import shardwright.rework.transfer.move_store as m\nm._StoreMove._lost = lambda *a: set()",
    ),
    Mutant(
        "move-deletion-not-recorded",
        "move: that deletion has begun is not written down before the first file goes",
        "move",
        "from shardwright.rework.transfer.move_record import MoveRecord\n"
        "MoveRecord.begin_deleting = lambda self: None",
    ),
    Mutant(
        "move-changed-source",
        "move: files that were changed after they were sent are deleted nevertheless",
        "move",
        "import shardwright.rework.transfer.move_store as m\n"
        "m._may_go = lambda root, file, record, found: file.relative_to(root).as_posix() in record.sent",
    ),
]

_RECOVERED = ("tests/acquire/test_resume.py::test_recovery_seals_every_stored_frame",)
_SIMULATED = ("tests/world/test_world.py::test_every_promise_is_kept",)
# what the quicker gear catches as well, of those of the long suites
_QUICK = {
    **dict.fromkeys(
        (
            "no-chunk-journal",
            "no-frame-journal",
            "no-staging",
            "no-index",
            "no-shard-row-block",
            "staged-frames-forgotten",
        ),
        _RECOVERED,
    ),
    **dict.fromkeys(
        (
            "rename-first",
            "parts-not-synced",
            "no-shard-sync",
            "no-journal-sync",
            "no-staging-sync",
            "no-log-sync",
            "no-directory-sync",
            "rename-before-sync",
        ),
        _SIMULATED,
    ),
}

MUTANTS: tuple[Mutant, ...] = tuple(
    replace(mutant, quick=_QUICK.get(mutant.name, ()))
    for mutant in (*KILLS, *FENCING, *POWER, *FAULTS, *FORMATS, *COMPACTION, *MOVES, *ROOMS)
)
