"""The real code in a simulated world: seeded, with a disk of its own, without threads or time.

story     drawn from a seed: array, settings, limits, frames, and the lives of the acquisition with their
          faults; data, so that it can be shrunk
world     plays a story: lets camera, workers, sealer and clock act in an order that the seed says, and kills
          whoever the story kills
process   one life: the real acquisition with its sealer and its workers, each a greenlet
camera    the client: in order or not, resends what was not released, flushes, ends
disk      files in memory, and beside them what the medium holds: what a power cut leaves
faults    errors of the disk, and no room
tables    the files that say what is stored, of which a byte may change: the frames that it is about
readers   the live view and the plain reading of files, held before any of their looks
finished_store
          what a reader finds in a finished store
oracle    knows what was sent and what was acknowledged, and judges
shrink    makes a story that fails smaller
surroundings
          the surroundings of the code that every world replaces

edits     processes that edit and pack the shards of one array, by stories of their own (edit_story), with
          disks that fail (edit_faults) and without threads (at_once); edited_array is what they change,
          edited_shard knows what a shard may hold then, edit_mutants what must be found

Simulated are time, the order of threads, clients and the disk's memory; everything else is the code of the
package as it stands. Not simulated:
- network filesystems, direct writes, a second root (its shards are spilled in ``tests/crash``);
- arrays without shards (``tests/acquire/test_plain_arrays.py``, ``tests/covering``);
- compaction by many processes;
- rot in zarr.json, the manifest, the record of shards and sealed shards (``verify`` tells of it);
- the wire: a client that never hears of an acknowledgement (``tests/wire``, ``tests/ingest/test_resume.py``);
- buckets: a put or a claim whose answer is lost (``tests/repack/test_lost_answers.py``).
"""
