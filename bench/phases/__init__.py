"""The phases of a trial: a folder for each, see ``bench.spec.phase``."""

from __future__ import annotations

import importlib
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from bench.results.records import Device, Send
    from bench.spec.trial import Trial


def load_all() -> None:
    """Import what measures each phase, and torch with it.

    Processes that are forked from this one then have it.
    """
    from bench.spec.phases import MEASURING

    for name in MEASURING:
        _measuring_module(name)


def run(trial: Trial, device: Device, send: Send, checkpoint: Path | None = None) -> None:
    """Run the trial's phase in this process.

    A phase that keeps checkpoints gets the file, too: it goes on from the state in it, and keeps
    its state there.
    """
    from bench.spec.phases import PHASES

    measuring = _measuring_module(trial.phase)
    if PHASES[trial.phase].checkpoints:
        measuring.run(trial, device, send, checkpoint)
    else:
        measuring.run(trial, device, send)


def _measuring_module(name: str) -> Any:
    return importlib.import_module(f"{__name__}.{name}.measure")
