"""Is this machine fit for a configuration, and will it keep up?

facts.py        what the machine says, and what the plan needs
checks.py       a finding for each question, as a small function of the facts; of a folder: folder_checks.py
measure.py      what this machine can hold, measured: each stage alone (stages.py), then short acquisitions
                (trial_runs.py)
verdict.py      what follows from it: which camera can be held, which floor binds, what to change. Pure
"""
