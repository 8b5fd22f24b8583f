"""The documents are read by people who keep the beginning of a sentence in mind until its end: no sentence is
too long for that."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    *sorted(ROOT.glob("*.md")),
    *(path for folder in ("src", "tests", "tools") for path in sorted((ROOT / folder).rglob("*.md"))),
]
MOST_WORDS = 45
# A user reads the newest version's section once, before an upgrade, to learn what changes for them. It fills
# with what was made and mended between two releases, which no user has seen, and then nobody finds the
# breaking changes in it. It was 288 lines once.
MOST_LINES_OF_A_VERSION = 160

_FENCE_OR_COMMENT = re.compile(r"^ *```.*?^ *```$|<!--.*?-->", re.DOTALL | re.MULTILINE)
_TABLE_OR_HEADING = re.compile(r"^ *(\||#).*$", re.MULTILINE)
_ITEM = re.compile(r"^ *([-*]|\d+\.) ", re.MULTILINE)
_CODE = re.compile(r"`[^`]*`")
_ADDRESS = re.compile(r"\]\([^)]*\)")
# Three dots leave something out, and end nothing. A bracket or the end of bold type may follow.
_END = re.compile(r"(?<=[^.\s][.!?])[)\"'*]*\s+")


def sentences(text: str) -> list[str]:
    """Returns the sentences of a Markdown document in order, without code blocks, tables and headings. A list
    item counts by itself, and so does what stands before a list."""
    for left_out in (_FENCE_OR_COMMENT, _TABLE_OR_HEADING):
        text = left_out.sub("\n\n", text)
    text = _ITEM.sub("\n\n", text)
    text = _ADDRESS.sub("]", text)
    found = []
    for block in re.split(r"\n\s*\n", text):
        line = " ".join(block.split())
        line = _CODE.sub(lambda code: code[0].replace(" ", "\0"), line)  # a dot in code ends nothing
        found += [part.replace("\0", " ") for part in _END.split(line) if part]
    return found


def too_long(text: str) -> list[str]:
    return [sentence for sentence in sentences(text) if len(sentence.split()) > MOST_WORDS]


def test_no_sentence_of_a_document_is_too_long() -> None:
    assert len(DOCUMENTS) > 15
    texts = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8") for path in DOCUMENTS}
    assert [(name, sentence) for name, text in texts.items() for sentence in too_long(text)] == []


def test_the_newest_versions_changes_are_read_in_one_go() -> None:
    text = (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
    newest = re.split(r"^(?=## \[)", text, flags=re.MULTILINE)[1]
    assert len(newest.splitlines()) <= MOST_LINES_OF_A_VERSION
    kinds = re.findall(r"^### (\w+)$", newest, re.MULTILINE)
    assert len(kinds) == len(set(kinds)), "one heading of each kind, or a reader stops at the first"


def test_sentences_are_told_apart() -> None:
    text = """# A heading. Of two.
<!-- A comment. -->
The first one, `a.py. B` and 0, 1, ...
then. (A second
one.) A [third](a.md. B):
- an item: with a colon
  on two lines. And more
- another

| a table. | With dots. |
|---|---|

```sh
code. More code.
```
1. **Bold.** The last
"""
    assert sentences(text) == [
        "The first one, `a.py. B` and 0, 1, ... then.",
        "(A second one.",
        "A [third]:",
        "an item: with a colon on two lines.",
        "And more",
        "another",
        "**Bold.",
        "The last",
    ]


def test_a_long_sentence_is_found_wherever_it_stands() -> None:
    longest = " ".join(["word"] * (MOST_WORDS - 1) + ["`the end`."]).replace("word word", "word\nword")
    for before in ("", "Short. ", "- Short. ", "| a table |\n|---|\n\n", "```sh\ncode\n```\n"):
        assert too_long(f"{before}{longest}") == [" ".join(longest.split())]
        assert too_long(before + longest.replace("word ", "", 1)) == []
