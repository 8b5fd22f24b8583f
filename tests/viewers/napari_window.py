"""python napari_window.py: a real window of napari. Answers each line on standard input, a Python
expression, with its value as JSON, in the thread of the window and between its other events; with an empty
line it closes.

``viewer`` is the viewer, ``told`` the notifications so far, ``canvas()`` the picture as uint8[rows,
columns] of the brightest colour, in the middle ``SIDE`` pixels, ``growing()`` the number of stores that grow,
``get_reader`` and ``show`` ours, ``problem(call)`` the message of what it raises."""

import json
import select
import sys
import threading  # noqa: F401  (for expressions)
import warnings

warnings.simplefilter("ignore")
import napari  # noqa: E402
import numpy as np  # noqa: E402, F401
from napari.utils.notifications import notification_manager  # noqa: E402
from qtpy.QtCore import QTimer  # noqa: E402
from qtpy.QtWidgets import QApplication  # noqa: E402

from shardwright.integrations.napari import layers  # noqa: E402, F401
from shardwright.integrations.napari.reader import get_reader, show  # noqa: E402, F401

SIDE = 200
answers, sys.stdout = sys.stdout, sys.stderr  # a plugin may print
told: list[str] = []
notification_manager.notification_ready.connect(lambda notification: told.append(str(notification.message)))
viewer = napari.Viewer()


def canvas() -> list[list[int]]:
    QApplication.processEvents()
    picture = viewer.screenshot(canvas_only=True, flash=False)[..., :3].max(axis=-1)
    top, left = ((n - SIDE) // 2 for n in picture.shape)
    return picture[top : top + SIDE, left : left + SIDE].tolist()


def growing() -> int | None:
    module = sys.modules.get("shardwright.integrations.napari.growing_layers")
    return None if module is None else len(module._growing)


def problem(call) -> str:
    try:
        call()
    except Exception as error:
        return str(error)
    return ""


def answer() -> None:
    if not select.select([sys.stdin], [], [], 0)[0]:
        return
    line = sys.stdin.readline()
    if not line.strip():
        viewer.close()
        return
    try:
        value = {"value": eval(line, globals())}
    except Exception as error:
        value = {"raised": f"{type(error).__name__}: {error}"}
    print(
        json.dumps(value, default=lambda v: v.tolist() if hasattr(v, "tolist") else str(v)),
        file=answers,
        flush=True,
    )


timer = QTimer()
timer.timeout.connect(answer)
timer.start(10)
print("ready", file=answers, flush=True)
napari.run()
