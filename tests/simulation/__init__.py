"""A simulated world around the real core, recovery table and accounts of an acquisition: seeded, without
files, threads or time.

story     drawn from a seed: array, settings, limits, frames, and the lives of the acquisition with their
          faults; data, so that it can be shrunk
world     plays a story: lets camera, workers, sealer and clock act in an order that the seed says, and kills
          whoever the story kills
process   one life: the core, its ring, and who carries out what it asks for
camera    the client: in order or not, resends what was not released, flushes, ends
sealer    the shard sealer's commands, in steps between which the process may die
workers   tasks of slabs and staged frames, likewise
shard row     the files of one shard row: made, encoded into, sealed, rewritten, read back
creation  how a store gets its name, played beside each story: processes that want the same one
disk      files and names: what is there, what was synced, what a power cut leaves
take_up   recovery: from a disk to the state with which the core is resumed
oracle    knows what was sent and what was acknowledged, and judges
shrink    makes a story that fails smaller
mends     defects that were mended, put back into the core: the simulation must find them

What is not simulated: the second root of ``on_full`` spill, compaction beside the writer, damaged journals
and headers, bits that rot by themselves, the names of shards that readers see grow, a store that is moved or
deleted, two threads within one step of sealer or worker (but they take the files of a shard row of several
shards in any order). Time never goes back, and pixels are numbers: codecs are not run.
"""
