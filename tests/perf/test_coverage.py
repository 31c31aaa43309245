"""The simulation of comparisons applies the shipped rules; its intervals hold the truth."""

import math

import pytest

from bench import stats
from bench.phases.speed.processes import enough
from bench.spec.protocol import Protocol
from perf import coverage

PROTOCOL = Protocol()


@pytest.mark.parametrize(
    "world", [*coverage.WORLDS, coverage.EARLY, coverage.MODE], ids=lambda world: world.name
)
def test_the_simulation_stops_and_estimates_as_the_shipped_functions_do(
    world: coverage.World,
) -> None:
    runs = coverage.simulate(3, world, coverage.MACHINES["ordinary"], 12, 10)
    stopped = coverage.stop(PROTOCOL, coverage.looks(PROTOCOL, runs), 1.02)
    for run in range(12):
        centers = runs.centers[run] + math.log(1.02)
        each = [stats.around(float(center), 0.0, 1, 30) for center in centers]
        seen = runs.is_disturbed[run].tolist()
        count = PROTOCOL.replicates
        while not enough(PROTOCOL, count, [(each[:count], seen[:count])], 0.0):
            count += 1
        interval = stats.over_processes(each[:count], seen[:count])
        assert stopped.processes[run] == count
        assert stopped.centers[run] + math.log(1.02) == pytest.approx(interval.center, abs=1e-9)
        assert stopped.halves[run] == pytest.approx(interval.half_width, rel=1e-6)


@pytest.mark.parametrize("machine", coverage.MACHINES)
def test_the_interval_holds_a_truth_at_the_verdicts_threshold(machine: str) -> None:
    runs = coverage.simulate(4, coverage.WORLDS[0], coverage.MACHINES[machine], 1000, 10)
    at = coverage.looks(PROTOCOL, runs)
    for ratio in (1 / 1.01, 1.01):
        assert coverage.stop(PROTOCOL, at, ratio).held_pct >= 93
