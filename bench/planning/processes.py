"""How many processes measure a cell: a few at first, then one at a time until the question is answered."""

from __future__ import annotations

from collections.abc import Sequence

from bench.spec.trial import Protocol
from bench.stats import ASSUMED_NOISE, Interval, process_interval, verdict


def enough(protocol: Protocol, arms: Sequence[Sequence[Interval]], timed_s: float) -> bool:
    """Say whether the processes that have ended answer the question, or have used up what they may.

    The question is answered when each arm's interval over the processes is as narrow as ``--target-ci`` asks; where
    nothing was asked, when each arm is faster or slower than the baseline, or the same. Processes that are far off
    the others count for nothing here, so another is measured in their place.

    Args:
        protocol: what was asked, and what may be spent.
        arms: for each arm but the baseline, its log-speedup in each process.
        timed_s: how long an arm has been timed, in all processes.
    """
    count = max(map(len, arms), default=0)
    if count < protocol.replicates:
        return False
    if count >= protocol.most_replicates or timed_s >= protocol.time_budget_s:
        return True
    return all(_answered(process_interval(arm), protocol) for arm in arms if arm)


def _answered(log: Interval, protocol: Protocol) -> bool:
    if log.n < protocol.replicates or log.half_width is None:
        return False
    if protocol.target_ci is not None:
        return log.half_width <= protocol.target_ci
    return verdict(log.exp(), ASSUMED_NOISE) != "INCONCLUSIVE"
