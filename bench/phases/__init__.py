"""The phases of a trial: a folder for each, see ``bench.spec.phase``."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.results.records import Device, Message
    from bench.spec.trial import Trial


def load_all() -> None:
    """Import what measures each phase, and torch with it, so that processes which are forked from this one have it."""
    from bench.spec.phases import MEASURING

    for name in MEASURING:
        _measure(name)


def run(
    trial: Trial, device: Device, send: Callable[[Message], None], checkpoint: Path | None = None
) -> None:
    """Run the trial's phase in this process; one with checkpoints resumes from the file, and keeps its state there."""
    from bench.spec.phases import PHASES

    more = (checkpoint,) if PHASES[trial.phase].checkpoints else ()
    _measure(trial.phase).run(trial, device, send, *more)


def _measure(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}.measure")
