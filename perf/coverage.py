#!/usr/bin/env python3
"""Measure how often the interval over processes holds the truth when the rules end a measurement.

Simulates processes, each with an error and rounds, and applies the shipped rules to all simulated
runs at once, as arrays: which processes count, the interval over them, and the number of processes
at which measuring ends. ``tests/perf/test_coverage.py`` holds them against the shipped functions.

    python perf/coverage.py [--runs 10000]

The last lines give the lowest coverage but that of the mode, the most false verdicts, and the mean
number of processes; the exit code is 1 where one of them misses its target.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.spec.protocol import Protocol
from bench.stats import ASSUMED_NOISE, LEAST_SPREAD, MARGIN, REPORTED, STOPPING, TRIM

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
# Targets: the least coverage of a cell, the most false verdicts of one, and the most processes on
# average.
LOWEST_PCT, MOST_FALSE_PCT, MOST_PROCESSES = 93.5, 2.0, 8.1
# Standard deviation of processes, and of the rounds of a process, as shares; and how many rounds a
# process has.
MACHINES = {
    "quiet": (0.002, 0.01, 30),
    "ordinary": (0.01, 0.04, 30),
    "noisy": (0.03, 0.04, 30),
    "slow steps": (0.01, 0.04, 3),
}
RATIOS = (1 / 1.01, 1.0, 1.01, 1.02, 1.05, 1.5)
# Share of undisturbed processes that evidence is seen in.
FALSE = 0.05


@dataclass(frozen=True, kw_only=True)
class World:
    """Disturbances of a run's processes."""

    name: str
    disturbed: int = 0
    """Of ten processes, how many give three quarters of the true ratio, with three times the
    scatter."""
    is_early: bool = False
    """Whether the disturbed one is among the first three."""
    evidence: float = 0.0
    """Share of the disturbed processes that evidence is seen in; with none, it is seen in no
    process."""
    heavy: bool = False
    """Whether errors have the tails of Student's t with three degrees of freedom."""
    correlation: float = 0.0
    """Correlation of a round's error with the last one's."""
    mode: float = 0.0
    """Share of processes that are truly 3 % slower; the truth is the mean over processes."""


WORLDS = (
    World(name="undisturbed"),
    World(name="one process in ten disturbed", disturbed=1, evidence=0.9),
    World(name="one process in ten disturbed, unseen", disturbed=1),
    World(name="two processes in ten disturbed", disturbed=2, evidence=0.9),
    World(name="two processes in ten disturbed, unseen", disturbed=2),
    World(name="heavy tails", heavy=True),
    World(name="AR(1), correlation 0.7", correlation=0.7),
)
EARLY = World(name="one of the first three disturbed", disturbed=1, is_early=True, evidence=0.9)
MODE = World(name="30 % of processes 3 % slower", mode=0.3)


@dataclass(frozen=True)
class Runs:
    """Processes of simulated runs, each as (runs, processes); the true log-speedup is zero."""

    centers: Array
    is_disturbed: Mask
    """Where evidence is seen."""


