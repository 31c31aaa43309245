"""Finds what the folders of bench/ add to commands, launchers and reports.

A folder adds it in a file of a fixed name, such as command.py, and no list names the folder. What
may be deleted: bench/compare, bench/doctor, bench/ray, bench/script, and each phase but memory,
floor, speed and train.
"""

from __future__ import annotations

from functools import cache
from importlib import import_module
from typing import Any

from bench.spec.own_modules import ROOT

BENCH = ROOT / "bench"


@cache
def packages_with(module: str) -> tuple[str, ...]:
    """Return the packages of bench/ that have a module, such as ``phases.explain``, sorted."""
    packages = []
    for place in (f"*/{module}.py", f"phases/*/{module}.py"):
        for path in BENCH.glob(place):
            packages.append(".".join(path.parent.relative_to(BENCH).parts))
    return tuple(sorted(packages))


def definitions(module: str, name: str) -> list[Any]:
    """Return what each package that has a module defines there by a name."""
    found = []
    for package in packages_with(module):
        found.append(getattr(import_module(f"bench.{package}.{module}"), name))
    return found
