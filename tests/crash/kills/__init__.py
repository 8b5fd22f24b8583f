"""Acquisitions that are killed anywhere, and an oracle in another process that knows what they had promised.

scenes      what is acquired: a specification and a script of appends, flushes and pauses; every frame follows
            from its seed
processes   what the killed processes run: acquire, resume, recover
plans       when the kill comes: at the n-th storage call, at the n-th call of a system call, after some
            milliseconds
oracle      what was said before the kill, and what must then be readable
trial       one kill from beginning to verdict
"""
