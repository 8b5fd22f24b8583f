"""``shardwright doctor``: is this machine fit for this configuration?

    measure.py   what the machine says: folders, limits, kernel, clock, libraries
    facts.py     all of it in one frozen object, beside what the plan needs
    checks.py    each finding is a small function of the facts, those about an output folder in
                 folder_checks.py
    finding.py   ok, warn or bad, what was found, what to do

Nothing is written but files without a name in each output root, to measure with, which are gone afterwards.
"""
