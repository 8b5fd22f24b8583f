"""Runs ``SHARDWRIGHT_SABOTAGE`` at the start of every Python process, before anything of the program is
imported by anyone else."""

import os

exec(compile(os.environ.get("SHARDWRIGHT_SABOTAGE", ""), "sabotage", "exec"))
