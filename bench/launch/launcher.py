"""The interface between a run and whatever runs its trials, and the choice of the latter."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from bench.results.records import Device, Environment, Message
from bench.spec.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Ending:
    """How a process ended: ``done`` with a value, or why not."""

    kind: str
    """``done``, ``usage``, ``oom``, ``error``, ``died``, ``timeout``, or ``unsupported``, without a process."""
    value: Any = None
    text: str = ""


class Launcher(Protocol):
    """Runs functions of the worker, each in a fresh process, on this machine or elsewhere."""

    on_start: Callable[[int], None]
    """Called with the pid of each process that starts on this machine."""
    workspace: Path | None
    """Folder in which training keeps its checkpoints; None keeps none."""
    notes: list[str]
    """What a reader of the run must know about how it went."""

    @property
    def overlapping(self) -> bool:
        """Whether trials of different placements run at the same time."""

    def survey(self, gpus: tuple[str, ...] | None, /) -> Environment:
        """Describe the machine and the devices that were named."""

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker, ``module:name``, and return its value."""

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial and pass its records on."""

    def cancel(self) -> None:
        """End what is running in other threads."""

    def close(self) -> None:
        """Release what was held."""
