"""tools/soak: two cameras near the sustainable rate for hours, a fault every minute, and at the end an exact
balance of frames.

soak.py       the run: measures the rate, breaks something every minute, ends in order
settings.py   what the command line chooses, and the configuration of the daemon
daemon.py     the daemon: started, killed, asked
camera.py     a camera, in a process of its own
cameras.py    the cameras as the soak sees them: what each sent and was told, over all of its deaths
ledger.py     numbers that a camera keeps in a file, so that they outlive it
faults.py     what is broken, by name
floods.py     bad messages and reloading browsers
judge.py      judges what has ended, deletes it, and makes room for the next
evidence.py   what is on disk of an acquisition, and its pixels
balance.py    holds what cameras sent and were told against it: each frame exactly once
watch.py      memory and descriptors of every process, and whether they are flat
report.py     what all that came to

Works on its own as ``python -m tests.soak``. Processes are started by ``tests.harness``, disks are those of
``tests.faults``, damage to messages that of ``tests.fuzz``.
"""
