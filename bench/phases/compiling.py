"""torch.compile, told apart: what it takes before the first ordinary step, and whether it comes back later."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence

import torch

from bench.data import random_batches
from bench.devices.backend import backend_of
from bench.measure.disturbance import Watch
from bench.spec.suite import Data
from bench.training import distributed
from bench.training.amp import apply
from bench.training.step import Arm, leave_gradients, synchronize
from bench.training.techniques import compilations

MOST_STEPS = 8
"""A model that is compiled again after so many steps of one shape has not finished; timing will tell."""


def compile_s(arm: Arm, data: Data, batch_size: int) -> float | None:
    """Let an arm compile, and return the seconds that took; None where it does not compile.

    Forward and backward run over one random batch until nothing is compiled any more. What they take beyond steps
    that compile nothing is what compiling takes. Nothing is learned from it: weights stay as they are, batch norm's
    statistics and the generators are put back, and gradients are dropped.

    Args:
        arm: newly built.
        data: what a sample is.
        batch_size: samples in the batches that it will be trained on.
    """
    if not arm.techniques.compile:
        return None
    apply(arm.precision)
    (batch,) = random_batches(data, batch_size=batch_size, count=1, device=arm.device, seed=0)
    buffers = [(buffer, buffer.clone()) for buffer in arm.model.buffers()]
    spent_s = until_compiled(lambda: leave_gradients(arm, *batch), arm.device)
    arm.optimizer.zero_grad(set_to_none=True)
    with torch.no_grad():
        for buffer, held in buffers:
            buffer.copy_(held)
    return spent_s


def until_compiled(step: Callable[[], object], device: torch.device) -> float:
    """Repeat a step until nothing is compiled in it; return the seconds beyond as many ordinary ones.

    Args:
        step: the same each time; the generators are put back after it.
        device: where it runs.
    """
    spent, steps = 0.0, 0
    with backend_of(device).fork_rng():
        while True:
            before = compilations()
            synchronize(device)
            start = time.perf_counter()
            step()
            synchronize(device)
            step_s = time.perf_counter() - start
            if compilations() == before or steps == MOST_STEPS:
                break
            spent, steps = spent + step_s, steps + 1
    return max(0.0, spent - steps * step_s)


class Recompilations:
    """Whether anything was compiled since one last looked: it would be in what was timed meanwhile."""

    def __init__(self) -> None:
        self._seen = compilations()

    def cause(self) -> str:
        """Return ``recompiled`` where something was, or nothing."""
        before, self._seen = self._seen, compilations()
        return "recompiled" if self._seen != before else ""


def watched_edge(disturbance: Watch, members: Sequence[str] = ()) -> Callable[[], str]:
    """Return what names, between two quads, what disturbed the last: on the device, or something compiled in it.

    Of processes that train together each hears what any of them saw.

    Args:
        disturbance: watches the device; compiling is watched from now on.
        members: the devices' names where several train together, one a process.
    """
    recompilations = Recompilations()

    def edge() -> str:
        causes = disturbance.edge(), recompilations.cause()  # both look, whatever the other says
        every = distributed.gathered("; ".join(cause for cause in causes if cause))
        return _agreed(every, members)

    return edge


def _agreed(causes: Sequence[str], members: Sequence[str]) -> str:
    """Return what disturbed any of the devices, so that all void the same quads; of several, each by its name."""
    if len(causes) == 1:
        return causes[0]
    return "; ".join(f"device {word}: {cause}" for word, cause in zip(members, causes, strict=True) if cause)
