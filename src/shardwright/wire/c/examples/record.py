"""Run as record.py LIBRARY ENDPOINT NAME STREAM: sends 20 frames to a stream of the daemon's configuration by
libshardwright.so alone, as any language can that calls C."""

from __future__ import annotations

import ctypes
import sys
from array import array
from ctypes import POINTER, byref, c_char, c_char_p, c_int, c_int64, c_size_t, c_void_p


class SwError(ctypes.Structure):
    _fields_ = [
        ("code", c_char * 40),
        *((name, c_char * 1024) for name in ("message", "expected", "got", "hint")),
    ]


class SwAcquisition(ctypes.Structure):
    _fields_ = [
        *((name, c_char_p) for name in ("name", "spec", "stream")),
        *(("reopen", c_int), ("frames_expected", c_int64)),
    ]


class SwProgress(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("frames", "dropped", "stored", "durable", "lost", "next")),
        *(("reconnects", c_int), ("is_shared", c_int), ("frame_bytes", c_size_t)),
    ]


class SwReceipt(ctypes.Structure):
    _fields_ = [
        *((name, c_int64) for name in ("received", "stored", "durable", "missing", "duplicate", "late")),
        *(("others", c_int64 * 10), ("is_known", c_int)),
    ]


def record(library: str, endpoint: str, name: str, stream: str) -> None:
    sw, error = ctypes.CDLL(library), SwError()
    sw.sw_connect.restype, sw.sw_path.restype = c_void_p, c_char_p
    sw.sw_append.argtypes = [c_void_p, c_char_p, c_size_t, c_void_p, c_int, POINTER(SwError)]
    client = c_void_p(sw.sw_connect(endpoint.encode(), None, byref(error)))
    try:
        if not client.value or sw.sw_open(
            client, byref(SwAcquisition(name.encode(), None, stream.encode())), 60_000, byref(error)
        ):
            sys.exit(f"{error.code.decode()}: {error.message.decode()} {error.hint.decode()}")
        progress, receipt = SwProgress(), SwReceipt()
        sw.sw_get_progress(client, byref(progress), None)
        for i in range(20):
            pixels = array("H", [i]) * (progress.frame_bytes // 2)
            if sw.sw_append(client, pixels.tobytes(), progress.frame_bytes, None, 60_000, byref(error)) < 0:
                sys.exit(f"{error.code.decode()}: {error.message.decode()}")
        if sw.sw_finish(client, byref(receipt), 60_000, byref(error)):
            sys.exit(f"{error.code.decode()}: {error.message.decode()}")
        print(f"{sw.sw_path(client).decode()}: {receipt.durable} frames durable")
    finally:
        sw.sw_close(client)


if __name__ == "__main__":
    record(*sys.argv[1:])
