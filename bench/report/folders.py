"""The folders of runs: what each is called in a report."""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path

LONGEST = 150
"""Characters of a report folder's name; file systems take 255 bytes."""


def labels(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, each with as much of its path as no other ends in.

    Args:
        folders: absolute paths, each once.
    """
    longest = max((len(folder.parts) for folder in folders), default=0)
    counts = [Counter(_end(folder, size) for folder in folders) for size in range(1, longest + 1)]
    return [
        next(end for size, found in enumerate(counts, 1) if found[end := _end(folder, size)] == 1) for folder in folders
    ]


def _end(folder: Path, size: int) -> str:
    return str(Path(*folder.parts[-size:]))


def report_name(folders: Sequence[Path]) -> str:
    """Name the report of some runs after all of them; of very many after the first, and a digest of all names."""
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = [label.strip("/").replace("/", "-") for label in labels(unique)]
    name = "+".join(names)
    if len(name) <= LONGEST:
        return name
    digest = hashlib.sha256(name.encode()).hexdigest()[:8]
    return f"{names[0][: LONGEST // 2]}+{len(names) - 1}-more-{digest}"
