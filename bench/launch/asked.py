"""What must be the same on every node before they train together: the code, and what was asked."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import fields
from pathlib import Path

from bench.spec.request import Request

OWN = ("argv", "nodes", "data", "data_dir", "out", "resume", "dry_run")
"""What each node may say differently: who it is, where its images lie, and what concerns node 0 alone."""
CODE = "version of ampmeter"
WORDS = {
    "parameters": "--set or --weights",
    "protocol": "--quick, --rigorous, --target-ci or --time-budget",
    "largest_batch": "--batch-sizes",
    "target_accuracy_pct": "--target-accuracy",
}
"""Which options a field stands for that is not called as one is."""


def asked(command: Request) -> dict[str, str]:
    """Return a command line in plain words, with the code that reads it: equal on nodes that do the same."""
    found = {
        WORDS.get(field.name, f"--{field.name.replace('_', '-')}"): str(getattr(command, field.name))
        for field in fields(command)
        if field.name not in (*OWN, "suites", "gpus")
    }
    found["--gpus"] = ",".join(word for word in command.gpus or () if "@" in word)
    found["--suite"] = ",".join(_suite(word) for word in command.suites)
    return {CODE: _code(), **found}


def differing(mine: Mapping[str, str], others: Mapping[str, str]) -> list[str]:
    """Name what two nodes were asked differently."""
    return [name for name in {**mine, **others} if mine.get(name) != others.get(name)]


def _suite(word: str) -> str:
    """Name a suite by its name, or a file, wherever it lies, by what it holds."""
    if not word.endswith(".py") or not Path(word).is_file():
        return word
    return f"{Path(word).name} {_digest([Path(word)])}"


def _code() -> str:
    root = Path(__file__).resolve().parents[2]
    return _digest(sorted(path for package in ("bench", "suites") for path in (root / package).rglob("*.py")))


def _digest(files: list[Path]) -> str:
    found = hashlib.sha256()
    for file in files:
        found.update(file.name.encode() + b"\0" + file.read_bytes())
    return found.hexdigest()[:12]
