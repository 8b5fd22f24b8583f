"""Acquisitions that are killed anywhere, and an oracle in another process that knows what they had promised.

scenes       what is acquired: a specification and a script of appends, flushes and pauses; every frame
             follows from its seed
processes    what the killed processes run: acquire, overwrite, resume, recover
plans        when the kill comes: at the n-th storage call, at the n-th call of a system call, after some
             milliseconds
oracle       what was said before the kill, and what must then be readable
trial        one kill of a writer from beginning to verdict
daemons      likewise of daemons under one client, with a reader and a follower beside it
live_reader  these two
suite        which trials there are, and the account of what came out
"""
