"""Proof by power cuts: what a writer told is durable is there after any cut of the power, and a final shard
name always holds a whole shard.

requirements  what this machine must have, and what is missing
machine       mounts, loop devices and the recording disk; all gone with the process
write_log     what reached the recorded disk, in order
images        disks as a cut may leave them, laid out one after another
scenario      one run of the writer, drawn from a seed; what each frame holds
workload      the process that runs it and says when what was durable
mutants       ways to break the writer, to see the proof fail
recording     the log and the promises of one run; cuts drawn from them
judge         mounts one image, recovers, reads back
rounds        one recording and its images
__main__      many rounds, with a state file: ``python -m tests.power``
"""

# of compaction, beside packing: see ``jobs``
JOBS = ("move", "rechunk", "pyramid", "parity", "merge", "describe", "hdf5")
EDIT = "edit"  # updates of a shard: see ``edits``
