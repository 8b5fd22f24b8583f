"""Recovery of unfinished stores: scan -> decide -> execute, to resume, take over, seal, or only examine
one."""
