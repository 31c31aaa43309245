"""Blocks and epochs that made-up figures follow from: rows of speed and of training as a run has
them.
"""

import math
from collections.abc import Sequence
from dataclasses import fields, replace
from typing import Any

from bench.phases.floor import AGAIN
from bench.phases.speed import Speed
from bench.results.columns import derived
from bench.results.records import Block, EpochResult, TrialResult
from bench.run.derived_rows import with_derived
from bench.spec.phases import PHASES
from bench.spec.trial import Trial
from bench.stats import quantile, rounds_interval

ROUNDS, STEPS = 20, 3
"""Of a process whose row says nothing else."""


def gained(speedup: float, within: float = 0.0, rounds: int = ROUNDS) -> dict[str, float]:
    """The fields of an arm's row with this speedup over fp32 in its process, known to within a
    share of it.
    """
    half = math.log((1 + within) / (1 - within)) / 2
    error = half / quantile(rounds_interval([0.0] * rounds).freedom)
    return {"log_speedup": math.log(speedup), "log_speedup_error": error}


def measured(row: Any, phase: str) -> Any:
    """A row of a phase without what follows from its details."""
    names = (
        {field.name for field in fields(row)} & {*derived(PHASES[phase])} if row is not None else ()
    )
    return replace(row, **dict.fromkeys(names)) if names else row


def blocks_of(trial: Trial, results: Sequence[TrialResult]) -> list[Block]:
    """Blocks that give the step times and speedups that the rows of a process of speed say.

    All of the reference take the same time. Those of an arm with an interval are faster in half of
    the rounds, and slower in the other half.
    """
    speeds = {result.arm: result.row for result in results if isinstance(result.row, Speed)}
    speeds = {name: speed for name, speed in speeds.items() if speed.step_ms}
    if trial.phase == "floor":
        speeds = {name + AGAIN: speed for name, speed in speeds.items()}
    reference = trial.cell.reference
    wanted = {
        speed.step_ms * math.exp(speed.log_speedup)
        for speed in speeds.values()
        if speed.log_speedup is not None
    }
    if wanted and reference not in speeds:
        speeds = {
            reference: replace(next(iter(speeds.values())), step_ms=min(wanted), log_speedup=None),
            **speeds,
        }
    assert all(math.isclose(step_ms, speeds[reference].step_ms) for step_ms in wanted), (
        "which are no ratios of steps"
    )
    rounds = max((speed.rounds or ROUNDS for speed in speeds.values()), default=0)
    blocks = []
    for place, (name, speed) in enumerate(speeds.items()):
        steps = speed.block_steps or STEPS
        for number, log in enumerate(_logs(speed, rounds)):
            for position in (2 * place, 2 * place + 1):
                time_ms = speed.step_ms * steps / math.exp(log)
                skipped = (speed.skipped_steps or 0) if not number and position == 2 * place else 0
                where = {
                    "round": number,
                    "position": position,
                    "skipped_steps": skipped,
                    "start_s": 0.0,
                }
                blocks.append(
                    Block(trial=trial.id, precision=name, steps=steps, time_ms=time_ms, **where)
                )
    return blocks


def _logs(speed: Speed, rounds: int) -> list[float]:
    """How much faster than usual each round is, so that the interval is as wide as it is said to
    be.
    """
    half = (rounds - 1) // 2 or rounds // 2
    signs = [-1.0] * half + [0.0] * (rounds - 2 * half) + [1.0] * half
    width = (speed.log_speedup_error or 0.0) / (rounds_interval(signs).error or 1.0)
    return [width * sign for sign in signs]


def as_sent(trial: Trial, result: TrialResult) -> TrialResult:
    """A result as its process sends it."""
    return replace(result, row=measured(result.row, trial.phase))


def with_details(
    trial: Trial, results: Sequence[TrialResult], records: Sequence[object] = ()
) -> tuple[list[TrialResult], list[object]]:
    """Results as a process sends them, and its records, with blocks if there are none."""
    if not any(isinstance(record, Block | EpochResult) for record in records):
        records = [*records, *blocks_of(trial, results)]
    return [as_sent(trial, result) for result in results], [*records]


def figured(trial: Trial, sent: Sequence[object]) -> list[object]:
    """What a process sent, its results with the figures that follow from its records."""
    results = iter(
        with_derived(trial, [each for each in sent if isinstance(each, TrialResult)], sent)
    )
    return [next(results) if isinstance(each, TrialResult) else each for each in sent]
