"""All phases: each folder of bench/phases/ has one, and no list names them."""

from __future__ import annotations

import importlib
from pathlib import Path

from bench.spec.phase import Phase

FOLDER = Path(__file__).resolve().parents[1] / "phases"


_found: list[Phase] = []
for path in FOLDER.glob("*/__init__.py"):
    _found.append(importlib.import_module(f"bench.phases.{path.parent.name}").PHASE)
# By name, in the order in which they run within a cell.
PHASES: dict[str, Phase] = {
    phase.name: phase for phase in sorted(_found, key=lambda phase: phase.order)
}


def _with(flag: str) -> tuple[str, ...]:
    """Return the names of the phases of which a field of ``Phase`` is true."""
    return tuple(name for name, phase in PHASES.items() if getattr(phase, flag))


# The choices of ``--phases``.
SELECTABLE = tuple(name for name, phase in PHASES.items() if phase.option == "--phases")
# The options of phases' own, such as ``--name``, each with the phases that it adds.
SWITCHES = {phase.option: (name,) for name, phase in PHASES.items() if phase.help}
# The phases that plan ablations.
ABLATIONS = _with("is_ablation")
# The phases that measure, and so have a CSV.
MEASURING = {name: phase for name, phase in PHASES.items() if not phase.is_ablation}
# The phases that search a batch size.
SEARCHES = _with("searches")
# The phases that run where neither option says otherwise.
USUAL = _with("default")
