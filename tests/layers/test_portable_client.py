"""The camera's side must import on Windows and macOS: no compiler, no codec library, nothing that only Linux
or Unix has."""

import subprocess
import sys

ABSENT = ("blosc2", "fcntl", "grp", "llvmlite", "numba", "pwd", "resource", "termios")

SCRIPT = f"""
import sys
for name in {ABSENT!r}:
    sys.modules[name] = None  # importing it raises ModuleNotFoundError
import os, socket
for module, names in ((os, ("memfd_create", "sched_getaffinity", "posix_fallocate", "O_DIRECT")), (socket, ("AF_UNIX", "SCM_RIGHTS"))):
    for name in names:
        if hasattr(module, name):
            delattr(module, name)
import shardwright as sw
sw.connect, sw.ArraySpec, sw.Receipt, sw.errors
import shardwright.simulate.camera_loop, shardwright.simulate.photons
loaded = [name for name in sys.modules if name.startswith("shardwright.")]
rooms = sorted({{name.split(".")[1] for name in loaded}})
print(" ".join(rooms))
"""  # noqa: E501


def test_the_client_imports_without_linux_and_without_compilers():
    done = subprocess.run([sys.executable, "-c", SCRIPT], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert set(done.stdout.split()) <= {"array", "client", "model", "simulate", "wire"}
