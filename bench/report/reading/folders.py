"""The folders of runs: what each is called in a report, and what the report is called."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path

from bench.spec.text import plain

# Characters of a report folder's name: file systems take 255 bytes, and a character may need two.
LONGEST = 100


def name_runs(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, absolute paths: with as much of each as no other ends in."""
    names = []
    for folder in folders:
        for size in range(1, len(folder.parts) + 1):
            ending = folder.parts[-size:]
            endings = [other.parts[-size:] for other in folders]
            if endings.count(ending) == 1:
                break
        # The whole path, where no part of it is its own.
        path = Path(*ending)
        names.append(plain(str(path), one_line=True))
    return names


def report_name(folders: Sequence[Path]) -> str:
    """Name the report of runs after all of them; of very many after the first and their number."""
    names = []
    # A run that is given twice is one.
    for folder in dict.fromkeys(map(Path.resolve, folders)):
        names.append(folder.name)
    name = "+".join(names)
    if len(name) <= LONGEST:
        return name
    first = names[0][:LONGEST]
    return f"{first}+{len(names) - 1}-more"


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """Return the runs that folders are, each once; of another folder, the runs in it, by name."""
    runs = []
    for folder in folders:
        inside = []
        if not (folder / "run.json").is_file():
            inside = sorted(file.parent for file in folder.glob("*/run.json"))
        # A folder without any is named later, in the error of reading it.
        for run in inside or [folder]:
            path = run.resolve()
            if path not in runs:
                runs.append(path)
    return runs
