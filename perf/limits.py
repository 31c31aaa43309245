#!/usr/bin/env python3
"""Simulate what docs/limits.md says of the statistics: how often an interval misses, or a verdict is wrong, and where.

Each line is made by the shipped functions of the report, and of the rule that ends measuring.

    python perf/limits.py [--runs 2000]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path

import numpy as np

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench import stats
from bench.report.analysis import compare
from bench.report.analysis.contrast import Arm, Values, estimate, mean
from bench.report.analysis.judge import IMPROVED, judge, parity
from bench.run.execute import enough
from bench.spec.metrics import ACCURACY, MEMORY, SPEED, THROUGHPUT, Metric
from bench.spec.trial import Protocol
from bench.stats import Interval

CELL = ("run", "suite", "", "", "data", "Hopper", "GPU", "0")
SEED = 1
NORMAL = 1.959964


def arm(metric: Metric, values: Values, name: str = "", batch: int = 128, precision: str = "fp32") -> Arm:
    """Return an arm; without ``name`` its replicates make pairs with another's."""
    learned, count = metric.replicate == "seed", len(values)
    replicates = [(None if learned else name, number) for number in range(count)]
    own = np.full(count, bool(name))
    return Arm(key=(*CELL, batch, precision), values=values, replicates=replicates, alone=own)


def share(runs: int, once: Callable[[], bool]) -> str:
    """Return in how many of so many runs something was so."""
    return f"{100 * np.mean([once() for _ in range(runs)]):.1f} %"


def holds(interval: Interval, truth: float = 0.0) -> bool:
    """Say whether an interval has ends and holds the truth."""
    return interval.low is not None and interval.high is not None and interval.low <= truth <= interval.high


def wandering(rng: np.random.Generator, count: int, correlation: float) -> Values:
    """Return errors of rounds, each correlated with the last."""
    errors = rng.standard_normal(count)
    for place in range(1, count):
        errors[place] = correlation * errors[place - 1] + math.sqrt(1 - correlation**2) * errors[place]
    return errors


def until_enough(protocol: Protocol, processes: list[Interval]) -> Interval:
    """Return the interval over as many processes as are measured."""
    for count in range(protocol.replicates, protocol.most_replicates + 1):
        if enough(protocol, count, [processes[:count]], 3.0 * count, None):
            break
    return stats.process_interval(processes[:count])


def of_ten(rng: np.random.Generator, slower: float, noise: float) -> bool:
    """Say whether ten processes' interval holds the mean where 30 % are slower, with rounds of another noise."""
    is_slow = rng.random(10) < 0.3
    centers = rng.normal(np.where(is_slow, -0.7, 0.3) * slower, 0.003)
    rounds = [rng.normal(center, noise if slow else 0.01, 30) for center, slow in zip(centers, is_slow, strict=True)]
    return holds(stats.process_interval([stats.rounds_interval(each) for each in rounds]))


def in_turns(rng: np.random.Generator, rows: int, scatter: float) -> tuple[bool, bool]:
    """Say whether compare finds a change in a row, and in all, of equal sides that took three turns."""

    def side(row: int) -> Arm:
        turns = np.repeat(np.arange(3), 3)
        values = np.exp(rng.normal(0, scatter, 3)[turns] + rng.normal(0, 0.01, turns.size))
        names = [(rng.random(), place) for place in range(turns.size)]
        own = np.zeros(turns.size, bool)
        return Arm(key=(*CELL, row, "fp32"), values=values, replicates=names, alone=own, runs=tuple(turns.tolist()))

    cells = [contrast for row in range(rows) if (contrast := estimate(SPEED, side(row), side(row)))]
    families = [
        [compare._over_runs(cell, [cell], True) for cell in cells],
        [compare._over_runs(mean(cells), cells, True)],
    ]
    judged = [compare._judged(dict(enumerate(family)), None).values() for family in families]
    in_a_row, in_all = (any(change.is_shown for change in changes) for changes in judged)
    return in_a_row, in_all


