"""``shardwright check``: will this configuration run here, why not, and will it keep up.

check_report.py    the report: all findings, the plan, the verdict on the cameras
start.py           the start of the daemon, tried and undone
output_folder.py   each output folder: its filesystem, how fast, for how long
computer.py        the computer: memory, kernel, clock, libraries
measure.py         the rates that it can hold: each stage alone (stages.py), then short acquisitions
                   (trial_runs.py)
verdict.py         the conclusions: which camera can be held, what binds, what to change. Pure
"""
