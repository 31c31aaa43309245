"""The folders of runs: what each is called in a report, which is a copy of another, and where the report goes."""

from __future__ import annotations

import hashlib
import itertools
import json
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

LONGEST = 150
"""Characters of a report folder's name; file systems take 255 bytes."""
MARK = re.compile(r'<meta name="runs" content="(\w+)">')
HEAD = 2000
"""Characters of a page within which its mark lies."""


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


def copies(infos: Mapping[Path, Mapping[str, Any]]) -> dict[Path, Path]:
    """Return the folders that are copies of another, each with that other: the one with more rows, else the first.

    Args:
        infos: run.json of each folder. Runs are one where name, host, start and GPUs are the same; without a start
            nothing tells.
    """
    same: dict[str, list[Path]] = {}
    for folder, info in infos.items():
        same.setdefault(_identity(folder, info), []).append(folder)
    kept = {folder: max(alike, key=_size) for alike in same.values() for folder in alike}
    return {folder: other for folder, other in kept.items() if folder != other}


def _identity(folder: Path, info: Mapping[str, Any]) -> str:
    """Return what no other run has: copies of one have it in common."""
    found = info.get("environment")
    machine = found if isinstance(found, dict) else {}
    devices = [one for one in machine.get("devices") or [] if isinstance(one, dict)]
    boards = tuple(str(one.get("uuid")) for one in devices)
    key = (info.get("run"), machine.get("host"), info.get("started"), boards)
    return str(key) if info.get("started") else str(folder)


def mark(infos: Mapping[Path, Mapping[str, Any]]) -> str:
    """Return a digest by which a report of these runs is told from one of others, whatever their folders are called.

    Args:
        infos: run.json of each folder.
    """
    runs = sorted({_identity(folder, info) for folder, info in infos.items()})
    return hashlib.sha256("\n".join(runs).encode()).hexdigest()[:16]


def report_folder(folders: Sequence[Path], within: Path) -> Path:
    """Return where the report of some runs belongs: under their names, numbered where a report of others is there.

    A report without a mark, of an earlier version, is taken for one of these runs.
    """
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    own, first = mark({folder: _info(folder) for folder in unique}), within / report_name(unique)
    numbered = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(place for place in itertools.chain([first], numbered) if _marked(place) in ("", own))


def _marked(folder: Path) -> str:
    """Return the mark of the report that a folder holds; empty where there is none."""
    page = folder / "report.html"
    if not page.is_file():
        return ""
    with page.open(encoding="utf-8", errors="replace") as file:
        found = MARK.search(file.read(HEAD))
    return found[1] if found else ""


def _info(folder: Path) -> dict[str, Any]:
    """Read run.json; empty where that cannot be done, of which whoever reads the whole run tells."""
    try:
        info = json.loads((folder / "run.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return info if isinstance(info, dict) else {}


def _size(folder: Path) -> int:
    trials = folder / "trials.csv"
    return trials.stat().st_size if trials.is_file() else 0


def shown(folder: Path) -> str:
    """Write a folder's path, as short as it is from here."""
    here = Path.cwd()
    return str(folder.relative_to(here) if folder.is_relative_to(here) else folder)
