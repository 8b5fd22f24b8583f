"""What malloc costs a process that has made memory for messages ready, by the kernel's own count of its page
faults. Each in a process of its own: a heap is set up once."""

from __future__ import annotations

import subprocess
import sys

import pytest

from shardwright.disk import allocation_reserve

PART_BYTES, COUNT = 8 << 20, 6
PAGES_OF_A_LAP = COUNT * PART_BYTES // 4096

PROGRAM = """
import ctypes, re, resource, sys, threading
from pathlib import Path
from shardwright.disk.allocation_reserve import give_back, have_one_heap, make_ready

libc = ctypes.CDLL(None)
libc.malloc.argtypes, libc.malloc.restype, libc.free.argtypes = (ctypes.c_size_t,), ctypes.c_void_p, (ctypes.c_void_p,)
part_bytes, count, ready = int(sys.argv[1]), int(sys.argv[2]), sys.argv[3] == "ready"
if ready:
    assert have_one_heap()
    assert make_ready(count * (part_bytes + 4096))

def lap():
    parts = [libc.malloc(part_bytes) for _ in range(count)]
    for part in parts:
        ctypes.memset(part, 7, part_bytes)
    return parts

def receive():
    global parts
    parts = lap()

def resident():
    return 1024 * int(re.search(r"VmRSS:\\s+(\\d+)", Path("/proc/self/status").read_text()).group(1))

before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
for _ in range(3):
    thread = threading.Thread(target=receive)  # one thread receives, another lets go, as ZeroMQ's and ours do
    thread.start()
    thread.join()
    for part in parts:
        libc.free(part)
faults = resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
kept = resident()
give_back()
print(faults, kept - resident())
"""  # noqa: E501


def laps(how: str, part_bytes: int = PART_BYTES) -> tuple[int, int]:
    """Page faults of three laps of messages, and the bytes that the system then gets back."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(part_bytes), str(COUNT), how],
        capture_output=True,
        text=True,
        check=True,
    )
    faults, freed = map(int, done.stdout.split())
    return faults, freed


@pytest.mark.parametrize("part_bytes", [PART_BYTES, 40 << 20])
def test_messages_touch_no_fresh_memory_and_what_they_had_is_given_back(part_bytes: int) -> None:
    """Also parts that glibc would else map each by itself."""
    faults, freed = laps("ready", part_bytes)
    assert faults < PAGES_OF_A_LAP // 20
    assert freed > 0.9 * COUNT * part_bytes


def test_by_itself_each_message_would_be_fresh_memory() -> None:
    assert laps("as it is")[0] > PAGES_OF_A_LAP


LAPS = (
    PROGRAM[: PROGRAM.index("before = ")]
    + """
libc.malloc(1 << 20)
small, sizes = [], []
for number in range(60):
    assert make_ready(count * (part_bytes + 4096))
    parts = []
    for _ in range(count):
        parts.append(libc.malloc(part_bytes))
        ctypes.memset(parts[-1], 7, part_bytes)
        small.extend(libc.malloc(500) for _ in range(50))  # others allocate meanwhile, some of it for long
    for part in parts:
        libc.free(part)
    for piece in small[:-1000]:
        libc.free(piece)
    small = small[-1000:]
    sizes.append(resident())
print(max(sizes[5:]), sizes[5])
"""
)


def test_one_acquisition_after_another_makes_the_heap_no_larger() -> None:
    done = subprocess.run(
        [sys.executable, "-c", LAPS, str(PART_BYTES), str(COUNT), "ready"],
        capture_output=True,
        text=True,
        check=True,
    )
    most, early = map(int, done.stdout.split())
    assert most < early + PART_BYTES


def test_a_process_without_one_heap_and_another_c_library_are_left_alone(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(allocation_reserve, "_one_heap", False)
    with monkeypatch.context() as patched:
        patched.setattr(allocation_reserve, "_mallopt", lambda *_: pytest.fail("nothing is to be changed"))
        assert not allocation_reserve.make_ready(1 << 20)
        allocation_reserve.give_back()
    monkeypatch.setattr(allocation_reserve, "_libc", object())
    assert not allocation_reserve.have_one_heap()
    assert not allocation_reserve.make_ready(1 << 20)
    allocation_reserve.give_back()


RESIDENT = """
import resource
from shardwright.disk.allocation_reserve import have_one_heap, resident_bytes

assert have_one_heap()
resource.setrlimit(resource.RLIMIT_NOFILE, (0, resource.getrlimit(resource.RLIMIT_NOFILE)[1]))
before = resident_bytes()
memory = b"1" * (64 << 20)
print(before, resident_bytes() - before)
"""


def test_what_a_process_has_can_be_told_when_it_may_open_no_further_file() -> None:
    done = subprocess.run([sys.executable, "-c", RESIDENT], capture_output=True, text=True, check=True)
    before, more = map(int, done.stdout.split())
    assert before > 0
    assert 60 << 20 < more < 80 << 20


def test_a_system_that_does_not_tell_ends_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(allocation_reserve, "_one_heap", True)
    monkeypatch.setattr(allocation_reserve, "_status", -1)
    assert allocation_reserve.resident_bytes() == 0
