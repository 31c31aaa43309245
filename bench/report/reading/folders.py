"""The folders of runs: what each is called in a report, and what the report is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.spec.text import plain

# Characters of a report folder's name; file systems take 255 bytes.
LONGEST = 100


def labels(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, absolute paths, each with as much of its path as no other ends in."""
    names = []
    for folder in folders:
        size = 1
        while [other.parts[-size:] for other in folders].count(folder.parts[-size:]) > 1:
            size += 1
        names.append(plain(str(Path(*folder.parts[-size:])), one_line=True))
    return names


def report_name(folders: Sequence[Path]) -> str:
    """Name the report of runs, or folders of runs, after all of them; of very many after the first and their number."""
    names = [folder.name for folder in dict.fromkeys(folder.resolve() for folder in folders)]
    name = "+".join(names)
    return name if len(name) <= LONGEST else f"{names[0][:LONGEST]}+{len(names) - 1}-more"


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """Return the runs that folders are, each once; of a folder that is no run, the runs that lie in it, by name."""
    runs: dict[Path, None] = {}
    for folder in folders:
        inside = (
            []
            if (folder / "run.json").is_file()
            else sorted(path.parent for path in folder.glob("*/run.json"))
        )
        runs |= dict.fromkeys(run.resolve() for run in inside or [folder])
    return list(runs)
