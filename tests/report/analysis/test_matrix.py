"""The matrix of setups: what is over what, by which figure, and with which interval."""

from __future__ import annotations

import math
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from scipy import stats as scipy_stats

from bench.report.analysis.contrast import Arm
from bench.report.analysis.matrix import EPOCHS, STEPS, Matrix, Setup, matrices
from bench.report.analysis.summary import summarise
from bench.report.exports import data
from bench.report.figures.chart import Bar, Text
from bench.report.figures.comparisons import MOST_SETUPS, heat_map, remarks, write_csv, written
from bench.report.reading.load import load
from bench.spec.metrics import THROUGHPUT
from tests.report import fleet
from tests.report.builders import GPU, RunBuilder
from tests.report.fleet import copy, original


def matrices_by_basis(*folders: Path):
    runs = load(list(folders))
    return {matrix.basis: matrix for matrix in matrices(summarise(runs.trials))}


@pytest.fixture
def three(tmp_path: Path) -> list[Path]:
    """Three machines: the second twice as fast as the first, the third four times."""
    first = copy(original(tmp_path / "raw"), tmp_path / "one", device="Card A", architecture="Volta")
    two = copy(tmp_path / "raw", tmp_path / "two", device="Card B", architecture="Ampere", faster=2.0)
    return [first, two, copy(tmp_path / "raw", tmp_path / "four", device="Card C", architecture="Hopper", faster=4.0)]


def test_every_setup_stands_against_every_other_the_fastest_first(three):
    matrix = matrices_by_basis(*three)[STEPS]
    names = [setup.name for setup in matrix.setups]
    assert set(names) == {f"Card {card}, {arm}" for card in "ABC" for arm in ("fp32", "amp-bf16")}
    named = {setup.name: setup for setup in matrix.setups}
    over = matrix.over(named["Card C, fp32"], named["Card A, fp32"])
    assert over.center == pytest.approx(4.0)
    assert over.low < 4.0 < over.high
    assert matrix.over(named["Card A, fp32"], named["Card C, fp32"]).center == pytest.approx(0.25)
    assert (names[0], names[-1]) == ("Card C, amp-bf16", "Card A, fp32")


def test_side_by_side_the_ratio_is_the_speedup_and_across_machines_it_has_an_interval_too(three):
    matrix = matrices_by_basis(*three)[STEPS]
    named = {setup.name: setup for setup in matrix.setups}
    a = named["Card A, amp-bf16"]
    apart = matrix.over(a, named["Card B, fp32"])
    assert apart.center == pytest.approx(1.0, rel=0.02)
    assert apart.low < 1.0 < apart.high
    paired = matrix.over(a, named["Card A, fp32"])
    row = summarise(load(three).trials).query("device == 'Card A' and precision == 'amp-bf16' and speedup > 0").iloc[0]
    assert (paired.low, paired.high) == (row["low"], row["high"])
    back = matrix.over(named["Card A, fp32"], a)
    assert (back.low, back.high) == pytest.approx((1 / row["high"], 1 / row["low"]))


def test_time_per_epoch_is_a_matrix_of_its_own_where_it_was_trained(three, tmp_path):
    matrix = matrices_by_basis(*three)[EPOCHS]
    named = {setup.name: setup for setup in matrix.setups}
    assert matrix.over(named["Card B, fp32"], named["Card A, fp32"]).center == pytest.approx(2.0)
    untrained = original(tmp_path / "x", train=False)
    assert set(matrices_by_basis(untrained, copy(untrained, tmp_path / "y", device="B", architecture="B"))) == {STEPS}


@pytest.mark.slow
def test_epochs_on_other_images_are_not_compared(three):
    fleet.edit_rows(three[2], lambda row: row.update(data="folder:/other"))
    matrix = matrices_by_basis(*three)[EPOCHS]
    assert not any("Card C" in setup.name for setup in matrix.setups)
    assert matrix.absent == ["what was trained on folder:/other"]
    assert any("Card C" in setup.name for setup in matrices_by_basis(*three)[STEPS].setups)