def lines(runs: int) -> Iterator[tuple[str, str]]:
    """Yield what is simulated, and in how many runs it was so."""
    rng = np.random.default_rng(SEED)
    for count, correlation in product((20, 100), (0.3, 0.7)):
        yield (
            f"one process, {count} rounds correlated by {correlation}: holds the truth",
            share(runs, lambda n=count, c=correlation: holds(stats.rounds_interval(wandering(rng, n, c)))),
        )

    def unpaired() -> bool:
        sides = [
            arm(SPEED, np.exp(rng.normal(0, *shape)), name) for shape, name in (((0.05, 2), "a"), ((0.01, 10), "b"))
        ]
        return holds(estimate(SPEED, *sides).change)

    yield "two processes, five times as noisy, against ten: holds the truth", share(runs, unpaired)

    def best() -> bool:
        fastest = max((np.exp(rng.normal(0, 0.03, 10)) for _ in range(5)), key=np.median)
        other = arm(THROUGHPUT, np.exp(rng.normal(0, 0.03, 10)), "b")
        return holds(estimate(THROUGHPUT, arm(THROUGHPUT, fastest, "a", 64, "amp-bf16"), other).change)

    yield "the best of five equal batch sizes, ten processes: holds the truth", share(runs, best)

    def word(losses: Values) -> str:
        fp32 = 90 + rng.uniform(-5, 5, len(losses))
        return parity(estimate(ACCURACY, arm(ACCURACY, fp32 - losses, precision="amp-bf16"), arm(ACCURACY, fp32)))

    for seeds in (5, 10):
        yield (
            f"{seeds} seeds, one in ten loses 5 points: EQUIVALENT",
            share(runs, lambda n=seeds: word(5.0 * (rng.random(n) < 0.1)) == "EQUIVALENT"),
        )
    for images in (50, 100):

        def coarse(step: float = 100 / images) -> bool:
            fp32 = 90 + rng.uniform(-5, 5, 5)
            sides = (np.round(each / step) * step for each in (fp32 + rng.normal(-0.5, 0.5, 5), fp32))
            other, base = (
                arm(ACCURACY, side, precision=name) for side, name in zip(sides, ("bf16", "fp32"), strict=True)
            )
            return parity(estimate(ACCURACY, other, base)) == "EQUIVALENT"

        yield f"5 seeds half a point worse, {images} test images: EQUIVALENT", share(runs, coarse)
    peaks = (arm(MEMORY, 1e9 * (1 + 0.05 * (rng.random(2) < 0.5))) for _ in range(2 * runs))
    yield (
        "GPU memory in two states: REGRESSED",
        share(runs, lambda: judge(estimate(MEMORY, next(peaks), next(peaks)), IMPROVED) == "REGRESSED"),
    )

    def walking() -> bool:
        days = rng.normal(0, 0.01, 10).cumsum() + rng.normal(0, 0.005, 10)
        values = [day + rng.normal(0, 0.01, 3) for day in days]
        within = stats.welch(np.concatenate(values[:5]), np.concatenate(values[5:]))
        means = [[float(each.mean())] for each in values]
        return stats.between_runs(means[:5], means[5:], within).beyond(math.log(1.01)) < 1 - stats.CONFIDENCE

    yield "a machine that walks by 1 % a day, five days and then five: changed beyond 1 %", share(runs, walking)
    yield (
        "a speedup that differs by 0.5 % from day to day, two days: excludes 1",
        share(
            runs,
            lambda: not holds(stats.welch(*(rng.normal(day, 0.005, 5) for day in rng.normal(0, 0.005, 2))).interval()),
        ),
    )
    for scatter in (0.02, 0.05, 0.1):
        found = np.array([in_turns(rng, rows, scatter) for rows in (2, 3) for _ in range(runs // 2)])
        parts = [*found.mean(axis=0), found.any(axis=1).mean()]
        situation = f"two or three equal rows, three turns that scatter by {100 * scatter:g} %"
        yield f"{situation}: a row, all, or either changed", ", ".join(f"{100 * part:.1f} %" for part in parts)
    for slower, noise in product((0.01, 0.02, 0.03), (0.01, 0.03)):
        yield (
            f"30 % of ten processes {100 * slower:g} % slower, {100 * noise:g} % noise in theirs: holds the mean",
            share(runs, lambda s=slower, n=noise: of_ten(rng, s, n)),
        )
    for ratio in (1.0, 1.01, 1.5):

        def skewed(truth: float = math.log(ratio)) -> bool:
            errors = 0.006 * (math.exp(0.5) - np.exp(rng.standard_normal(10))) + rng.normal(0, 0.002, 10)
            ends = [(center - NORMAL * 0.002, center + NORMAL * 0.002) for center in truth + errors]
            known = [Interval(center=(low + high) / 2, low=low, high=high, n=30) for low, high in ends]
            return holds(until_enough(Protocol(), known), truth)

        yield f"log-normal errors of processes, ratio {ratio}: holds the truth", share(runs, skewed)


def main() -> None:
    """Print a line for each situation."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000)
    for situation, found in lines(parser.parse_args().runs):
        print(f"{situation}: {found}", flush=True)


if __name__ == "__main__":
    main()
