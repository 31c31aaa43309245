"""The folders of runs: what each is called in a report, and where the report goes."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from bench.results.run_json import read_run
from bench.spec.text import plain, plain_within

LONGEST = 150
"""Characters of a report folder's name; file systems take 255 bytes."""
MARK = re.compile(r'<meta name="runs" content="(\w+)">')
Info = Mapping[str, Any]
"""The content of run.json."""


def read_info(folder: Path) -> dict[str, Any]:
    """Read run.json, its texts plain."""
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


def identity(folder: Path, info: Info) -> str:
    """Return the name, host and start of a run, which only its copies share; without a start, its folder."""
    if not info.get("started"):
        return str(folder)
    return f"{info.get('run')} {info.get('environment', {}).get('host')} {info['started']}"


def mark(infos: Mapping[Path, Info]) -> str:
    """Return a digest of runs' identities, which tells a report of them from one of other runs."""
    runs = sorted(identity(folder, info) for folder, info in infos.items())
    return hashlib.blake2b("\n".join(runs).encode(), digest_size=8).hexdigest()


def report_folder(folders: Sequence[Path], within: Path) -> Path:
    """Return where the report of some runs belongs: under their names, numbered where a report of others is there."""
    own = mark({folder: read_info(folder) for folder in runs_in(folders)})
    first = within / report_name(folders)
    folder, number = first, 1
    while _marked(folder) not in ("", own):
        number += 1
        folder = first.with_name(f"{first.name}-{number}")
    return folder


def _marked(folder: Path) -> str:
    """Return the mark of the report that a folder holds; empty where there is none."""
    page = folder / "report.html"
    if not page.is_file():
        return ""
    found = MARK.search(page.read_text(encoding="utf-8", errors="replace"))
    return found[1] if found else ""


def shown(folder: Path) -> str:
    """Write a folder's path, as short as it is from here."""
    here = Path.cwd()
    return plain(str(folder.relative_to(here) if folder.is_relative_to(here) else folder), one_line=True)
