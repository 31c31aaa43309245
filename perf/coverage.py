#!/usr/bin/env python3
"""Measure how often the interval over processes holds the truth if measuring stops as soon as the rules allow.

Simulates processes, each with an error and rounds, and applies the shipped rules to all simulated runs at once, as
arrays: the interval within a process, the processes that are left out, the interval over processes, and the number of
processes at which measuring ends. ``tests/perf/test_coverage.py`` holds them against the shipped functions.

    python perf/coverage.py [--runs 10000]
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from scipy import special

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.spec.trial import Protocol
from bench.stats import ASSUMED_NOISE, CONFIDENCE, FAR, LEAST_SPREAD, MARGIN, REPORTED, STOPPING, TRIM

Array = NDArray[np.float64]
Mask = NDArray[np.bool_]
MACHINES = {
    "quiet": (0.002, 0.01, 30),
    "ordinary": (0.01, 0.04, 30),
    "noisy": (0.03, 0.04, 30),
    "slow steps": (0.01, 0.04, 3),
}
"""Standard deviation of processes, and of the rounds of a process, as shares; and how many rounds a process has."""
RATIOS = (1 / 1.01, 1.0, 1.01, 1.02, 1.05, 1.5)
FALSE = 0.05
"""Share of undisturbed processes that evidence is seen in."""


@dataclass(frozen=True, kw_only=True)
class World:
    """Disturbances of a run's processes."""

    name: str
    disturbed: int = 0
    """Of ten processes, how many give three quarters of the true ratio, with three times the scatter."""
    is_early: bool = False
    """Whether the disturbed one is among the first three."""
    evidence: float = 0.0
    """Share of the disturbed processes that evidence is seen in; with none, it is seen in no process."""
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
    errors: Array
    is_disturbed: Mask
    """Where evidence is seen."""

    def first(self, count: int) -> Runs:
        """Return the first processes of each run."""
        return Runs(self.centers[:, :count], self.errors[:, :count], self.is_disturbed[:, :count])


