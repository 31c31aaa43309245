"""Published figures: rows of the summary among the measured ones, each with the place where it can be read."""

import re
from datetime import date

import pandas as pd
import pytest

from bench.report.analysis.published import FIGURES, FOLDER, as_measured, load_published
from bench.report.format import known, records
from bench.report.page import compose
from bench.report.reading.load import load
from bench.spec.errors import UsageError
from bench.spec.precisions import find_precision
from tests.conftest import call
from tests.report.builders import RunBuilder
from tests.report.tables.lines import lines

NOWHERE = {
    "PyTorch Lightning AMP post, 2020-09-07",
    "Micikevicius et al., Mixed Precision Training (ICLR 2018)",
}
"""Sources that are no repository."""
ELSEWHERE = {"rowwise_with_gw_hp", "bf16-master", "fp16-master-noscale"}
"""Precisions that a source runs and this project does not."""


@pytest.fixture(scope="module")
def literature() -> pd.DataFrame:
    return load_published()


def figures(*given: dict) -> pd.DataFrame:
    """Rows of the literature in which only these fields are given."""
    plain = dict.fromkeys(load_published(), "") | dict.fromkeys(FIGURES, float("nan"))
    usual = {"source": "a post", "model": "mlp", "gpu": "V100", "precision": "fp32", "batch_size": 128.0}
    return pd.DataFrame([plain | usual | row for row in given])


def second(*given: dict) -> dict:
    """The second of two published rows as the summary has it."""
    return records(as_measured(figures(*given)))[1]


def test_published_rows_stand_in_the_table_the_matrix_and_the_figure_of_the_measured_recipe(tmp_path):
    run = RunBuilder(tmp_path / "run", suite="resnet50").speed().train("fp32", [90.0]).train("amp-bf16", [90.0])
    measured, report = (compose(load([run.folder]), tmp_path, rows) for rows in (None, load_published()))
    shown = {(line["device"], line["precision"]): line for line in lines(report.architectures[0])}
    v100 = shown["Tesla V100 (published)", "fp16-master"]
    of_v100 = [v100[name] for name in ("time/epoch (s)", "speedup [95 % interval]", "accuracy (%)")]
    assert of_v100 == ["25.60", "1.840", "94.65"]
    assert report.speedups[0].workload == "resnet50"
    assert len({report.tints[device] for device, _ in shown}) == 6
    assert not report.tints["L40S (published)"].startswith("rest")  # of a workload with few devices
    assert "fp16-master" in report.precisions  # so that the page's bar does not hide its panel
    assert report.lead == measured.lead
    assert [verdict.evidence for verdict in report.verdicts] == [verdict.evidence for verdict in measured.verdicts]


def test_an_accuracy_without_times_is_a_row_and_divergence_the_word_in_its_place(literature):
    rows = records(as_measured(literature))
    shown = {(row["model"], row["precision"]): row for row in rows if row["dataset"] in ("ILSVRC12", "Pascal VOC 2007")}
    alexnet = shown["AlexNet", "fp16-master"]
    assert (known(alexnet["speed_status"]), alexnet["accuracy_verdict"]) == (False, "insufficient seeds")
    ssd = shown["Multibox SSD", "fp16-master"]
    assert (ssd["quality"], ssd["quality_name"], known(ssd["accuracy_pct"])) == (77.1, "VOC 2007 mAP", False)
    assert shown["Multibox SSD", "fp16-master-noscale"]["train_status"] == "nonfinite"


@pytest.mark.parametrize(
    ("fp32", "other", "speedup"),
    [
        ({"time_per_epoch_s": 30.0, "samples_per_s": 1.0}, {"time_per_epoch_s": 20.0, "samples_per_s": 9.0}, 1.5),
        ({"total_time_s": 30.0, "epochs": 2.0}, {"total_time_s": 60.0, "epochs": 2.0}, 0.5),
        ({"samples_per_s": 30.0}, {"samples_per_s": 60.0}, 2.0),
        ({"tokens_per_s": 30.0}, {"tokens_per_s": 45.0}, 1.5),
        ({"samples_per_s": 30.0}, {"time_per_epoch_s": 45.0}, float("nan")),
        ({}, {"times_as_fast": 1.3}, 1.3),
    ],
)
def test_a_speedup_is_of_two_figures_of_one_kind_or_as_stated(fp32, other, speedup):
    row = second(fp32, {"precision": "amp-fp16"} | other)
    assert row["speedup"] == pytest.approx(speedup, nan_ok=True)
    assert not known(row["speedup_low"])


@pytest.mark.parametrize(
    ("differs", "compared"),
    [
        ({}, True),
        ({"batch_size": float("nan")}, False),
        *(({name: "another"}, False) for name in ("source", "model", "dataset", "setup", "gpu", "variant")),
        ({"n_gpus": 4.0}, False),
    ],
)
def test_a_published_row_is_compared_with_fp32_that_agrees_in_all_but_the_precision(differs, compared):
    row = second({"memory_mb": 800.0}, {"memory_mb": 600.0, "precision": "tf32"} | differs)
    assert (row["memory_change_ratio"] == -0.25) == compared


def test_the_flag_reaches_the_page_from_any_directory(tmp_path):
    run = RunBuilder(tmp_path / "run", suite="resnet50").train("fp32", [90.0]).folder
    for more, is_shown in (["--published"], True), ([], False):
        call("report", run, "--figures", "none", "--out", tmp_path / "out", *more, cwd=tmp_path)
        for name in ("report.md", "report.html"):
            assert ("Tesla V100 (published)" in (tmp_path / "out" / name).read_text()) == is_shown


def test_every_row_has_a_place_where_a_reader_finds_it(literature):
    for row in records(literature):
        assert date.fromisoformat(row["date"])
        assert row["source"] in NOWHERE or re.fullmatch(
            r"https://github\.com/[\w.-]+/[\w.-]+/blob/[0-9a-f]{40}/.+", row["link"]
        )


def test_every_row_has_a_figure_or_says_why_not_in_words_that_are_described(literature):
    described = (FOLDER / "README.md").read_text()
    for row in records(literature):
        assert any(known(row[name]) for name in FIGURES[3:]) or row["note"]
        assert row["fp32_mode"] in ("ieee", "tf32", "unknown", "")
        assert find_precision(row["precision"]) or row["precision"] in ELSEWHERE
        assert f"`{row['source']}`" in described
    assert all(f"`{name}`" in described for name in literature.columns)
    assert not as_measured(literature).duplicated(["workload", "where", "batch_size", "precision"]).any()


@pytest.mark.parametrize(("old", "new"), [("\n", ",1\n"), (",92,", ",ninety-two,"), (None, None)])
def test_a_file_that_cannot_be_read_is_named(tmp_path, monkeypatch, old, new):
    monkeypatch.setattr("bench.report.analysis.published.FOLDER", tmp_path)
    header, first = (FOLDER / "published.csv").read_text().splitlines(keepends=True)[:2]
    if old:
        (tmp_path / "published.csv").write_text(header + first + first.replace(old, new))
    with pytest.raises(UsageError, match=re.escape(str(tmp_path))):
        load_published()
