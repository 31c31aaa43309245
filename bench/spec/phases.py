"""All phases: each folder of bench/phases/ has one, and no list names them."""

from __future__ import annotations

import importlib
from pathlib import Path

from bench.spec.phase import Phase

FOLDER = Path(__file__).resolve().parents[1] / "phases"


def _found() -> list[Phase]:
    names = sorted(path.parent.name for path in FOLDER.glob("*/__init__.py"))
    phases: list[Phase] = [importlib.import_module(f"bench.phases.{name}").PHASE for name in names]
    return sorted(phases, key=lambda phase: phase.order)


PHASES: dict[str, Phase] = {phase.name: phase for phase in _found()}
"""By name, in the order in which they run within a cell."""
SELECTABLE = tuple(name for name, phase in PHASES.items() if phase.option == "--phases")
"""The choices of ``--phases``."""
LADDER = tuple(name for name, phase in PHASES.items() if phase.option == "--ladder")
"""The phases of ``--ladder``."""
USUAL = tuple(name for name, phase in PHASES.items() if phase.default)
"""The phases that run where neither option says otherwise."""
EXPLAIN = ("memory", "speed", "explain")
"""The phases of the command ``explain``: the gain, what it costs in memory, and why."""
