"""The simulation of whole comparisons applies the shipped rules, and its intervals hold the truth."""

import math
from dataclasses import replace

import numpy as np
import pytest

from bench import stats
from bench.run.execute import enough
from bench.spec.trial import Protocol
from perf import coverage

PROTOCOL = Protocol()


def shipped(runs: coverage.Runs, run: int, ratio: float) -> list[stats.Interval]:
    half = float(stats.special.ndtri((1 + stats.CONFIDENCE) / 2))
    of_run = (runs.centers[run] + math.log(ratio), half * runs.errors[run], runs.is_disturbed[run])
    return [
        stats.Interval(center=center, low=center - by, high=center + by, n=30, is_disturbed=seen)
        for center, by, seen in zip(*(values.tolist() for values in of_run), strict=True)
    ]


@pytest.mark.parametrize("world", [*coverage.WORLDS, coverage.EARLY, coverage.MODE], ids=lambda world: world.name)
def test_the_simulation_stops_and_estimates_as_the_shipped_functions_do(world: coverage.World) -> None:
    runs = coverage.simulate(3, world, coverage.MACHINES["ordinary"], 12, 10)
    stopped = coverage.stop(PROTOCOL, coverage.looks(PROTOCOL, runs), 1.02)
    for run in range(12):
        every = shipped(runs, run, 1.02)
        count = next(count for count in range(3, 11) if enough(PROTOCOL, count, [every[:count]], 0.0))
        interval = stats.process_interval(every[:count])
        assert stopped.processes[run] == count
        assert stopped.centers[run] + math.log(1.02) == pytest.approx(interval.center, abs=1e-9)
        assert stopped.halves[run] == pytest.approx(interval.half_width, rel=1e-6)


def test_the_simulated_rounds_have_the_shipped_interval() -> None:
    rng = np.random.default_rng(0)
    logs = np.concatenate([rng.normal(size=(20, 30)), rng.normal(size=(20, 30)).cumsum(axis=1)])  # those correlate
    for row, center, half in zip(logs, *coverage.rounds_intervals(logs), strict=True):
        interval = stats.rounds_interval(row)
        assert (center, half) == pytest.approx((interval.center, interval.half_width))


@pytest.mark.parametrize("machine", coverage.MACHINES)
def test_the_interval_holds_a_truth_at_the_verdicts_threshold(machine: str) -> None:
    at = coverage.looks(PROTOCOL, coverage.simulate(4, coverage.WORLDS[0], coverage.MACHINES[machine], 1000, 10))
    for ratio in (1 / 1.01, 1.01):
        assert coverage.stop(PROTOCOL, at, ratio).holds.mean() >= 0.93


def test_ten_processes_of_two_modes_hold_their_mean() -> None:
    ten = coverage.pooled(coverage.simulate(5, coverage.MODE, coverage.MACHINES["quiet"], 1000, 10))
    assert (np.abs(ten.centers) <= ten.halves(stats.REPORTED)).mean() >= 0.93


def test_a_disturbed_process_with_evidence_hardly_widens_the_interval_and_one_without_is_kept() -> None:
    def width(world: coverage.World) -> float:
        runs = coverage.simulate(6, world, coverage.MACHINES["ordinary"], 1000, PROTOCOL.most_replicates)
        end = coverage.stop(PROTOCOL, coverage.looks(PROTOCOL, runs), 1.5)
        assert end.holds.mean() >= 0.95
        return float(np.median(end.halves))

    alone = width(coverage.WORLDS[0])
    assert width(coverage.EARLY) <= 1.2 * alone
    assert width(replace(coverage.EARLY, evidence=0.0)) > 3 * alone
