"""``shardwright check``: will this configuration run here, why not, and will it keep up.

check_report.py    the answer: all findings, the plan, the verdict on the cameras
start.py           the start of the daemon, tried and undone
output_folder.py   each output folder: its filesystem, how fast, for how long
computer.py         the computer: memory, kernel, clock, libraries
measure.py         what it can hold, measured: each stage alone (stages.py), then short acquisitions
                   (trial_runs.py)
verdict.py         what follows from that: which camera can be held, what binds, what to change. Pure
"""
