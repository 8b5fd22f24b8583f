"""``shardwright check``: will this configuration run here, why not, and will it keep up.

check_report.py    the report: all findings, the plan, the verdict on the cameras
start.py           the start of the daemon, tried and undone
output_folder.py   each output folder: its filesystem, its room
trial.py           the cameras at full speed, all at once, through a daemon of their own
sample.py          the frames that they send
verdict.py         the conclusions: which camera can be held, how long the disk lasts. Pure
"""
