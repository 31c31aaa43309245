"""What the user asked for, before defaults are filled in."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bench.spec.phases import USUAL
from bench.spec.trial import Protocol


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run's options, each checked by itself; None is the default, which may depend on the suite or the device."""

    argv: tuple[str, ...] = ()
    """The words of the command line, which a bare ``--resume`` repeats."""
    suites: tuple[str, ...] = ()
    """Names, or paths of files; empty only with ``resume``, whose run has them."""
    parameters: tuple[tuple[str, str], ...] = ()
    """Arguments of the suites' functions, as text."""
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    """Arguments to vary, each with its values, as text."""
    precisions: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    largest_batch: bool = False
    """Whether to search for the largest batch that fits and measure there, beside ``batch_sizes``."""
    techniques: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    """Names of placements."""
    on: str | None = None
    """Address of a Ray cluster: ray or ray://HOST:PORT."""
    accelerators: tuple[str, ...] | None = None
    exclusive: bool = False
    phases: tuple[str, ...] = USUAL
    protocol: Protocol = Protocol()
    epochs: int | None = None
    seeds: tuple[int, ...] = (0,)
    target_accuracy_pct: float | None = None
    clip_grad: float | None = None
    data: str | None = None
    data_dir: str = "data"
    out: Path | None = None
    resume: Path | None = None
    dry_run: bool = False
