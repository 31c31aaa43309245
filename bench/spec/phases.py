"""All phases: each folder of bench/phases/ has one, and no list names them."""

from __future__ import annotations

import importlib
from pathlib import Path

from bench.spec.phase import Phase

FOLDER = Path(__file__).resolve().parents[1] / "phases"


def _found() -> list[Phase]:
    folders = [path.parent.name for path in FOLDER.glob("*/__init__.py")]
    phases: list[Phase] = [importlib.import_module(f"bench.phases.{name}").PHASE for name in folders]
    return sorted(phases, key=lambda phase: phase.order)


PHASES: dict[str, Phase] = {phase.name: phase for phase in _found()}
"""By name, in the order in which they run within a cell."""
SELECTABLE = tuple(name for name, phase in PHASES.items() if phase.option == "--phases")
"""The choices of ``--phases``."""
SWITCHES: dict[str, tuple[str, ...]] = {
    switch: tuple(name for name, phase in PHASES.items() if phase.option == switch)
    for switch in dict.fromkeys(phase.option for phase in PHASES.values() if phase.help)
}
"""The options of phases' own, such as ``--name``, each with the phases that it adds."""
ABLATIONS = tuple(name for name, phase in PHASES.items() if phase.is_ablation)
"""The phases that plan ablations."""
MEASURING = {name: phase for name, phase in PHASES.items() if not phase.is_ablation}
"""The phases that measure, and so have a CSV."""
SEARCHES = tuple(name for name, phase in PHASES.items() if phase.searches)
"""The phases that search a batch size."""
FIND_UNFIT = tuple(name for name, phase in PHASES.items() if phase.finds_unfit)
"""The phases that find out which arms fit."""
USUAL = tuple(name for name, phase in PHASES.items() if phase.default)
"""The phases that run where neither option says otherwise."""
