"""The phases of a trial: a module for each, or for several, of ``bench.spec.phases``, and their common parts."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

from bench.results.records import Device, Message
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

RUNNERS: dict[str, Callable[..., Any]] = {
    name: importlib.import_module(f"{__name__}.{phase.module or name}").run for name, phase in PHASES.items()
}
"""Each phase's ``run``; a phase without a module fails here, at import."""


def run(trial: Trial, device: Device, send: Callable[[Message], None], checkpoint: Path | None = None) -> None:
    """Run the trial's phase in this process; one with checkpoints resumes from the file, and keeps its state there."""
    more = (checkpoint,) if PHASES[trial.phase].checkpoints else ()
    RUNNERS[trial.phase](trial, device, send, *more)
