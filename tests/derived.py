"""Blocks and epochs that made-up figures follow from: rows of speed and of training as a run has
them.
"""

import math
from dataclasses import replace

from bench.phases.floor import AGAIN
from bench.phases.speed import Speed
from bench.results.columns import derived
from bench.results.records import Block, EpochResult, TrialResult
from bench.run.derived_rows import with_derived
from bench.spec.phases import PHASES
from bench.stats import quantile, rounds_interval

ROUNDS, STEPS = 20, 3
"""Of a process whose row says nothing else."""


def gained(speedup, within=0.0, rounds=ROUNDS):
    """The fields of an arm's row with this speedup over fp32 in its process, known to within a
    share of it.
    """
    freedom = rounds_interval([0.0] * rounds).freedom
    error = math.atanh(within) / quantile(freedom)
    return {"log_speedup": math.log(speedup), "log_speedup_error": error}


def blocks_of(trial, results):
    """Blocks that give the step times and speedups that the rows of a process of speed say.

    All of the reference take the same time. Those of an arm with an interval are faster in half of
    the rounds, and slower in the other half.
    """
    speeds = _speeds(trial, results)
    rounds = 0
    for speed in speeds.values():
        rounds = max(rounds, speed.rounds or ROUNDS)
    blocks = []
    for place, (name, speed) in enumerate(speeds.items()):
        steps = speed.block_steps or STEPS
        skipped = speed.skipped_steps or 0  # all in the first block
        for number, log in enumerate(_logs(speed, rounds)):
            time_ms = speed.step_ms * steps / math.exp(log)
            for position in (2 * place, 2 * place + 1):
                block = Block(
                    trial=trial.id,
                    precision=name,
                    round=number,
                    position=position,
                    steps=steps,
                    time_ms=time_ms,
                    skipped_steps=skipped,
                    start_s=0.0,
                )
                blocks.append(block)
                skipped = 0
    return blocks


def _speeds(trial, results):
    """The speeds by the names of blocks, with the reference's, which a speedup implies."""
    speeds = {}
    for result in results:
        if isinstance(result.row, Speed) and result.row.step_ms:
            name = result.arm + AGAIN if trial.phase == "floor" else result.arm
            speeds[name] = result.row
    reference = trial.cell.reference
    for speed in [*speeds.values()]:
        if speed.log_speedup is not None:
            step_ms = speed.step_ms * math.exp(speed.log_speedup)
            if reference not in speeds:
                slower = replace(speed, step_ms=step_ms, log_speedup=None)
                speeds = {reference: slower, **speeds}
            assert math.isclose(step_ms, speeds[reference].step_ms), "which are no ratios of steps"
    return speeds


def _logs(speed, rounds):
    """How much faster than usual each round is, so that the interval is as wide as it is said to
    be.
    """
    half = (rounds - 1) // 2 or rounds // 2
    middle = rounds - 2 * half
    signs = [-1.0] * half + [0.0] * middle + [1.0] * half
    error = rounds_interval(signs).error or 1.0
    width = (speed.log_speedup_error or 0.0) / error
    return [width * sign for sign in signs]


def as_sent(trial, result):
    """A result as its process sends it: without what follows from its details."""
    row = result.row
    for name in derived(PHASES[trial.phase]):
        if hasattr(row, name):
            row = replace(row, **{name: None})
    return replace(result, row=row)


def with_details(trial, results, records=()):
    """Results as a process sends them, and its records, with blocks if there are none."""
    details = [*records]
    if not any(isinstance(record, Block | EpochResult) for record in records):
        details += blocks_of(trial, results)
    sent = [as_sent(trial, result) for result in results]
    return sent, details


def figured(trial, sent):
    """What a process sent, its results with the figures that follow from its records."""
    results = [message for message in sent if isinstance(message, TrialResult)]
    completed = iter(with_derived(trial, results, sent))
    messages = []
    for message in sent:
        is_result = isinstance(message, TrialResult)
        messages.append(next(completed) if is_result else message)
    return messages
