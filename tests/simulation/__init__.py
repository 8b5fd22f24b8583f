"""A simulated world around the real core, recovery table and accounts of an acquisition: seeded, without files, threads or time.

story     drawn from a seed: array, settings, limits, frames, and the lives of the acquisition with their faults; plain data, so that it can be shrunk
world     plays a story: lets camera, workers, keeper and clock act in an order that the seed says, and kills whoever the story kills
process   one life: the core, its ring, and who carries out what it asks for
keeper    the shard keeper's commands, in steps between which the process may die
workers   tasks of slabs and staged frames, likewise
disk      files and names: what is there, what was synced, what a power cut leaves
take_up   recovery: from a disk to what the core goes on with
oracle    knows what was sent and what was acknowledged, and judges
shrink    makes a story that fails smaller
mends     known defects put back into the core, which the simulation must find
"""
