"""What a report that is written again leaves behind: figures and tables that only the one before referred to."""

from __future__ import annotations

import re
from pathlib import Path

FIGURE = re.compile(r"^!\[.*\]\(([\w.-]+)\.svg\)$", re.MULTILINE)
MATRIX = re.compile(r"(?<![^\s`(])(matrix-[^\s/\\]+\.csv)\b")
"""The ratios of a matrix of setups: no other CSV is a report's own."""


def referenced(page: Path) -> set[str]:
    """Return the names of the figures and matrices that a report.md refers to; none where it is not there."""
    if not page.is_file():
        return set()
    text = page.read_text(encoding="utf-8", errors="replace")
    figures = {f"{name}.{suffix}" for name in FIGURE.findall(text) for suffix in ("svg", "png")}
    return figures | set(MATRIX.findall(text))


def remove(folder: Path, names: set[str]) -> None:
    """Remove files of a folder by name; what is no file, or not there any more, stays as it is."""
    for name in names:
        if (folder / name).is_file():
            (folder / name).unlink()
