"""``shardwright plan --measure``: what this machine can hold of a configuration, found out with the cameras'
own arrays.

sample.py          frames to measure with: the user's, or simulated ones
stages.py          each stage alone: kernel, disk, memory, transport
acquisition.py     short real acquisitions, in this process and through a daemon, stage upon stage
private_daemon.py  that daemon, with this configuration and sockets of its own
scratch.py         the folder in the output root that all of it is written to, and that is gone afterwards
run.py             the order of it all, within a budget of time, disk and memory
results.py         what was found, frozen
verdict.py         what follows from it: which camera can be held, which floor binds, what to change. Pure
"""
