"""All phases: each folder of bench/phases/ has one, and no list names them."""

from __future__ import annotations

import importlib
from pathlib import Path

from bench.spec.phase import Phase

FOLDER = Path(__file__).resolve().parents[1] / "phases"


_found: list[Phase] = []
for path in FOLDER.glob("*/__init__.py"):
    _found.append(importlib.import_module(f"bench.phases.{path.parent.name}").PHASE)
PHASES: dict[str, Phase] = {phase.name: phase for phase in sorted(_found, key=lambda phase: phase.order)}
"""By name, in the order in which they run within a cell."""


def _with(flag: str) -> tuple[str, ...]:
    """Return the names of the phases of which a field of ``Phase`` is true."""
    return tuple(name for name, phase in PHASES.items() if getattr(phase, flag))


SELECTABLE = tuple(name for name, phase in PHASES.items() if phase.option == "--phases")
"""The choices of ``--phases``."""
SWITCHES = {phase.option: (name,) for name, phase in PHASES.items() if phase.help}
"""The options of phases' own, such as ``--name``, each with the phases that it adds."""
ABLATIONS = _with("is_ablation")
"""The phases that plan ablations."""
MEASURING = {name: phase for name, phase in PHASES.items() if not phase.is_ablation}
"""The phases that measure, and so have a CSV."""
SEARCHES = _with("searches")
"""The phases that search a batch size."""
USUAL = _with("default")
"""The phases that run where neither option says otherwise."""
