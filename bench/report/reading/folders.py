"""The folders of runs: what each is called in a report, and what the report is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.spec.text import plain

# Characters of a report folder's name; file systems take 255 bytes.
LONGEST = 100


def labels(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, absolute paths: with as much of each as no other ends in."""
    names = []
    for folder in folders:
        size = 1
        while [other.parts[-size:] for other in folders].count(folder.parts[-size:]) > 1:
            size += 1
        names.append(plain(str(Path(*folder.parts[-size:])), one_line=True))
    return names


def report_name(folders: Sequence[Path]) -> str:
    """Name the report of runs after all of them; of very many after the first and their number."""
    names = [folder.name for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    name = "+".join(names)
    return name if len(name) <= LONGEST else f"{names[0][:LONGEST]}+{len(names) - 1}-more"


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """Return the runs that folders are, each once; of another folder, the runs in it, by name."""
    runs: dict[Path, None] = {}
    for folder in folders:
        inside = [folder]
        if not (folder / "run.json").is_file():
            # A folder without any is named later, in the error of reading it.
            inside = sorted(path.parent for path in folder.glob("*/run.json")) or inside
        for run in inside:
            runs[run.resolve()] = None
    return list(runs)
