"""What the user asked for, before defaults are filled in."""

from __future__ import annotations

from dataclasses import dataclass

from bench.spec.phases import USUAL
from bench.spec.trial import Protocol, SuiteRef


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """What the command line asked for; None is the default, which may depend on the suite or the device."""

    suites: tuple[SuiteRef, ...]
    gpus: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    techniques: tuple[str, ...] = ()
    largest_batch: bool = False
    """Whether the largest batch that fits is looked for, and measured at, beside ``batch_sizes``."""
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """The parameters that ``suites`` vary, with their values as they were written."""
    epochs: int | None = None
    target_accuracy_pct: float | None = None
    clip_grad: float | None = None
    seeds: tuple[int, ...] = (0,)
    data: str | None = None
    data_dir: str = "data"
    phases: tuple[str, ...] = USUAL
    protocol: Protocol = Protocol()
    exclusive: bool = False
    on: str | None = None
    accelerators: tuple[str, ...] | None = None
