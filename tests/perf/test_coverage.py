"""The simulation of comparisons applies the shipped rules; its intervals hold the truth."""

import math

import pytest

from bench import stats
from bench.phases.speed.processes import enough
from bench.spec.protocol import Protocol
from perf import coverage

PROTOCOL = Protocol()
RATIO = 1.02
LOG_RATIO = math.log(RATIO)


@pytest.mark.parametrize(
    "world",
    [*coverage.WORLDS, coverage.EARLY, coverage.MODE],
    ids=lambda world: world.name,
)
def test_the_simulation_stops_and_estimates_as_the_shipped_functions_do(
    world: coverage.World,
) -> None:
    runs = coverage.simulate(
        seed=3,
        world=world,
        machine=coverage.MACHINES["ordinary"],
        runs=12,
        count=10,
    )
    estimates = coverage.looks(PROTOCOL, runs)
    stopped = coverage.stop(PROTOCOL, estimates, RATIO)
    for run, errors in enumerate(runs.centers.tolist()):
        processes = []
        for error in errors:
            log_speedup = error + LOG_RATIO
            processes.append(stats.around(log_speedup, 0.0, 1, 30))
        is_disturbed = runs.is_disturbed[run].tolist()
        count = PROTOCOL.replicates
        measured = processes[:count], is_disturbed[:count]
        while not enough(PROTOCOL, count, [measured], 0.0):
            count += 1
            measured = processes[:count], is_disturbed[:count]
        interval = stats.over_processes(*measured)
        log_speedup = stopped.centers[run] + LOG_RATIO
        assert stopped.processes[run] == count
        assert log_speedup == pytest.approx(interval.center, abs=1e-9)
        assert stopped.halves[run] == pytest.approx(interval.half_width, rel=1e-6)


@pytest.mark.parametrize("machine", coverage.MACHINES.values(), ids=coverage.MACHINES)
def test_the_interval_holds_a_truth_at_the_verdicts_threshold(
    machine: tuple[float, float, int],
) -> None:
    runs = coverage.simulate(4, coverage.WORLDS[0], machine, 1000, 10)
    estimates = coverage.looks(PROTOCOL, runs)
    for ratio in (1 / 1.01, 1.01):
        stopped = coverage.stop(PROTOCOL, estimates, ratio)
        assert stopped.held_pct >= 93
