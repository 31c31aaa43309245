"""One arm against another: what is paired with what, what is left out, and that every ratio has its
inverse.
"""

import math
from itertools import combinations
from pathlib import Path

import numpy as np
import pytest

from bench.phases.energy import Energy
from bench.report.analysis.arms import Arm, arms, numbered
from bench.report.analysis.changes import estimate
from bench.report.reading.load import KEY, load
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, EPOCH, SPEED, THROUGHPUT
from tests.report.builders import RunBuilder
from tests.report.fleet import edit_rows


def measured(metric: Metric, folder: Path) -> dict[tuple[str, str], Arm]:
    """The measurements of each arm of the runs in a folder, by run and precision."""
    trials = numbered(load([folder]).trials)
    sides = {}
    for arm in arms(trials, metric).values():
        sides[arm.key[0], arm.precision] = arm
    return sides


def test_trials_of_the_same_name_in_two_runs_are_no_pair(tmp_path):
    steady = (1.999, 2.0, 2.001, 2.002, 1.998, 2.0)
    for name in ("a", "b"):
        RunBuilder(tmp_path / name).together({"amp-bf16": steady})
    sides = measured(SPEED, tmp_path)
    for here, there in (
        ("fp32", "fp32"),
        ("amp-bf16", "fp32"),
        ("amp-bf16", "amp-bf16"),
    ):
        contrast = estimate(SPEED, sides["a", here], sides["b", there])
        assert contrast.pairing == "unpaired"


@pytest.mark.parametrize(
    ("metric", "pairing"),
    [
        (ACCURACY, "seeds"),
        (EPOCH, "unpaired"),
    ],
)
def test_a_seed_pairs_what_was_learned_in_two_runs_but_times_within_one_cell_alone(
    tmp_path, metric, pairing
):
    for name in ("a", "b"):
        run = RunBuilder(tmp_path / name)
        run.train("fp32", [90.0, 91.0], epoch_s=[3.0, 4.0])
        run.train("amp-bf16", [90.0, 91.0], epoch_s=[2.0, 3.0])
    sides = measured(metric, tmp_path)
    fp32 = sides["a", "fp32"]
    between_runs = estimate(metric, fp32, sides["b", "fp32"])
    within_a_cell = estimate(metric, fp32, sides["a", "amp-bf16"])
    assert between_runs.pairing == pairing
    assert within_a_cell.pairing == "seeds"


def trained(seeds: tuple[int, ...]) -> Arm:
    return Arm(
        key=tuple(KEY),
        values=np.array(seeds, dtype=float),
        replicates=seeds,
    )


@pytest.mark.parametrize(
    ("seeds", "against", "pairing"),
    [
        ((0, 1, 2), (1, 2, 3), "seeds"),
        ((0, 1, 2), (2, 3, 4), "unpaired"),
        ((2,), (2, 3, 4), "seeds"),
        ((0,), (1,), "unpaired"),
    ],
)
def test_a_single_shared_seed_makes_no_pair_where_both_have_more(seeds, against, pairing):
    contrast = estimate(ACCURACY, trained(seeds), trained(against))
    assert contrast.pairing == pairing


@pytest.mark.parametrize(("source", "change"), [("counter", -0.25), ("power", math.nan)])
def test_energy_is_compared_with_that_of_the_same_source_alone(run, source, change):
    run.speed()
    fp32 = Energy(energy_source="counter", energy_j_per_step=4.0)
    bf16 = Energy(energy_source=source, energy_j_per_step=3.0)
    run.result("energy", "fp32", row=fp32)
    run.result("energy", "amp-bf16", row=bf16)
    assert run.row()["energy_change_ratio"] == pytest.approx(change, nan_ok=True)


@pytest.mark.parametrize(
    "metric", [SPEED, THROUGHPUT, EPOCH, ACCURACY], ids=lambda metric: metric.name
)
def test_turned_round_a_contrast_is_its_inverse(tmp_path, metric):
    rng = np.random.default_rng(3)
    for name in ("a", "b"):
        run = RunBuilder(tmp_path / name)
        gains = {
            "amp-fp16": rng.normal(2.0, 0.1, 5),
            "amp-bf16": rng.normal(2.0, 0.1, 5),
        }
        run.together(gains)
        for precision in ("fp32", "amp-bf16"):
            accuracies = rng.normal(90, 1, 3)
            seconds = rng.uniform(2, 3, 3)
            run.train(precision, accuracies, epoch_s=list(seconds))
    sides = measured(metric, tmp_path).values()
    for arm, other in combinations(sides, 2):
        gain = estimate(metric, arm, other).change
        back = estimate(metric, other, arm).change
        assert back.center == pytest.approx(-gain.center)
        assert back.low == pytest.approx(-gain.high)
        assert back.high == pytest.approx(-gain.low)


@pytest.mark.parametrize(
    ("disturbances", "measured_in", "speedup", "doubts"),
    [
        (["", "", "", "heat"], "3 of 4 processes", 2.0, ""),
        (["", "", "", ""], "4 processes", 1.97, ""),
        (["", "heat", "heat", "heat"], "4 processes", 1.97, ""),
        (["heat"] * 4, "4 processes", 1.97, "disturbed"),
    ],
)
def test_a_disturbed_process_is_left_out_and_where_all_were_all_count_with_a_mark(
    run, disturbances, measured_in, speedup, doubts
):
    run.together({"amp-bf16": (2.0, 2.002, 1.998, 1.9)})

    def disturb(row: dict[str, str]) -> None:
        replicate = int(row["replicate"])
        row["disturbance"] = disturbances[replicate]

    edit_rows(run.folder, disturb)
    row = run.row()
    assert row["measured_in"] == measured_in
    assert row["speedup"] == pytest.approx(speedup, abs=0.005)
    assert row["doubts"] == doubts


@pytest.mark.parametrize(
    ("count", "doubts"),
    [
        (2, ""),
        (3, "disturbed"),
        (6, "disturbed"),
    ],
)
def test_arms_in_processes_of_their_own_are_marked_where_all_of_a_side_were_disturbed(
    run, count, doubts
):
    run.alone("fp32", [10.0, 10.1, 9.9])
    run.alone("amp-bf16", [5.0, 5.1, 4.9])
    disturbances = ["heat"] * count + [""] * (6 - count)

    def disturb(row: dict[str, str]) -> None:
        row["disturbance"] = disturbances.pop(0)

    edit_rows(run.folder, disturb)
    assert run.row()["doubts"] == doubts