def test_one_machine_and_two_recipes_have_no_matrix(tmp_path):
    run = original(tmp_path / "run")
    assert matrices_by_basis(run) == {}
    assert matrices_by_basis(run, original(tmp_path / "other", suite="resnet20")) == {}


def test_without_a_common_batch_size_each_setup_says_its_own(three):
    for folder, size in zip(three, ("64", "128", "256"), strict=True):
        fleet.edit_rows(folder, lambda row, size=size: row.update(batch_size=size) or consistent(row))
    matrix = matrices_by_basis(*three)[STEPS]
    assert "no two share a batch size" in matrix.batches
    assert {setup.name for setup in matrix.setups} >= {"Card B (batch 128), fp32", "Card A (batch 64), fp32"}


def consistent(row):
    """Make the throughput that of the batch size and the step."""
    if row["step_ms"] and row["samples_per_s"]:
        row.update(samples_per_s=repr(1000 * float(row["batch_size"]) / float(row["step_ms"])))


def test_one_odd_run_leaves_the_others_at_the_batch_that_most_have_and_its_cells_are_marked(three, tmp_path):
    fleet.edit_rows(three[1], lambda row: row.update(batch_size="256") or consistent(row))
    matrix = matrices_by_basis(*three)[STEPS]
    assert matrix.batches == "at batch 128, but for those that were not measured at it"
    assert {setup.name: setup.batch for setup in matrix.setups if "fp32" in setup.name} == {
        "Card A (batch 128), fp32": 128,
        "Card B (batch 256), fp32": 256,
        "Card C (batch 128), fp32": 128,
    }
    for row, cells in zip(matrix.setups, written(matrix), strict=True):
        assert ["*" in cell for cell in cells] == [row.batch != column.batch for column in matrix.setups]
    assert "*: unequal batch sizes" in heat_map(matrix).about
    write_csv(matrix, tmp_path)
    rows = pd.read_csv(tmp_path / "matrix-mlp.csv")
    assert ((rows["batch_size"] == rows["over_batch_size"]) == (rows["equal_batch"] == "yes")).all()
    assert set(rows["equal_batch"]) == {"yes", "no"}
    over = rows.set_index(["setup", "over_setup"])["times_as_fast"]
    assert over["Card C (batch 128), fp32", "Card A (batch 128), fp32"] == pytest.approx(4.0)
    assert "*" not in heat_map(matrices_by_basis(three[0], three[2])[STEPS]).about


def test_a_setup_that_did_not_fit_at_the_common_batch_is_compared_at_its_own(three, tmp_path):
    run = RunBuilder(tmp_path / "small", device=replace(GPU, name="Card D")).speed(batch=64)
    for arm in ("fp32", "amp-bf16"):
        run.lost("speed", arm, "oom")
    matrix = matrices_by_basis(*three, run.folder)[STEPS]
    assert {setup.batch for setup in matrix.setups if "Card D" in setup.name} == {64}


@pytest.mark.parametrize("status", ["oom", "ok"])
def test_two_arms_that_shared_processes_are_paired_whether_or_not_fp32_fitted(tmp_path, status):
    gains = {"amp-fp16": (2.20, 2.22, 2.18), "amp-bf16": (2.0, 2.0, 2.0)}
    run = RunBuilder(tmp_path / "run").together(gains, fp32=status)
    matrix = matrices_by_basis(run.folder, original(tmp_path / "other", train=False))[STEPS]
    named = {setup.arm.key[-1]: setup for setup in matrix.setups if setup.arm.key[0] == "run"}
    logs = np.log(np.array(gains["amp-fp16"]) / np.array(gains["amp-bf16"]))
    paired = scipy_stats.ttest_1samp(logs, 0).confidence_interval(0.95)
    ratio = matrix.over(named["amp-fp16"], named["amp-bf16"])
    assert (ratio.low, ratio.high) == pytest.approx((math.exp(paired.low), math.exp(paired.high)))
    (pair,) = data.pairs(run.summary())
    assert pair[2:] == pytest.approx([math.exp(logs.mean()), ratio.low, ratio.high], rel=1e-4)