def simulate(
    seed: int, world: World, machine: tuple[float, float, int], runs: int, count: int
) -> Runs:
    """Return runs of ``count`` processes."""
    rng = np.random.default_rng(seed)
    between, within, rounds = machine

    def draw(*shape: int) -> Array:
        if world.heavy:
            return rng.standard_t(3, shape) / math.sqrt(3)  # of standard deviation 1
        return rng.standard_normal(shape)

    errors = draw(runs, count, rounds)
    if world.correlation:
        fresh = math.sqrt(1 - world.correlation**2)  # so that the variance stays
        for index in range(1, rounds):
            kept = world.correlation * errors[..., index - 1]
            errors[..., index] = kept + fresh * errors[..., index]
    logs = within * errors + between * draw(runs, count, 1)
    # The disturbed ones of each ten processes are those that draw the lowest numbers.
    of_ten = rng.random((runs, -(-count // 10), 10))
    if world.is_early:
        of_ten[..., 3:] += 1
    ranks = of_ten.argsort(axis=2).argsort(axis=2)
    hit = (ranks < world.disturbed).reshape(runs, -1)[:, :count]
    logs = np.where(hit[..., None], math.log(0.75) + 3 * logs, logs)
    slower = rng.random((runs, count)) < world.mode
    logs += math.log(0.97) * (slower - world.mode)[..., None]
    false = FALSE if world.evidence else 0.0
    seen = rng.random((runs, count)) < np.where(hit, world.evidence, false)
    trimmed = int(TRIM * rounds)
    return Runs(np.sort(logs)[..., trimmed : rounds - trimmed].mean(axis=2), seen)


@dataclass(frozen=True)
class Pooled:
    """``stats.over_processes`` of each run."""

    centers: Array
    errors: Array
    counts: NDArray[np.int64]

    def halves(self, confidence: float) -> Array:
        """Return half the intervals' widths."""
        return np.asarray(special.stdtrit(self.counts - 1.0, (1 + confidence) / 2)) * self.errors


def pooled(runs: Runs, count: int) -> Pooled:
    """Return Student's mean of the first processes of each run.

    Those with evidence of a disturbance do not count, where two or more others do.
    """
    clean = ~runs.is_disturbed[:, :count]
    clean |= clean.sum(axis=1, keepdims=True) < 2
    values, counts = np.where(clean, runs.centers[:, :count], np.nan), clean.sum(axis=1)
    spread = np.maximum(np.nanstd(values, axis=1, ddof=1), LEAST_SPREAD)
    return Pooled(np.nanmean(values, axis=1), spread / np.sqrt(counts), counts)


@dataclass(frozen=True)
class Stopped:
    """Where measuring stopped, in each run."""

    processes: NDArray[np.int64]
    centers: Array
    """The error of the log-speedup."""
    halves: Array
    ratio: float

    @property
    def held_pct(self) -> float:
        """The share of intervals that hold the truth."""
        return float(100 * np.mean(np.abs(self.centers) <= self.halves))

    @property
    def beyond_pct(self) -> float:
        """The share of verdicts that are FASTER or SLOWER."""
        least = np.abs(self.centers + math.log(self.ratio)) - self.halves
        return float(100 * np.mean(least > np.log1p(ASSUMED_NOISE)))


def looks(protocol: Protocol, runs: Runs) -> list[Pooled]:
    """Return the estimates after each number of processes that may end the measurement."""
    counts = range(protocol.replicates, protocol.most_replicates + 1)
    return [pooled(runs, count) for count in counts]


def stop(protocol: Protocol, at: Sequence[Pooled], ratio: float) -> Stopped:
    """Apply the shipped rule, ``speed.processes.enough``, after each process.

    Args:
        protocol: what was asked.
        at: from ``looks``.
        ratio: the true speedup.
    """
    size = len(at[0].centers)
    stopped = Stopped(np.zeros(size, np.int64), np.zeros(size), np.zeros(size), ratio)
    for count, estimate in enumerate(at, protocol.replicates):
        half, center = estimate.halves(STOPPING), estimate.centers + math.log(ratio)
        decided = np.abs(center) - half > math.log1p(ASSUMED_NOISE)
        decided |= np.abs(center) + half <= math.log1p(MARGIN)
        if protocol.target_ci is not None:
            decided = np.expm1(estimate.halves(REPORTED)) <= protocol.target_ci
        decided &= estimate.counts >= protocol.replicates
        ends = (stopped.processes == 0) & (decided | (count == protocol.most_replicates))
        stopped.processes[ends], stopped.centers[ends] = count, estimate.centers[ends]
        stopped.halves[ends] = estimate.halves(REPORTED)[ends]
    return stopped


@dataclass
class Tally:
    """What comes of all disturbances and ratios on one kind of machine."""

    lowest_pct: float = 100.0
    """The lowest coverage, but that of ``MODE``."""
    with_modes_pct: float = 100.0
    """The lowest coverage of ``MODE``, whose processes have two truths."""
    false_pct: float = 0.0
    """The most false verdicts at a ratio of 1."""
    processes: list[float] = field(default_factory=list)
    """Their mean number, for each disturbance and ratio."""


def tally(machine: str, runs: int) -> Tally:
    """Simulate runs on a kind of machine."""
    protocol, result = Protocol(), Tally()
    for world in (*WORLDS, EARLY, MODE):
        simulated = simulate(0, world, MACHINES[machine], runs, protocol.most_replicates)
        at = looks(protocol, simulated)
        for ratio in RATIOS:
            stopped = stop(protocol, at, ratio)
            result.processes.append(float(np.mean(stopped.processes)))
            if world is MODE:
                result.with_modes_pct = min(result.with_modes_pct, stopped.held_pct)
            else:
                result.lowest_pct = min(result.lowest_pct, stopped.held_pct)
            if ratio == 1.0:
                result.false_pct = max(result.false_pct, stopped.beyond_pct)
    return result


def main() -> int:
    """Print coverage and false verdicts; return 1 if a target is missed."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--runs", type=int, default=10_000, help="simulated runs of each kind (default: 10000)"
    )
    runs = parser.parse_args().runs
    print(
        f"{runs} runs of each. lowest: the lowest coverage over the ratios and the disturbances; "
        "with modes: with 30 %"
    )
    print("of processes 3 % slower; A/A: FASTER or SLOWER at ratio 1, at most; processes: mean\n")
    print("| machine | lowest | with modes | A/A | processes |")
    print("| --- | ---: | ---: | ---: | ---: |")
    tallies = []
    for machine in MACHINES:
        figures = tally(machine, runs)
        tallies.append(figures)
        cells = [machine, f"{figures.lowest_pct:.1f} %", f"{figures.with_modes_pct:.1f} %"]
        cells += [f"{figures.false_pct:.1f} %", f"{np.mean(figures.processes):.2f}"]
        print(f"| {' | '.join(cells)} |", flush=True)
    lowest = min(figures.lowest_pct for figures in tallies)
    false = max(figures.false_pct for figures in tallies)
    mean = float(np.mean([figures.processes for figures in tallies]))
    print(f"\nlowest coverage without the mode: {lowest:.2f} % (at least {LOWEST_PCT:g} %)")
    print(f"A/A: at most {false:.2f} % false verdicts (at most {MOST_FALSE_PCT:g} %)")
    print(f"processes: {mean:.2f} on average (at most {MOST_PROCESSES:g})")
    return int(lowest < LOWEST_PCT or false > MOST_FALSE_PCT or mean > MOST_PROCESSES)


if __name__ == "__main__":
    raise SystemExit(main())
