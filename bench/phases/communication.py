"""What communicating costs: steps timed against the same steps that keep their gradients to themselves."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from bench.measure.quads import compare
from bench.measure.warmup import Cut
from bench.phases.runner import TorchRunner
from bench.spec.trial import Trial
from bench.training import distributed

SHARE = 0.3
"""Share of an arm's time budget that this may take beside it."""


class Silent(TorchRunner):
    """An arm whose processes keep their gradients to themselves."""

    def run(self, steps: int) -> None:
        """Queue steps without a word to the others."""
        forward: Any = self.arm.forward
        with forward.no_sync():
            super().run(steps)


def communication_pct(runner: TorchRunner, cut: Cut, clock: Callable[[], int], trial: Trial) -> float | None:
    """Return the share of a step by which it is longer for communicating; None where one process trains alone.

    In the processes' quads a step with communication is set against one without (DistributedDataParallel's
    ``no_sync``). What overlaps with backward costs nothing and is not in it. In it is all that ``no_sync`` leaves out:
    sending gradients, broadcasting the first one's buffers, and the wait of each step for the slowest process; without
    a word they wait for each other once a block.

    Args:
        runner: an arm that has been timed; its weights drift apart here.
        cut: how its blocks are cut.
        clock: the processes' shared one.
        trial: whose protocol says how long to look.
    """
    if distributed.ranks() == 1:
        return None
    fields = ("name", "arm", "batches", "asynchronous")
    silent = Silent(**{field: getattr(runner, field) for field in fields})
    protocol = replace(trial.protocol, time_budget_s=SHARE * trial.protocol.time_budget_s)
    found = compare([runner, silent], [cut.sizes, cut.sizes], protocol, seed=trial.seed, clock=clock)
    speedup = found.speedups[1]
    return None if speedup is None else 100 * (1 - 1 / speedup.center)
