"""The folders of runs: what each is called in a report, which is a copy of another, and where the report goes."""

from __future__ import annotations

import hashlib
import itertools
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results.run_json import read_run
from bench.spec.errors import UsageError
from bench.spec.text import plain, plain_within

LONGEST = 150
"""Characters of a report folder's name; file systems take 255 bytes."""
MARK = re.compile(r'<meta name="runs" content="(\w+)">')
HEAD = 2000
"""Characters of a page within which its mark lies."""
Info = Mapping[str, Any]
"""The content of run.json."""


def read_info(folder: Path) -> dict[str, Any]:
    """Read run.json, its texts plain; where there is none, the error names the runs next to it."""
    if not (folder / "run.json").is_file():
        if (folder / "report.html").is_file() or any(folder.glob("*/report.html")):
            runs = folder.parent.with_name("results") / folder.name
            which = shown(runs) if (runs / "run.json").is_file() else "results/NAME"
            raise UsageError(
                f"'{shown(folder)}' holds a report, not a run. Give the run's own folder, such as {which}."
            )
        known = sorted(path.parent.name for path in folder.parent.glob("*/run.json"))[:20]
        there = f"Runs next to it: {', '.join(known)}." if known else "There is none next to it either."
        raise UsageError(f"'{folder}' is no run: it has no run.json. {there} Give the folder that a run wrote.")
    info: dict[str, Any] = plain_within(read_run(folder))
    return info


def labels(folders: Sequence[Path]) -> list[str]:
    """Name runs by their folders, absolute paths, each with as much of its path as no other ends in."""

    def label(folder: Path) -> str:
        ends = (folder.parts[-size:] for size in range(1, len(folder.parts) + 1))
        return str(Path(*next(end for end in ends if sum(other.parts[-len(end) :] == end for other in folders) == 1)))

    return [plain(label(folder), one_line=True) for folder in folders]


def report_name(folders: Sequence[Path]) -> str:
    """Name the report of runs, or folders of runs, after all of them; of very many after the first and a digest."""
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = [label.strip("/").replace("/", "-") or "runs" for label in labels(unique)]
    name = "+".join(names)
    if len(name) <= LONGEST:
        return name
    digest = hashlib.blake2b(name.encode(), digest_size=4).hexdigest()
    return f"{names[0][: LONGEST // 2]}+{len(names) - 1}-more-{digest}"


def runs_in(folders: Iterable[Path]) -> list[Path]:
    """Return the runs that folders are, each once; of a folder that is no run, the runs that lie in it, by name."""
    runs: dict[Path, None] = {}
    for folder in folders:
        inside = [] if (folder / "run.json").is_file() else sorted(path.parent for path in folder.glob("*/run.json"))
        runs |= dict.fromkeys(run.resolve() for run in inside or [folder])
    return list(runs)


def copies(infos: Mapping[Path, Info]) -> dict[Path, Path]:
    """Return the folders that are copies of another, each with that other.

    The other is the one with more rows, else the first.

    Args:
        infos: run.json of each folder. Runs are one where name, host, start and GPUs are the same; without a start
            nothing tells.
    """
    same: dict[str, list[Path]] = {}
    for folder, info in infos.items():
        same.setdefault(_identity(folder, info), []).append(folder)

    def size(folder: Path) -> int:
        trials = folder / "trials.csv"
        return trials.stat().st_size if trials.is_file() else 0

    left_out: dict[Path, Path] = {}
    for alike in same.values():
        kept = max(alike, key=size)
        left_out |= {folder: kept for folder in alike if folder != kept}
    return left_out


def _identity(folder: Path, info: Info) -> str:
    """Return what no other run has: copies of one have it in common."""
    machine = info.get("environment", {})
    boards = tuple(str(device.get("uuid")) for device in machine.get("devices", []))
    key = (info.get("run"), machine.get("host"), info.get("started"), boards)
    return str(key) if info.get("started") else str(folder)


def mark(infos: Mapping[Path, Info]) -> str:
    """Return a digest of runs' run.json that tells a report of them from one of others, whatever the folders' names."""
    runs = sorted({_identity(folder, info) for folder, info in infos.items()})
    return hashlib.blake2b("\n".join(runs).encode(), digest_size=8).hexdigest()


def report_folder(folders: Sequence[Path], within: Path) -> Path:
    """Return where the report of some runs belongs: under their names, numbered where a report of others is there."""
    own, first = mark({folder: read_info(folder) for folder in runs_in(folders)}), within / report_name(folders)
    numbered = (first.with_name(f"{first.name}-{number}") for number in itertools.count(2))
    return next(folder for folder in itertools.chain([first], numbered) if _marked(folder) in ("", own))


def _marked(folder: Path) -> str:
    """Return the mark of the report that a folder holds; empty where there is none."""
    page = folder / "report.html"
    if not page.is_file():
        return ""
    with page.open(encoding="utf-8", errors="replace") as file:
        mark_of_page = MARK.search(file.read(HEAD))
    return mark_of_page[1] if mark_of_page else ""


def shown(folder: Path) -> str:
    """Write a folder's path, as short as it is from here."""
    here = Path.cwd()
    return plain(str(folder.relative_to(here) if folder.is_relative_to(here) else folder), one_line=True)
