"""Training in figures: parity against scipy, the epochs' speedup, and the tables that show them."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from bench.report.analysis.bottleneck import epoch_remarks as remarks
from bench.report.analysis.summary import PARITY_MARGIN_POINTS, parity, summarise
from bench.report.reading.load import load
from bench.report.tables.diagnostics import notes
from bench.report.tables.table import Table
from bench.report.tables.training import training
from tests.report.builders import RunBuilder


def summary(run: RunBuilder) -> pd.DataFrame:
    return summarise(load([run.folder]).trials)


def arm(run: RunBuilder) -> pd.Series:
    rows = summary(run)
    return rows[rows["precision"] == "amp-bf16"].iloc[0]


def column(table: Table, header: str) -> list[str]:
    return [row[table.headers.index(header)] for row in table.rows]


def test_parity_is_scipys_two_one_sided_tests_at_five_per_cent() -> None:
    rng = np.random.default_rng(1)
    words = []
    for _ in range(300):
        deltas = rng.normal(rng.uniform(-1.2, 1.2), rng.uniform(0.1, 0.9), size=rng.integers(5, 9))
        above = scipy_stats.ttest_1samp(deltas, -PARITY_MARGIN_POINTS, alternative="greater").pvalue < 0.05
        below = scipy_stats.ttest_1samp(deltas, PARITY_MARGIN_POINTS, alternative="less").pvalue < 0.05
        worse = scipy_stats.ttest_1samp(deltas, -PARITY_MARGIN_POINTS, alternative="less").pvalue < 0.05
        expected = "WORSE" if worse else "INCONCLUSIVE" if not above else "EQUIVALENT" if below else "NON-INFERIOR"
        words.append(parity(deltas, 0)[-1])
        assert words[-1] == expected
    assert set(words) == {"EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE"}


def test_fewer_than_five_seeds_get_a_difference_and_its_interval_but_no_verdict() -> None:
    mean, low, high, count, word = parity(np.array([0.1, 0.2, 0.3, 0.2]), 0)
    assert (mean, count, word) == (pytest.approx(0.2), 4, "insufficient seeds")
    assert low is not None
    assert high is not None
    assert parity(np.array([0.1]), 0)[1:3] == (None, None)


def test_equal_accuracies_in_every_seed_are_equivalent() -> None:
    assert parity(np.zeros(5), 0) == (0.0, 0.0, 0.0, 5, "EQUIVALENT")


def test_a_precision_whose_every_seed_diverged_is_called_diverged_in_the_table(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0, 90.0]).diverged("amp-bf16").diverged("amp-bf16", seed=1)
    learned, _ = training(summary(run))
    assert column(learned, "parity") == ["–", "diverged"]


def test_the_epochs_speedup_is_students_interval_on_the_seeds_paired_logs(tmp_path: Path) -> None:
    baseline, faster = [4.0, 4.4, 3.8], [2.0, 2.1, 2.0]
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0] * 3, epoch_s=baseline)
    found = arm(run.train("amp-bf16", [90.0] * 3, epoch_s=faster))
    result = scipy_stats.ttest_rel(np.log(baseline), np.log(faster)).confidence_interval(0.95)
    assert (found["epoch_low"], found["epoch_high"]) == pytest.approx((math.exp(result.low), math.exp(result.high)))
    center = math.exp(np.mean(np.log(baseline) - np.log(faster)))
    assert (found["epoch_speedup"], found["epoch_seeds"]) == (pytest.approx(center), 3)


def test_the_epochs_speedup_of_one_common_seed_has_no_interval(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0, 90.0], epoch_s=[4.0, 9.0])
    found = arm(run.train("amp-bf16", [90.0], epoch_s=2.0))
    assert (found["epoch_speedup"], found["epoch_seeds"]) == (pytest.approx(2.0), 1)
    assert math.isnan(found["epoch_low"])
    assert math.isnan(found["epoch_high"])


def trained(folder: Path, *, epoch_s: float, wait_pct: float, **figures: object) -> RunBuilder:
    run = RunBuilder(folder).speed(speedups=[2.0, 2.01, 1.99]).train("fp32", [90.0], epoch_s=4.0, **figures)
    return run.train("amp-bf16", [90.0], epoch_s=epoch_s, data_wait_pct=wait_pct, **figures)


def test_epochs_that_gain_less_because_the_loader_is_the_limit_are_explained_by_it(tmp_path: Path) -> None:
    (said,) = remarks(summary(trained(tmp_path / "run", epoch_s=3.2, wait_pct=38.0)))
    assert "epochs are 1.250× as fast as fp32's, steps 2.000× (−37 %)" in said
    assert "1.5 % of fp32's training time and 38 % of amp-bf16's: loading data is what limits amp-bf16" in said


def test_waiting_that_explains_a_part_says_how_much(tmp_path: Path) -> None:
    (said,) = remarks(summary(trained(tmp_path / "run", epoch_s=4.0, wait_pct=20.0)))
    assert "explains a part: without it epochs would be 1.231× as fast" in said


def test_a_gap_without_waiting_is_not_blamed_on_the_loader(tmp_path: Path) -> None:
    rates = {"train_samples_per_s": 6400.0}
    (said,) = remarks(summary(trained(tmp_path / "run", epoch_s=3.0, wait_pct=1.0, **rates)))
    assert "loading data is what limits" not in said
    assert "50 % of the time of fp32's epochs and 25 % of amp-bf16's: the rest is other work" in said


def test_epochs_that_gain_as_steps_do_need_no_remark(tmp_path: Path) -> None:
    assert remarks(summary(trained(tmp_path / "run", epoch_s=1.9, wait_pct=30.0))) == []
    assert remarks(summary(RunBuilder(tmp_path / "speed").speed())) == []


def test_a_gap_that_the_seeds_interval_covers_is_called_possible_chance(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.01, 1.99])
    run.train("fp32", [90.0] * 2, epoch_s=[4.0, 4.0]).train("amp-bf16", [90.0] * 2, epoch_s=[2.0, 3.0])
    (said,) = remarks(summary(run))
    assert "may be chance" in said


def test_columns_that_are_empty_for_all_rows_are_left_out(tmp_path: Path) -> None:
    learned, cost = training(summary(RunBuilder(tmp_path / "run").train("fp32", [90.0]).train("amp-bf16", [90.0])))
    assert "evaluated in fp32 (%)" not in learned.headers
    assert not [header for header in cost.headers if re_any(header, "checkpoint", "energy", "accuracy", "step speedup")]
    assert all(len(row) == len(table.headers) for table in (learned, cost) for row in table.rows)


def re_any(text: str, *words: str) -> bool:
    return any(word in text for word in words)


def test_storage_energy_and_accuracy_in_fp32_are_shown_in_their_units(tmp_path: Path) -> None:
    figures = {"checkpoint_bytes": 90 * 2**20, "checkpoint_16bit_bytes": 45 * 2**20, "train_energy_j": 12_340.0}
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0, 91.0], test_accuracy_fp32_pct=[89.0, 90.0], **figures)
    learned, cost = training(summary(run))
    assert column(learned, "evaluated in fp32 (%)") == ["89.50"]
    assert column(cost, "checkpoint (MiB)") == ["90.00"]
    assert column(cost, "checkpoint in 16 bit (MiB)") == ["45.00"]
    assert column(cost, "energy (kJ)") == ["12.34"]
    assert column(cost, "total time (s)") == ["6.000"]


def test_time_to_accuracy_counts_the_seeds_that_reached_it(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run")
    asked = {"target_accuracy_pct": 90.0}
    run.train("fp32", [90.0] * 2, time_to_accuracy_s=[10.0, 20.0], **asked)
    run.train("amp-bf16", [90.0] * 2, time_to_accuracy_s=[None, 8.0], **asked).train("tf32", [80.0], **asked)
    _, cost = training(summary(run))
    assert column(cost, "time to accuracy (s)") == [
        "15.00 (to 90 %)",
        "90 % not reached",
        "8.000 (to 90 %, 1 of 2 seeds)",
    ]


def test_nothing_trained_is_no_table(tmp_path: Path) -> None:
    assert training(summary(RunBuilder(tmp_path / "run").speed())) == [None, None]


def test_a_training_that_began_anew_is_in_the_notes_though_it_is_ok(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0])
    assert notes(load([run.folder]).trials) is None
    trials = load([run.folder]).trials.assign(detail="training began anew")
    table = notes(trials)
    assert table is not None
    assert [row[-3:] for row in table.rows] == [["ok", "1", "training began anew"]]
