"""How many processes measure a cell: a few at first, then one at a time until the question is answered."""

from __future__ import annotations

import math
from collections.abc import Sequence

from bench.results.records import Speed
from bench.spec.trial import Protocol
from bench.stats import ASSUMED_NOISE, Interval, process_interval, verdict


def enough(protocol: Protocol, count: int, arms: Sequence[Sequence[Interval]], timed_s: float) -> bool:
    """Say whether the processes that have ended answer the question, or have used up what they may.

    The question is answered when each arm's interval over the processes is as narrow as ``--target-ci`` asks; where
    nothing was asked, when each arm is faster or slower than the baseline, or the same. Processes that are far off
    the others count for nothing here, so another is measured in their place.

    Args:
        protocol: what was asked, and what may be spent.
        count: processes that have ended, measured or not.
        arms: for each arm but the baseline, its log-speedup in each process that measured it; an arm that half of
            them or more did not measure is not waited for.
        timed_s: how long an arm has been timed, in all processes.
    """
    if count < protocol.replicates:
        return False
    if count >= protocol.most_replicates or timed_s >= protocol.time_budget_s:
        return True
    return all(_answered(process_interval(arm), protocol) for arm in arms if 2 * len(arm) > count)


def log_speedup(speed: Speed) -> Interval | None:
    """Return the logarithm of an arm's speedup in one process, with its interval; None where there is no speedup."""
    if speed.speedup is None:
        return None
    low, high = (math.log(end) if end else None for end in (speed.speedup_low, speed.speedup_high))
    return Interval(center=math.log(speed.speedup), low=low, high=high, n=speed.rounds)


def _answered(log: Interval, protocol: Protocol) -> bool:
    if log.n < protocol.replicates or log.half_width is None:
        return False
    if protocol.target_ci is not None:
        return math.expm1(log.half_width) <= protocol.target_ci  # as reports say it
    return verdict(log.exp(), ASSUMED_NOISE) != "INCONCLUSIVE"
