"""The door for mesoSPIM-control: ``shardwright_writer.py``, an image writer that it finds in ``FOLDER``.

mesoSPIM-control's configuration, which is Python, names that folder (README.md has the lines). The client
alone suffices: ``pip install shardwright`` on the microscope's computer, and a daemon on another one.
"""

from __future__ import annotations

from pathlib import Path

FOLDER = str(Path(__file__).parent)
