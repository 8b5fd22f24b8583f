"""The client in C, built by Debian's compiler, and the camera of ``c/camera.c`` that is told what to send."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from subprocess import PIPE
from typing import Any

import numpy as np
import pytest
from tests.harness.json_process import ROOT, JsonProcess, environment

CLIENT = ROOT / "src/shardwright/wire/c"
WARNINGS = ("-Wall", "-Wextra", "-Wpedantic", "-Werror", "-I", str(CLIENT))
SANITIZED = (
    "-g",
    "-O1",
    "-fno-omit-frame-pointer",
    "-fsanitize=address,undefined",
    "-fno-sanitize-recover=all",
)
LINKED = ("-lzmq", "-lpthread")


def need_compiler() -> None:
    """Skips where the programs of ``tools/setup`` are missing."""
    if not (shutil.which("gcc") and shutil.which("g++") and Path("/usr/include/zmq.h").exists()):
        pytest.skip("NOT TESTED: the client in C; apt-get install gcc g++ libc6-dev libzmq3-dev")


def compile_c(*arguments: str | Path, compiler: str = "gcc", standard: str = "c11") -> None:
    """Any warning is an error."""
    command = [compiler, f"-std={standard}", *WARNINGS, *map(str, arguments), *LINKED]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def drawn(number: int, shape: tuple[int, int] = (32, 48)) -> np.ndarray[Any, Any]:
    """The pixels of a frame, as ``camera.c`` draws them."""
    places = np.arange(shape[0] * shape[1], dtype=np.int64)
    return (1 + (number * 7919 + places * 31) % 65535).astype(np.uint16).reshape(shape)


class CCamera(JsonProcess):
    """A process; ``do`` has it call the client. It must end without a complaint of a sanitizer."""

    def __init__(self, program: Path) -> None:
        pipes = {"stdin": PIPE, "stdout": PIPE, "stderr": PIPE}
        super().__init__(subprocess.Popen([program], text=True, env=environment(), **pipes))

    def ask(self, *words: object) -> None:
        self.tell("\t".join(map(str, words)))

    def answer(self) -> dict[str, Any]:
        """That of the call; lines about single frames come before it."""
        while (said := self.next()) is not None:
            if "did" in said:
                return said
        raise AssertionError(f"the camera died: {self.exit_code()}, {self.process.stderr.read()}")

    def do(self, *words: object) -> dict[str, Any]:
        self.ask(*words)
        return self.answer()

    def good(self, *words: object) -> dict[str, Any]:
        said = self.do(*words)
        assert said["done"] == 0, said
        return said

    def wait_until_it_took(self, number: int) -> None:
        while (said := self.next()) is not None:
            assert "did" not in said, f"it stopped before frame {number}: {said}"
            if said["took"] >= number:
                return
        raise AssertionError(f"the camera died: {self.exit_code()}, {self.process.stderr.read()}")

    def connect(
        self,
        endpoint: str,
        transport: str = "auto",
        timeout_ms: int = 60_000,
        reconnect_ms: int = 120_000,
        keys: tuple[Path | str, Path | str] = ("-", "-"),
    ) -> dict[str, Any]:
        return self.do("connect", endpoint, transport, timeout_ms, reconnect_ms, *keys)

    def end(self) -> None:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        self.process.stdin.close()
        self.rest()
        errors = self.process.stderr.read()
        assert (self.exit_code(), errors) == (0, ""), errors