def simulate(seed: int, world: World, machine: tuple[float, float, int], runs: int, count: int) -> Runs:
    """Return runs of ``count`` processes."""
    rng = np.random.default_rng(seed)
    between, within, rounds = machine

    def draw(*shape: int) -> Array:
        return rng.standard_t(3, shape) / math.sqrt(3) if world.heavy else rng.standard_normal(shape)

    errors = draw(runs, count, rounds)
    for index in range(1, rounds if world.correlation else 0):
        kept = world.correlation * errors[..., index - 1]
        errors[..., index] = kept + math.sqrt(1 - world.correlation**2) * errors[..., index]
    logs = within * errors + between * draw(runs, count, 1)
    of_ten = rng.random((runs, -(-count // 10), 10))
    if world.is_early:
        of_ten[..., 3:] += 1
    hit = (of_ten.argsort(axis=2).argsort(axis=2) < world.disturbed).reshape(runs, -1)[:, :count]
    logs = np.where(hit[..., None], math.log(0.75) + 3 * logs, logs)
    slower = rng.random((runs, count)) < world.mode
    logs += math.log(0.97) * (slower - world.mode)[..., None]
    seen = rng.random((runs, count)) < np.where(hit, world.evidence, FALSE if world.evidence else 0.0)
    centers, halves = rounds_intervals(logs.reshape(-1, rounds))
    to_error = 1 / special.ndtri((1 + CONFIDENCE) / 2)
    return Runs(centers.reshape(runs, count), halves.reshape(runs, count) * to_error, seen)


def rounds_intervals(logs: Array) -> tuple[Array, Array]:
    """Return ``stats.rounds_interval`` of each row: center and half-width."""
    count = logs.shape[1]
    trimmed = int(TRIM * count)
    data = np.sort(logs, axis=1)
    kept = data[:, trimmed : count - trimmed]
    spread = data.clip(kept[:, :1], kept[:, -1:]).std(axis=1, ddof=1) / ((1 - 2 * TRIM) if trimmed else 1.0)
    centers, halves = kept.mean(axis=1), quantile(kept.shape[1] - 1, CONFIDENCE) * spread / math.sqrt(count)
    centred = logs - logs.mean(axis=1, keepdims=True)
    lag = (centred[:, :-1] * centred[:, 1:]).sum(axis=1) / np.square(centred).sum(axis=1)
    merged = (np.abs(lag) > 2 / math.sqrt(count)) & (count // 2 >= 10)
    if merged.any():
        pairs = logs[merged, : count // 2 * 2].reshape(-1, count // 2, 2).mean(axis=2)
        centers[merged], halves[merged] = rounds_intervals(pairs)
    return centers, halves


def quantile(freedom: int | NDArray[np.int64], confidence: float) -> Array:
    """Return how many standard errors half of Student's interval is wide."""
    return np.asarray(special.stdtrit(np.maximum(freedom, 1.0), (1 + confidence) / 2))


def median(values: Array, of: Mask) -> Array:
    """Return the median of some values of each row."""
    return np.asarray(np.nanmedian(np.where(of, values, np.nan), axis=1))


def counted(runs: Runs) -> Mask:
    """Say which processes count: all but those of ``stats.left_out``."""
    clean, enough = ~runs.is_disturbed, (~runs.is_disturbed).sum(axis=1) >= 2
    clean |= ~enough[:, None]
    away = np.abs(runs.centers - median(runs.centers, clean)[:, None])
    scatter = median(away, clean) / special.ndtri(0.75)
    spread = np.maximum(np.maximum(scatter, np.median(runs.errors, axis=1)), LEAST_SPREAD)
    far = away > (FAR * (1 + 4 / clean.sum(axis=1)) * spread)[:, None]
    kept: Mask = ~(runs.is_disturbed & far & enough[:, None])
    return kept


@dataclass(frozen=True)
class Pooled:
    """``stats.process_interval`` of each run."""

    centers: Array
    errors: Array
    counts: NDArray[np.int64]

    def halves(self, confidence: float) -> Array:
        """Return half the intervals' widths."""
        return quantile(self.counts - 1, confidence) * self.errors


def pooled(runs: Runs) -> Pooled:
    """Return the random-effects mean of each run."""
    kept = counted(runs)
    counts, of = kept.sum(axis=1), kept.astype(float)
    within = np.square(np.maximum(runs.errors, median(runs.errors, kept)[:, None]))
    between = np.zeros(len(of))
    for _ in range(100):
        weights = of / (within + between[:, None])
        total = weights.sum(axis=1)
        centers = (weights * runs.centers).sum(axis=1) / total
        squares = weights * np.square(runs.centers - centers[:, None])
        excess = squares.sum(axis=1) - (counts - 1)
        done = (excess <= 1e-9 * counts) & ((between == 0) | (excess >= -1e-9 * counts))
        if done.all():
            break
        growth = excess / np.maximum((weights * squares).sum(axis=1), 1e-300)
        between = np.where(done, between, np.maximum(0.0, between + growth))
    errors = np.sqrt(squares.sum(axis=1) / (counts - 1) / total)
    return Pooled(centers, np.maximum(errors, LEAST_SPREAD / np.sqrt(counts)), counts)


@dataclass(frozen=True)
class Stopped:
    """Where measuring stopped, in each run."""

    processes: NDArray[np.int64]
    centers: Array
    """The error of the log-speedup."""
    halves: Array
    ratio: float

    @property
    def holds(self) -> Mask:
        """Whether the interval holds the truth."""
        held: Mask = np.abs(self.centers) <= self.halves
        return held

    def beyond(self, noise: Array | float) -> Mask:
        """Say where the verdict is FASTER or SLOWER."""
        beyond: Mask = np.abs(self.centers + math.log(self.ratio)) - self.halves > np.log1p(noise)
        return beyond


def looks(protocol: Protocol, runs: Runs) -> list[Pooled]:
    """Return the estimates after each number of processes that may end the measurement."""
    return [pooled(runs.first(count)) for count in range(protocol.replicates, protocol.most_replicates + 1)]


def stop(protocol: Protocol, at: Sequence[Pooled], ratio: float) -> Stopped:
    """Apply ``execute.enough`` after each process.

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


def pct(mask: Mask) -> str:
    """Return the share that is true."""
    return f"{100 * mask.mean():.1f} %"


def main() -> None:
    """Print coverage, false verdicts, and how often a planted 1 % is detected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=10_000, help="simulated runs of each kind (default: 10000)")
    runs = parser.parse_args().runs
    protocol = Protocol()
    print(f"{runs} runs of each; intervals that hold the truth, by true ratio; A/A: FASTER or SLOWER at ratio 1;")
    print("processes: mean over the ratios; half-width: median at ratio 1.5\n")
    print(
        "| machine | processes | "
        + " | ".join(f"{ratio:.3g}" for ratio in RATIOS)
        + " | A/A | processes | half-width |"
    )
    print("| --- | --- |" + " ---: |" * (len(RATIOS) + 3))
    for machine, errors in MACHINES.items():
        for world in (*WORLDS, EARLY, MODE):
            at = looks(protocol, simulate(0, world, errors, runs, protocol.most_replicates))
            ends = [stop(protocol, at, ratio) for ratio in RATIOS]
            cells = [*(pct(end.holds) for end in ends), pct(ends[RATIOS.index(1.0)].beyond(ASSUMED_NOISE))]
            cells += [f"{np.mean([end.processes for end in ends]):.2f}", f"±{np.median(ends[-1].halves):.2%}"]
            print(f"| {machine} | {world.name} | {' | '.join(cells)} |", flush=True)
    print("\nTen processes, whatever they show:\n")
    print("| machine | processes | holds the truth | half-width |\n| --- | --- | ---: | ---: |")
    for machine, errors in MACHINES.items():
        for world in (WORLDS[0], EARLY, MODE):
            ten = pooled(simulate(0, world, errors, runs, 10))
            held = np.abs(ten.centers) <= ten.halves(REPORTED)
            print(f"| {machine} | {world.name} | {pct(held)} | ±{np.median(ten.halves(REPORTED)):.2%} |")


if __name__ == "__main__":
    main()
