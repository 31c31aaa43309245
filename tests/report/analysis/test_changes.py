"""One arm against another: what is paired with what, what is left out, and that every ratio has its
inverse.
"""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from bench.phases.energy import Energy
from bench.report.analysis.arms import Arm, arms, numbered
from bench.report.analysis.changes import estimate
from bench.report.reading.load import KEY, load
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, EPOCH, METRICS, SPEED, THROUGHPUT
from tests.report.builders import RunBuilder
from tests.report.fleet import edit_rows

PRECISION = KEY.index("precision")


def measured(metric: Metric, *folders: Path) -> dict[tuple[str, str], Arm]:
    """The measurements of each arm of some runs, by run and precision."""
    every = arms(numbered(load(list(folders)).trials), metric).values()
    return {(arm.key[0], arm.key[PRECISION]): arm for arm in every}


STEADY = (1.999, 2.0, 2.001, 2.002, 1.998, 2.0)


def test_trials_of_the_same_name_in_two_runs_are_no_pair(tmp_path):
    runs = [
        RunBuilder(tmp_path / name).together({"amp-bf16": STEADY}).folder for name in ("a", "b")
    ]
    sides = measured(SPEED, *runs)
    assert {arm.replicates[0][1] for arm in sides.values()} == {"mlp-0-b128-speed-r0"}
    assert estimate(SPEED, sides["a", "fp32"], sides["b", "fp32"]).pairing == "unpaired"
    assert estimate(SPEED, sides["a", "amp-bf16"], sides["b", "fp32"]).pairing == "unpaired"
    assert estimate(SPEED, sides["a", "amp-bf16"], sides["b", "amp-bf16"]).pairing == "unpaired"


def test_a_seed_pairs_what_was_learned_in_two_runs_but_times_within_one_cell_alone(tmp_path):
    for name in ("a", "b"):
        run = RunBuilder(tmp_path / name).train("fp32", [90.0, 91.0], epoch_s=[3.0, 4.0])
        run.train("amp-bf16", [90.0, 91.0], epoch_s=[2.0, 3.0])
    for metric, pairing in ((ACCURACY, "seeds"), (EPOCH, "unpaired")):
        sides = measured(metric, tmp_path / "a", tmp_path / "b")
        assert estimate(metric, sides["a", "fp32"], sides["b", "fp32"]).pairing == pairing
        assert estimate(metric, sides["a", "amp-bf16"], sides["a", "fp32"]).pairing == "seeds"


@pytest.mark.parametrize(
    ("seeds", "against", "pairing"),
    [
        ((0, 1, 2), (1, 2, 3), "seeds"),
        ((0, 1, 2), (2, 3, 4), "unpaired"),
        ((2,), (2, 3, 4), "seeds"),
        ((0,), (1,), "unpaired"),
    ],
)
def test_a_single_shared_seed_makes_no_pair_where_both_have_more(run, seeds, against, pairing):
    run.train("fp32", [90.0, 91.0, 92.0])
    arm = measured(ACCURACY, run.folder)["run", "fp32"]
    sides = [
        replace(
            arm,
            values=np.arange(len(each), dtype=float),
            replicates=[(None, seed) for seed in each],
        )
        for each in (seeds, against)
    ]
    assert estimate(ACCURACY, *sides).pairing == pairing


@pytest.mark.parametrize(("source", "ratio"), [("counter", 0.75), ("power", None)])
def test_energy_is_compared_by_its_own_figures_and_only_with_one_of_the_same_source(
    run, source, ratio
):
    run.speed(speedups=[7.0, 7.1, 6.9])
    for name, of_arm, joules in (("fp32", "counter", 4.0), ("amp-bf16", source, 3.0)):
        run.result("energy", name, row=Energy(energy_source=of_arm, energy_j_per_step=joules))
    sides = measured(METRICS["energy"], run.folder)
    contrast = estimate(METRICS["energy"], sides["run", "amp-bf16"], sides["run", "fp32"])
    assert (contrast and contrast.shown.center) == (ratio and pytest.approx(ratio))


@pytest.mark.parametrize(
    "metric", [SPEED, THROUGHPUT, EPOCH, ACCURACY], ids=lambda metric: metric.name
)
def test_turned_round_a_contrast_is_its_inverse(tmp_path, metric):
    rng = np.random.default_rng(3)
    for name in ("a", "b"):
        gains = {arm: tuple(rng.normal(2.0, 0.1, 5)) for arm in ("amp-fp16", "amp-bf16")}
        run = RunBuilder(tmp_path / name).together(gains)
        for arm in ("fp32", *gains):
            run.train(arm, list(rng.normal(90, 1, 3)), epoch_s=list(rng.uniform(2, 3, 3)))
    every = list(measured(metric, tmp_path / "a", tmp_path / "b").values())
    for arm in every:
        for other in every:
            if arm is not other:
                gain, back = (
                    estimate(metric, *sides).change for sides in ((arm, other), (other, arm))
                )
                assert (back.center, back.low, back.high) == pytest.approx(
                    (-gain.center, -gain.high, -gain.low)
                )


@pytest.mark.parametrize(
    ("named", "measured_in", "is_marked"),
    [
        (["", "", "", "heat"], "3 of 4 processes", False),
        (["", "", "", ""], "4 processes", False),
        (["", "heat", "heat", "heat"], "4 processes", False),
        (["heat"] * 4, "4 processes", True),
    ],
)
def test_a_disturbed_process_is_left_out_and_where_all_were_all_count_with_a_mark(
    run, named, measured_in, is_marked
):
    run.together({"amp-bf16": (2.0, 2.002, 1.998, 1.9)})

    def disturb(row) -> None:
        row["disturbance"] = named[int(row["replicate"])]

    edit_rows(run.folder, disturb)
    row = run.row("amp-bf16")
    assert (row["measured_in"], "disturbed" in row["doubts"]) == (measured_in, is_marked)
    assert (row["speedup"] > 1.99) == (named == ["", "", "", "heat"])


@pytest.mark.parametrize(("count", "is_marked"), [(2, False), (3, True), (6, True)])
def test_arms_in_processes_of_their_own_are_marked_where_all_of_a_side_were_disturbed(
    run, count, is_marked
):
    run.alone("fp32", [10.0, 10.1, 9.9]).alone("amp-bf16", [5.0, 5.1, 4.9])
    left = iter(range(count))
    edit_rows(
        run.folder,
        lambda row: row.update(disturbance="heat" if next(left, None) is not None else ""),
    )
    assert ("disturbed" in run.row("amp-bf16")["doubts"]) is is_marked
