#!/usr/bin/env python3
"""Measure how often the interval over processes holds the truth if measuring stops as soon as the rules allow.

Simulates processes, each with an error and rounds, and applies the shipped rules: the interval within a process, the
interval over processes, and the number of processes at which measuring ends.

    python perf/coverage.py [--runs 2000]
"""

from __future__ import annotations

import argparse
import math
import random
import sys
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from bench.run.execute import enough
from bench.spec.trial import Protocol
from bench.stats import ASSUMED_NOISE, Interval, process_interval, rounds_interval, verdict

MACHINES = {
    "quiet": (0.002, 0.01, 30),
    "ordinary": (0.01, 0.04, 30),
    "noisy": (0.03, 0.04, 30),
    "slow steps": (0.01, 0.04, 3),
}
"""Standard deviation of processes, and of the rounds of a process, as shares; and how many rounds a process has."""
RATIOS = (1.0, 1.02, 1.05, 1.5)


@dataclass(frozen=True, kw_only=True)
class World:
    """Disturbances of a run's processes."""

    name: str
    disturbed: int = 0
    """Of ten processes, how many give three quarters of the true ratio, with three times the scatter."""
    heavy: bool = False
    """Whether errors have the tails of Student's t with three degrees of freedom."""
    correlation: float = 0.0
    """Correlation of a round's error with the last one's."""


WORLDS = (
    World(name="undisturbed"),
    World(name="one process in ten disturbed", disturbed=1),
    World(name="two processes in ten disturbed", disturbed=2),
    World(name="heavy tails", heavy=True),
    World(name="AR(1), correlation 0.7", correlation=0.7),
)


def rounds(rng: np.random.Generator, world: World, sd: float, count: int) -> NDArray[np.float64]:
    """Return the errors of one process's rounds."""
    errors: NDArray[np.float64] = rng.standard_t(3, count) / math.sqrt(3) if world.heavy else rng.standard_normal(count)
    for index in range(1, count if world.correlation else 0):
        errors[index] = world.correlation * errors[index - 1] + math.sqrt(1 - world.correlation**2) * errors[index]
    return sd * errors


def processes(seed: int, world: World, machine: tuple[float, float, int], count: int) -> list[Interval]:
    """Return the log-speedups of a run's processes; the true value is zero."""
    rng = np.random.default_rng(seed)
    between, within, of_each = machine
    intervals = []
    for start in range(0, count, 10):
        bad = set(rng.choice(10, world.disturbed, replace=False).tolist())
        for number in range(min(10, count - start)):
            tail = rng.standard_t(3) / math.sqrt(3) if world.heavy else rng.standard_normal()
            errors = between * tail + rounds(rng, world, within, of_each)
            intervals.append(rounds_interval(math.log(0.75) + 3 * errors if number in bad else errors))
    return intervals


def stop(protocol: Protocol, every: list[Interval], ratio: float) -> Interval:
    """Return the interval at which measuring stops; the true value is ``log(ratio)``."""
    shifted = [shift(interval, math.log(ratio)) for interval in every]
    count = protocol.replicates
    while not enough(protocol, count, [shifted[:count]], 0.0):
        count += 1
    return process_interval(shifted[:count])


def shift(log: Interval, by: float) -> Interval:
    """Return an interval shifted by a constant."""
    low, high = (None if end is None else end + by for end in (log.low, log.high))
    return replace(log, center=log.center + by, low=low, high=high)


def share(runs: int, holds: Callable[[int], bool]) -> str:
    """Return the share of seeds for which ``holds`` is true, in per cent."""
    return f"{100 * sum(map(holds, range(runs))) / runs:.1f} %"


def main() -> None:
    """Print coverage, false verdicts, and how often a planted 1 % is detected."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=2000, help="simulated runs of each kind (default: 2000)")
    runs = parser.parse_args().runs
    protocol = Protocol()
    print(f"{runs} runs of each; 95 % intervals that hold the truth, by true ratio; A/A: FASTER or SLOWER at ratio 1\n")
    print("| machine | processes | " + " | ".join(f"{ratio:g}" for ratio in RATIOS) + " | A/A |")
    print("| --- | --- |" + " ---: |" * (len(RATIOS) + 1))
    for machine, errors in MACHINES.items():
        for world in WORLDS:
            every = [processes(seed, world, errors, protocol.most_replicates) for seed in range(runs)]
            cells = []
            for ratio in RATIOS:
                intervals = [stop(protocol, logs, ratio) for logs in every]
                held = [log.low is not None and log.low <= math.log(ratio) <= (log.high or 0.0) for log in intervals]
                cells.append(f"{100 * sum(held) / runs:.1f} %")
                if ratio == 1:
                    verdicts = [verdict(log.exp(), ASSUMED_NOISE) for log in intervals]
                    false = f"{100 * sum(word in ('FASTER', 'SLOWER') for word in verdicts) / runs:.1f} %"
            print(f"| {machine} | {world.name} | {' | '.join(cells)} | {false} |", flush=True)
    planted(runs)


def planted(runs: int) -> None:
    """Print how often a rigorous run detects a true difference of 1 % on a quiet machine."""
    from bench.cli.parser import RIGOROUS

    def detected(seed: int) -> bool:
        arm, same = (
            processes(2 * seed + part, WORLDS[0], MACHINES["quiet"], RIGOROUS.most_replicates) for part in (0, 1)
        )
        noise = stop(RIGOROUS, same, 1.0).exp()
        reach = max(abs(1 - (noise.low or 0)), abs((noise.high or 2) - 1))
        return verdict(stop(RIGOROUS, arm, 1.01).exp(), reach) == "FASTER"

    print(f"\nA planted 1 % was detected in {share(runs, detected)} of {runs} rigorous runs (quiet machine).")


if __name__ == "__main__":
    random.seed(0)
    main()
