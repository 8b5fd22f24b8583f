"""Every contender by name. A module is imported only in the child process that runs it."""

from __future__ import annotations

from importlib import import_module

from benchmarks.peers.contender import Contender

CONTENDERS = {
    "shardwright": ("ours", "InProcess"),
    "shardwright-mmap": ("ours", "InProcessMapped"),
    "shardwright-pwrite": ("ours", "InProcessPwrite"),
    "shardwright-direct": ("ours", "InProcessDirect"),
    "daemon-shm": ("daemon", "DaemonSharedMemory"),
    "daemon-message": ("daemon", "DaemonMessage"),
    "acquire-zarr": ("acquire", "AcquireZarr"),
    "tensorstore": ("tensorstore_writer", "TensorStore"),
    "zarrs": ("zarr_python", "Zarrs"),
    "zarr-python": ("zarr_python", "ZarrPython"),
    "floor-kernel": ("kernel_floor", "Kernel"),
    "floor-mmap": ("disk_floor", "Mapped"),
    "floor-pwrite": ("disk_floor", "Pwrite"),
    "floor-direct": ("disk_floor", "Direct"),
    "floor-together": ("together", "Together"),
    "core-kernel": ("one_core", "KernelCore"),
    "core-numcodecs": ("one_core", "NumcodecsCore"),
    "core-kernel-gathered": ("one_core", "KernelCoreGathered"),
    "core-numcodecs-gathered": ("one_core", "NumcodecsCoreGathered"),
}


def contender_class(name: str) -> type[Contender]:
    module, attribute = CONTENDERS[name]
    found = getattr(import_module(f".{module}", __package__), attribute)
    assert isinstance(found, type)
    assert issubclass(found, Contender)
    return found
