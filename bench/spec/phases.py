"""All phases: each folder of bench/phases/ has one, and no list names them."""

from __future__ import annotations

import importlib
from pathlib import Path

from bench.spec.phase import Phase

FOLDER = Path(__file__).resolve().parents[1] / "phases"


_found: list[Phase] = []
for path in FOLDER.glob("*/__init__.py"):
    _found.append(importlib.import_module(f"bench.phases.{path.parent.name}").PHASE)
_found.sort(key=lambda phase: phase.order)
# By name, in the order in which they run within a cell.
PHASES = {phase.name: phase for phase in _found}
# The choices of ``--phases``.
SELECTABLE = tuple(phase.name for phase in _found if phase.option == "--phases")
# The phases that plan ablations.
ABLATIONS = tuple(phase.name for phase in _found if phase.is_ablation)
# The phases that measure, and so have a CSV.
MEASURING = {phase.name: phase for phase in _found if not phase.is_ablation}
# The phases that search a batch size.
SEARCHES = tuple(phase.name for phase in _found if phase.searches)
# The phases that run where no option names phases.
USUAL = tuple(phase.name for phase in _found if phase.default)
