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
# Those that ``--phases`` takes; the others have options of their own, such as ``--ladder``.
SELECTABLE = tuple(phase.name for phase in _found if phase.option == "--phases")
# Those that only plan an ablation, whose trials are of other phases.
ABLATIONS = tuple(phase.name for phase in _found if phase.is_ablation)
# Those whose trials measure something, and that so have a CSV each: all others.
MEASURING = {phase.name: phase for phase in _found if not phase.is_ablation}
# Those that find the batch size at which the others then run.
SEARCHES = tuple(phase.name for phase in _found if phase.searches)
# Those that run where the command line names no phases: the default of ``--phases``.
DEFAULT_PHASES = tuple(phase.name for phase in _found if phase.default)
