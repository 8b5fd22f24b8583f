"""The client in C, built once for a session."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from tests.wire.c_camera import CLIENT, SANITIZED, CCamera, compile_c, need_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path


@pytest.fixture(scope="session")
def camera_program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Under AddressSanitizer and UndefinedBehaviorSanitizer."""
    need_compiler()
    program = tmp_path_factory.mktemp("c") / "camera"
    sources = (CLIENT.parents[3] / "tests/wire/c/camera.c", CLIENT / "shardwright.c")
    compile_c(*SANITIZED, *sources, "-o", program)
    return program


@pytest.fixture
def camera(camera_program: Path) -> Iterator[Callable[[], CCamera]]:
    """Starts cameras, none of which is left behind."""
    cameras: list[CCamera] = []

    def start() -> CCamera:
        cameras.append(CCamera(camera_program))
        return cameras[-1]

    yield start
    for each in cameras:
        each.close()
