"""zarr-metadata, by the authors of zarr-python, judges every zarr.json that shardwright encodes in a test.

    encode_document  ->  a line of one file            in the process of pytest, and in those it starts
    after each test  ->  new lines are read and judged in the process of pytest

A child only adds a line, so that it starts as fast as ever and a kill loses nothing; it finds the file by its
environment (``child_site/sitecustomize.py``). Every document is judged. As that may take
milliseconds, those that differ only in their attributes are judged once: the format requires of attributes
only that they are an object.
"""

from __future__ import annotations

import contextlib
import json
import os
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path

VARIABLE = "SHARDWRIGHT_TEST_DOCUMENTS"


class DocumentOracle:
    """Judges the lines of the file at ``path``. One thread."""

    def __init__(self, path: Path) -> None:
        path.touch()
        self.path = path
        self._read_bytes = 0
        self._judged: set[int] = set()  # lines, by hash
        self._problems: dict[int, list[str]] = {}  # by document without its attributes, by hash

    def new_problems(self) -> list[str]:
        """Returns what is wrong with documents that were encoded since the last call."""
        if os.stat(self.path).st_size == self._read_bytes:  # noqa: PTH116 (after every test)
            return []
        with self.path.open("rb") as file:
            file.seek(self._read_bytes)
            lines = [line for line in file if line.endswith(b"\n")]  # the last one may be half there
        self._read_bytes += sum(map(len, lines))
        new = [line for line in dict.fromkeys(lines) if hash(line) not in self._judged]
        self._judged.update(map(hash, new))
        return [problem for line in new for problem in self._problems_of_line(line)]

    def _problems_of_line(self, line: bytes) -> list[str]:
        try:
            document = json.loads(line)
        except json.JSONDecodeError:  # empty, or of a process that was killed
            return []
        judged = document
        if isinstance(document, dict) and isinstance(document.get("attributes"), dict):
            judged = {**document, "attributes": {}}
        key = hash(json.dumps(judged))
        if key not in self._problems:
            self._problems[key] = problems_of(judged)
        return [f"{problem} in {json.dumps(document)[:1000]}" for problem in self._problems[key]]


def problems_of(document: Any) -> list[str]:
    """Returns what is wrong with a zarr.json, and with those that its consolidated metadata repeat."""
    from zarr_metadata.model import read_consolidated_metadata_v3, read_node_metadata_v3

    problems = [*read_node_metadata_v3(document).problems]
    if isinstance(document, dict) and "consolidated_metadata" in document:
        problems += read_consolidated_metadata_v3(document["consolidated_metadata"]).problems
    return [f"{'.'.join(map(str, problem.loc))}: {problem.message}" for problem in problems]


def watch(module: Any) -> None:
    """Adds a line for each document that ``module``, shardwright.array.document, encodes in this process and
    in those that are forked from it."""
    path = os.environ[VARIABLE]
    told: set[int] = set()
    encode = module.indented_json

    def indented_json(document: Any, **options: Any) -> bytes:
        text: bytes = encode(document, **options)
        # begins anew: the line before may be half there, of a process that was killed
        line = b"\n%b\n" % json.dumps(document).encode()
        if (number := hash(line)) not in told:
            told.add(number)
            # at once, so that processes do not mix their lines; a test may run where the file is out of reach
            with contextlib.suppress(OSError), open(path, "ab", buffering=0) as file:  # noqa: PTH123
                file.write(line)
        return text

    module.indented_json = indented_json
