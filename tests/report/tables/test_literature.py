"""The literature: rows that can be looked up, ratios of precisions alone, and figures as their sources print them."""

import re
from datetime import date

import pandas as pd
import pytest

from bench.report.format import known, records
from bench.report.tables.published import (
    FOLDER,
    WIDER,
    links,
    load_published,
    pairs,
)
from bench.spec.errors import UsageError
from bench.spec.precisions import find_precision
from tests.report.tables.published import figure

NOWHERE = {
    "PyTorch Lightning AMP post, 2020-09-07",
    "Micikevicius et al., Mixed Precision Training (ICLR 2018)",
}
"""Sources that are no repository."""
ELSEWHERE = {*WIDER, "fp16-master-noscale"}
"""Precisions that a source runs and this project does not."""


@pytest.fixture(scope="module")
def literature():
    return load_published()


def made(*rows):
    return records(pairs(pd.DataFrame([figure(**row) for row in rows])))


def test_every_row_has_a_place_where_a_reader_finds_it(literature):
    for row in records(literature.assign(link=links(literature))):
        assert date.fromisoformat(row["date"])
        if row["source"] in NOWHERE:
            assert not row["repository"]
            assert row["link"] == row["path"]
            continue
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", row["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert row["path"]
        assert row["link"] == f"https://github.com/{row['repository']}/blob/{row['commit']}/{row['path']}"


def test_every_row_has_a_figure_or_says_why_not_in_words_that_are_described(literature):
    described = (FOLDER / "README.md").read_text()
    for row in records(literature):
        speeds = ("time_per_epoch_s", "total_time_s", "samples_per_s", "value", "quality")
        assert any(known(row[name]) for name in speeds) or row["note"]
        assert (row["unit"] != "") == known(row["value"])
        assert row["fp32_mode"] in ("ieee", "tf32", "unknown", "")
        assert row["layout"] in ("nchw", "channels_last", "")
        assert row["compile"] in ("no", "yes", "torchscript", "")
        assert find_precision(row["precision"]) or row["precision"] in ELSEWHERE
        assert f"`{row['source']}`" in described
    assert all(f"`{name}`" in described for name in literature.columns)


def test_no_row_stands_twice(literature):
    assert not literature.duplicated().any()


def test_precisions_are_compared_in_rows_that_agree_in_all_else():
    rows = [
        {"precision": precision, "layout": layout, "batch_size": batch}
        for precision, layout, batch in (
            ("fp32", "nchw", 64.0),
            ("fp32", "nchw", 128.0),
            ("amp-fp16", "nchw", 128.0),
            ("amp-fp16", "channels_last", 128.0),
        )
    ]
    (pair,) = made(*rows)
    assert (pair["batch_size"], pair["row"], pair["precision_base"]) == (128, 2, "fp32")


@pytest.mark.parametrize(
    ("before", "after", "compared"),
    [
        ({}, {}, True),
        ({"batch_size": float("nan")}, {"batch_size": float("nan")}, True),  # what a source does not state is the same
        ({}, {"batch_size": float("nan")}, False),
        *(({}, {name: "another"}, False) for name in ("source", "model", "dataset", "setup", "gpu", "host")),
        *(({}, {name: "another"}, False) for name in ("layout", "compile", "fp32_mode")),
    ],
)
def test_rows_are_a_pair_where_they_agree_in_all_but_the_precision(before, after, compared):
    assert len(made(before, before | {"precision": "amp-fp16"} | after)) == compared


def test_of_tf32_the_way_of_multiplying_fp32_is_the_precision():
    rows = {"fp32": "ieee", "tf32": "tf32", "amp-fp16": "ieee"}
    found = made(*({"precision": name, "fp32_mode": mode} for name, mode in rows.items()))
    assert [(pair["precision_base"], pair["precision"]) for pair in found] == [("fp32", "tf32"), ("fp32", "amp-fp16")]


def test_a_switch_that_changed_nothing_is_no_precision_of_its_own(literature):
    amd = literature[literature["gpu"] == "MI325"]
    assert set(amd["precision"]) == {"fp32", "amp-fp16"}
    assert set(pairs(amd)["precision_base"]) == {"fp32"}


def test_a_third_precision_is_compared_with_each_that_is_wider():
    found = made(*({"precision": name} for name in ("amp-fp16", "tf32", "fp32")))
    names = {(pair["precision_base"], pair["precision"]) for pair in found}
    assert names == {("fp32", "tf32"), ("fp32", "amp-fp16"), ("tf32", "amp-fp16")}


@pytest.mark.parametrize(
    ("before", "after", "speedup", "by"),
    [
        ({"time_per_epoch_s": 30.0, "samples_per_s": 1.0}, {"time_per_epoch_s": 20.0, "samples_per_s": 9.0}, 1.5, ""),
        ({"total_time_s": 30.0}, {"total_time_s": 60.0}, 0.5, " (by total time)"),
        ({"samples_per_s": 30.0}, {"samples_per_s": 60.0}, 2.0, " (by throughput)"),
        ({"value": 30.0, "unit": "tokens/s"}, {"value": 45.0, "unit": "tokens/s"}, 1.5, " (by throughput)"),
        ({"samples_per_s": 30.0}, {"time_per_epoch_s": 45.0}, float("nan"), ""),
    ],
)
def test_a_speedup_is_of_two_figures_of_one_kind(before, after, speedup, by):
    (pair,) = made(before, {"precision": "amp-fp16"} | after)
    assert (pair["times"], pair["by"]) == (pytest.approx(speedup, nan_ok=True), by)


def test_rates_of_other_units_are_not_compared():
    tokens = {"value": 30.0, "unit": "tokens/s"}
    assert made(tokens, tokens | {"precision": "amp-fp16", "unit": "tokens/s per GPU"}) == []


@pytest.mark.parametrize(("spread", "of_both"), [(3.0, 0.05), (float("nan"), float("nan"))])
def test_the_spread_of_a_ratio_is_that_of_both_rows(spread, of_both):
    faster = {"precision": "tf32", "samples_per_s": 200.0, "spread": 8.0}
    (pair,) = made({"samples_per_s": 100.0, "spread": spread}, faster)
    assert pair["spread_of_times"] == pytest.approx(of_both, nan_ok=True)


def test_a_folder_without_figures_and_a_broken_file_are_told_in_a_sentence(tmp_path):
    with pytest.raises(UsageError, match=r"no published figures in.*without --published"):
        load_published(tmp_path)
    (tmp_path / "own.csv").write_text("source,model\na post,mlp\n")
    with pytest.raises(UsageError, match=r"own\.csv' cannot be read as published figures"):
        load_published(tmp_path)


def test_further_files_of_published_figures_are_read_too(tmp_path):
    for name in ("one", "two"):
        text = (FOLDER / "published.csv").read_text().splitlines(keepends=True)[:3]
        (tmp_path / f"{name}.csv").write_text("".join(text))
    assert len(load_published(tmp_path)) == 4
