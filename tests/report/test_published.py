"""Published figures: each with its speedup, and the place where it can be read."""

import re
from datetime import date

import pandas as pd
import pytest

from bench.report import published
from bench.report.format import known, records
from bench.report.published import FIGURES, FOLDER, load_published
from bench.spec.errors import UsageError
from bench.spec.precisions import find_precision
from tests.conftest import call
from tests.report.builders import RunBuilder

NOWHERE = {
    "PyTorch Lightning AMP post, 2020-09-07",
    "Micikevicius et al., Mixed Precision Training (ICLR 2018)",
}
"""Sources that are no repository."""
ELSEWHERE = {"mxfp8", "rowwise_with_gw_hp", "bf16-master", "fp16-master-noscale"}
"""Precisions that a source runs and this project does not."""
COLUMNS = [*pd.read_csv(FOLDER / "published.csv", nrows=0)]
MEASURED = FIGURES[3:]
"""Figures that a source may have measured."""
LINK = r"https://github\.com/[\w.-]+/[\w.-]+/blob/[0-9a-f]{40}/.+"


@pytest.fixture
def compared(tmp_path, monkeypatch):
    """Publish a row in fp32 and another, with these fields alone; return how the other compares."""
    monkeypatch.setattr(published, "FOLDER", tmp_path)

    def compare(fp32, other):
        usual = {"source": "a post", "gpu": "V100", "precision": "fp32", "batch_size": 128}
        rows = pd.DataFrame([usual | fp32, usual | other], columns=COLUMNS)
        rows.to_csv(tmp_path / "published.csv", index=False)
        return load_published().iloc[1]

    return compare


@pytest.mark.parametrize(
    ("fp32", "other", "speedup"),
    [
        (
            {"time_per_epoch_s": 30.0, "samples_per_s": 1.0},
            {"time_per_epoch_s": 20.0, "samples_per_s": 9.0},
            1.5,
        ),
        ({"tokens_per_s": 30.0}, {"tokens_per_s": 45.0}, 1.5),
        ({"total_time_s": 60.0, "epochs": 2}, {"time_per_epoch_s": 20.0}, 1.5),
        ({}, {"times_as_fast": 1.5}, 1.5),
        ({"samples_per_s": 30.0}, {"time_per_epoch_s": 45.0}, float("nan")),
    ],
)
def test_a_speedup_is_of_two_figures_of_one_kind(compared, fp32, other, speedup):
    row = compared(fp32, {"precision": "amp-fp16", **other})
    assert row["speedup"] == pytest.approx(speedup, nan_ok=True)


@pytest.mark.parametrize(
    ("differs", "is_compared"),
    [
        ({}, True),
        ({"precision": "fp32"}, False),  # nor is fp32 with itself
        ({"batch_size": float("nan")}, False),
        ({"source": "another"}, False),
        ({"gpu": "another"}, False),
        ({"n_gpus": 4.0}, False),
    ],
)
def test_a_published_row_is_compared_with_fp32_that_agrees_in_all_but_the_precision(
    compared, differs, is_compared
):
    fp32 = {"accuracy_pct": 90, "map50_pct": 40}
    other = {"accuracy_pct": 91, "map50_pct": 42, "precision": "tf32"}
    row = compared(fp32, other | differs)
    assert (row["accuracy_change"] == 1) == is_compared
    assert (row["map50_change"] == 2) == is_compared


@pytest.mark.parametrize(
    ("options", "is_shown"),
    [
        (["--published"], True),
        ([], False),
    ],
)
def test_the_flag_reaches_the_page_from_any_directory(tmp_path, options, is_shown):
    run = RunBuilder(tmp_path / "run", suite="resnet50")
    run.train("fp32", [90.0])
    call("report", run.folder, "--figures=none", "--out=out", *options, cwd=tmp_path)
    page = tmp_path / "out" / "report.html"
    assert ("Tesla V100" in page.read_text()) == is_shown


def test_without_the_file_the_error_is_not_that_of_a_folder_that_cannot_be_written(
    tmp_path, monkeypatch
):
    monkeypatch.setattr(published, "FOLDER", tmp_path)
    with pytest.raises(UsageError, match="without the published figures"):
        load_published()


def test_every_row_is_found_in_its_source_and_has_a_figure_or_says_why_not_in_described_words():
    described = (FOLDER / "README.md").read_text()
    for name in COLUMNS:
        assert f"`{name}`" in described
    for row in records(load_published()):
        assert date.fromisoformat(row["date"])
        assert f"`{row['source']}`" in described
        if row["source"] not in NOWHERE:
            assert re.fullmatch(LINK, row["link"])
        if not row["note"]:
            assert any(map(known, map(row.get, MEASURED)))
        assert row["fp32_mode"] in ("ieee", "tf32", "unknown", "")
        if row["precision"] not in ELSEWHERE:
            assert find_precision(row["precision"])
