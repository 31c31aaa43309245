"""Optional folders of bench/.

Each says what it adds in files that are looked for, and nothing else imports it.
"""

from __future__ import annotations

from importlib import import_module
from typing import Any

from bench.spec.own_modules import ROOT

BENCH = ROOT / "bench"


def optional_folders(*modules: str) -> list[str]:
    """Return the packages of bench/ with any of these modules, such as ``phases.explain``."""
    found = set()
    for module in modules:
        for place in (f"*/{module}.py", f"phases/*/{module}.py"):
            for path in BENCH.glob(place):
                found.add(".".join(path.parent.relative_to(BENCH).parts))
    return sorted(found)


def definitions(module: str, name: str) -> list[Any]:
    """Return what each optional folder that has a module defines there by a name."""
    found = []
    for folder in optional_folders(module):
        found.append(getattr(import_module(f"bench.{folder}.{module}"), name))
    return found
