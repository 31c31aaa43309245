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
    names = []
    for folder in folders:
        size = 1
        while [other.parts[-size:] for other in folders].count(folder.parts[-size:]) > 1:
            size += 1
        names.append(plain(str(Path(*folder.parts[-size:])), one_line=True))
    return names


def report_name(folders: Sequence[Path]) -> str:
    """Name the report of runs, or folders of runs, after all of them; of very many after the first and their number."""
    unique = list(dict.fromkeys(folder.resolve() for folder in folders))
    names = [label.strip("/").replace("/", "-") or "runs" for label in labels(unique)]
    name = "+".join(names)
    return name if len(name) <= LONGEST else f"{names[0][: LONGEST // 2]}+{len(names) - 1}-more"


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
    name, number = report_name(folders), 1
    folder = within / name
    while _marked(folder / "report.html") not in ("", own):
        number += 1
        folder = within / f"{name}-{number}"
    return folder


def _marked(page: Path) -> str:
    """Return the mark of a report's page; empty where there is none."""
    found = MARK.search(page.read_text(encoding="utf-8", errors="replace")) if page.is_file() else None
    return found[1] if found else ""
