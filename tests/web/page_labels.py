"""The words of the status page by which its picture in the README is compared with it."""

from __future__ import annotations

import re

from tests.harness.json_process import ROOT

PICTURE = ROOT / "src/shardwright/web/page.png"
KEY = "labels"  # of the words in the picture, which ``tests.daemon.page_picture`` makes


def page_labels() -> str:
    """Returns the words of the page's buttons, headings, numbers, plots and columns."""
    page = (PICTURE.parent / "static/index.html").read_text(encoding="utf-8")
    found = re.findall(r"<(?:button|h2|dt|figcaption|th|abbr)\b[^>]*>([^<]+)", page)
    return ", ".join(label.strip() for label in found)
