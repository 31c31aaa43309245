"""How many processes a cell is measured in: further ones follow until its verdict is clear."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.phases.speed import Speed
from bench.spec.protocol import Protocol
from bench.spec.trial import Trial
from bench.stats import (
    ASSUMED_NOISE,
    EVIDENCE,
    STOPPING,
    Interval,
    aa_noise,
    disturbed,
    over_processes,
    verdict,
)

# The log-speedup of an arm in each process, and which of these were disturbed.
Processes = tuple[Sequence[Interval], Sequence[bool]]
# The rows of trials' arms, by the trial's id and the arm's name.
Measured = Mapping[str, Mapping[str, Speed]]


def is_enough(last: Trial, measured: Measured) -> bool:
    """Return whether the processes of a cell up to this trial are enough (``Phase.is_enough``)."""
    by_arm: dict[str, list[Speed]] = {}
    for number in range(last.replicate + 1):
        for name, speed in _speeds(replace(last, replicate=number), measured).items():
            by_arm.setdefault(name, []).append(speed)
    arms = []
    timed_s = 0.0
    for speeds in by_arm.values():
        timed_s = max(timed_s, sum(speed.timed_s for speed in speeds))
        arm = log_speedups(speeds)
        if arm[0]:
            arms.append(arm)
    if not arms:  # the baseline alone, or nothing was measured
        return True
    floor = replace(last, phase="floor", ablation=False)
    against_itself: list[Speed] = []
    for number in range(last.protocol.most_replicates):
        against_itself += _speeds(replace(floor, replicate=number), measured).values()
    noise = aa_noise(*log_speedups(against_itself))
    return enough(last.protocol, last.replicate + 1, arms, timed_s, noise)


def _speeds(trial: Trial, measured: Measured) -> dict[str, Speed]:
    """Return the speeds of a trial's arms in its process, whatever other arms that measured."""
    speeds = {}
    for name, row in measured.get(trial.id, {}).items():
        if name in trial.arm_names and row.step_ms is not None:
            speeds[name] = row
    return speeds


def enough(
    protocol: Protocol,
    count: int,
    arms: Sequence[Processes],
    timed_s: float,
    noise: float | None = None,
) -> bool:
    """Return whether the processes that have ended answer the question, or are all that may be.

    The question is answered when each arm's interval over the processes is as narrow as
    ``--target-ci`` asks; where nothing was asked, when each arm is faster or slower than the
    baseline, or the same. Processes that do not count are replaced by others.

    Args:
        protocol: what was asked, and what may be spent.
        count: processes that have ended, measured or not.
        arms: for each arm but the baseline, its log-speedup in each process that measured it, and
            which of these were disturbed; an arm that half of them or more did not measure is not
            waited for.
        timed_s: how long an arm has been timed, in all processes.
        noise: the A/A noise as a share; ``ASSUMED_NOISE`` where it is unknown.
    """
    if count < protocol.replicates:
        return False
    if count >= protocol.most_replicates or timed_s >= protocol.time_budget_s:
        return True
    noise = ASSUMED_NOISE if noise is None else noise
    return all(_answered(arm, protocol, noise) for arm in arms if 2 * len(arm[0]) > count)


def log_speedups(speeds: Sequence[Speed]) -> Processes:
    """Return the log-speedup of an arm in each process that has one, and which were disturbed."""
    measures = {}
    for name in EVIDENCE:
        measures[name] = [getattr(speed, name) for speed in speeds]  # None becomes NaN
    evidence = disturbed([speed.disturbance for speed in speeds], measures)
    processes = []
    is_disturbed = []
    for speed, is_evident in zip(speeds, evidence.tolist(), strict=True):
        gain = speed.log_gain()
        if gain is not None:
            processes.append(gain)
            is_disturbed.append(is_evident)
    return processes, is_disturbed


def _answered(arm: Processes, protocol: Protocol, noise: float) -> bool:
    reported = over_processes(*arm)
    if reported.n < protocol.replicates or reported.half_width is None:
        return False
    if protocol.target_ci is not None:
        return math.expm1(reported.half_width) <= protocol.target_ci  # as reports say it
    return verdict(reported.at(STOPPING), math.log1p(noise)) != "INCONCLUSIVE"