def test_devices_of_one_run_and_runs_of_one_device_are_told_apart_and_those_together_are_a_setup(three):
    lines = (three[1] / "trials.csv").read_text().splitlines(keepends=True)
    more = [line.replace(",0,0,Card B,", ",1,1,Card B,").replace("mlp-0-", "mlp-1-") for line in lines[1:]]
    both = [line.replace(",0,0,Card B,", ",0+1,0+1,2 × Card B,").replace("mlp-0-", "mlp-0+1-") for line in lines[1:]]
    (three[1] / "trials.csv").write_text("".join([*lines, *more, *both]))
    names = {setup.name for setup in matrices_by_basis(*three)[STEPS].setups}
    assert {"Card B (GPU 0), fp32", "Card B (GPU 1), fp32", "2 × Card B, fp32", "Card A, fp32"} < names
    again = copy(three[0], three[0].with_name("again"), device="Card A", architecture="Volta")
    assert {setup.name for setup in matrices_by_basis(three[0], again)[STEPS].setups} == {
        f"Card A (run {run}), {arm}" for run in ("one", "again") for arm in ("fp32", "amp-bf16")
    }


def test_what_did_not_fit_is_named_with_its_status(three):
    def lose(row):
        if row["phase"] == "speed" and row["precision"] == "fp32":
            row.update(status="oom", step_ms="", samples_per_s="")

    fleet.edit_rows(three[0], lose)
    matrix = matrices_by_basis(*three)[STEPS]
    assert matrix.absent == ["Card A, fp32 (oom)"]
    assert remarks(matrix)[1:] == ["Without a figure: Card A, fp32 (oom)."]


def test_a_difference_that_may_be_none_is_marked(three, tmp_path):
    twin = copy(three[0], tmp_path / "twin", device="Card D", architecture="Volta", faster=1.001)
    matrix = matrices_by_basis(three[0], twin)[STEPS]
    row = next(
        cells for setup, cells in zip(matrix.setups, written(matrix), strict=True) if setup.name == "Card D, fp32"
    )
    assert "1.00≈" in row
    assert "≈: the 95 % interval holds 1" in heat_map(matrix).about


def test_one_process_has_no_interval_and_that_is_said_once(three):
    for folder in three:
        lines = (folder / "trials.csv").read_text().splitlines(keepends=True)
        kept = [line for line in lines if not re.search(r"-speed-r[12],", line) and "-train-" not in line]
        (folder / "trials.csv").write_text("".join(kept))
        fleet.edit_rows(folder, lambda row: row.update(speedup_low="", speedup_high=""))
    matrix = matrices_by_basis(*three)[STEPS]
    assert "No ratio has an interval" in remarks(matrix)[0]
    assert not any("?" in cell for row in written(matrix) for cell in row)


def many(count: int) -> Matrix:
    setups = []
    for number in range(count):
        key = ("run", "mlp", "", "", "data", "Hopper", "GPU", number, 64, "fp32")
        values = np.array([math.exp(-number / 5)] * 2)
        arm = Arm(key=key, values=values, replicates=[(number, 0), (number, 1)], alone=np.zeros(2, bool))
        setups.append(Setup(name="fp32", batch=64, arm=arm))
    title, slug, batches = "mlp", "matrix-mlp", "at batch 64"
    return Matrix(title=title, slug=slug, basis=STEPS, metric=THROUGHPUT, batches=batches, setups=setups, absent=[])


def test_a_heat_map_diverges_at_1_and_there_is_none_of_very_many_setups():
    chart = heat_map(many(12))
    (panel,) = chart.panels
    heats = {(mark.y[0], mark.x[0]): mark.heat for mark in panel.marks if isinstance(mark, Bar)}
    assert {heats[place, place] for place in range(12)} == {0}
    assert all((heat > 0) == (column > row) for (row, column), heat in heats.items() if row != column)
    assert (heats[0, 11], heats[11, 0]) == (pytest.approx(1), pytest.approx(-1))
    texts = {(mark.y, mark.x): mark.text for mark in panel.marks if isinstance(mark, Text)}
    assert texts[0.5, 2.5] == "1.49"
    assert heat_map(many(MOST_SETUPS + 1)) is None
    assert all("matrix-mlp.csv" in remarks(many(count))[0] for count in (2, MOST_SETUPS + 1))
