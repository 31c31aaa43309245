"""The literature: rows that can be looked up, ratios of precisions alone, and figures as their sources print them."""

import re
from datetime import date

import pandas as pd
import pytest

from bench.report.analysis.literature import (
    FOLDER,
    MATRIX,
    WIDER,
    Figure,
    link,
    load_published,
    pairs,
    published_matrix,
    same_figures,
)
from bench.report.format import known, records
from bench.spec.errors import UsageError
from bench.spec.precisions import find_precision
from tests.report.tables.published import figure

PRINTED = """
|  | 1xP100:FP32 | 1xP100:FP16 | 4xP100:FP32 | 4xP100:FP16 | 1xV100:FP32 | 1xV100:FP16 | 4xV100:FP32
1xP100:FP16 | 22.67 % | 0.0 % | 0.0 % | 0.0 % | 0.0 % | 0.0 % | 0.0 %
4xP100:FP32 | 250.82 % | 186.0 % | 0.0 % | 0.0 % | 79.65 % | 0.0 % | 0.0 %
4xP100:FP16 | 293.85 % | 221.08 % | 12.27 % | 0.0 % | 101.69 % | 9.6 % | 0.0 %
1xV100:FP32 | 95.28 % | 59.2 % | 0.0 % | 0.0 % | 0.0 % | 0.0 % | 0.0 %
1xV100:FP16 | 259.36 % | 192.96 % | 2.43 % | 0.0 % | 84.02 % | 0.0 % | 0.0 %
4xV100:FP32 | 415.67 % | 320.38 % | 46.99 % | 30.93 % | 164.07 % | 43.5 % | 0.0 %
4xV100:FP16 | 616.9 % | 484.43 % | 104.35 % | 82.02 % | 267.12 % | 99.49 % | 39.02 %
"""
"""As the README of ``MATRIX`` prints it."""
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
    return pairs(pd.DataFrame([figure(**row) for row in rows]))


def test_the_published_matrix_comes_out_to_its_printed_digits(literature):
    found = published_matrix(literature)
    header, *lines = ([cell.strip() for cell in line.split("|")] for line in PRINTED.strip().splitlines())
    assert list(found.columns) == header[2:]
    assert [[name, *(f"{round(value, 2)} %" for value in line)] for name, line in found.T.items()] == lines


def test_the_matrix_follows_the_rows(literature):
    slower = literature.copy()
    slower.loc[slower["source"] == MATRIX, "time_per_epoch_s"] += 10
    assert not published_matrix(slower).equals(published_matrix(literature))


def test_every_row_has_a_place_where_a_reader_finds_it(literature):
    for row in records(literature):
        assert date.fromisoformat(row["date"])
        if row["source"] in NOWHERE:
            assert not row["repository"]
            continue
        assert re.fullmatch(r"[\w.-]+/[\w.-]+", row["repository"])
        assert re.fullmatch(r"[0-9a-f]{40}", row["commit"])
        assert row["path"]
        assert link(row) == f"https://github.com/{row['repository']}/blob/{row['commit']}/{row['path']}"


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
            ("amp-fp16", "channels_last", 256.0),
        )
    ]
    (pair,) = made(*rows)
    assert (pair.base["row"], pair.other["row"], pair.differs) == (1, 2, ())


@pytest.mark.parametrize(
    ("change", "differs"),
    [
        ({}, ()),
        ({"batch_size": 256.0}, ("batch size",)),
        ({"layout": "channels_last", "compile": "yes"}, ("layout", "compile")),
        ({"batch_size": float("nan")}, ("batch size",)),
    ],
)
def test_what_differs_beside_the_precision_is_named(change, differs):
    (pair,) = made({}, {"precision": "tf32"} | change)
    assert pair.differs == differs


@pytest.mark.parametrize(("mode", "differs"), [("tf32", ()), ("ieee", ("fp32 products",))])
def test_fp32_that_is_multiplied_otherwise_beside_a_mixed_precision_is_a_difference(mode, differs):
    rows = {"fp32": "ieee", "tf32": "tf32", "amp-fp16": mode}
    found = made(*({"precision": name, "fp32_mode": fp32_mode} for name, fp32_mode in rows.items()))
    told = {(pair.base["precision"], pair.other["precision"]): pair.differs for pair in found}
    assert told["fp32", "tf32"] == ()  # it is the precision
    assert told["tf32", "amp-fp16"] == differs
    assert bool(told["fp32", "amp-fp16"]) != bool(differs)


def test_where_nothing_agrees_in_all_the_closest_is_compared_if_there_is_one():
    rows = [{"precision": "tf32", "fp32_mode": "tf32", "batch_size": size} for size in (64.0, 128.0)]
    (pair,) = made(*rows, {"precision": "amp-fp16", "fp32_mode": "ieee", "batch_size": 64.0})
    assert (pair.base["row"], pair.differs) == (0, ("fp32 products",))
    assert made(*rows, {"precision": "amp-fp16", "fp32_mode": "ieee", "batch_size": 32.0}) == []


def test_a_switch_that_changed_nothing_is_no_precision_of_its_own(literature):
    amd = literature[literature["gpu"] == "MI325"]
    assert set(amd["precision"]) == {"fp32", "amp-fp16"}
    assert {(pair.base["precision"], pair.other["precision"]) for pair in pairs(amd)} == {("fp32", "amp-fp16")}


@pytest.mark.parametrize("name", ["source", "model", "dataset", "setup", "gpu", "host"])
def test_rows_of_different_experiments_are_no_pair(name):
    assert made({}, {"precision": "amp-fp16", name: "another"}) == []


def test_what_a_source_does_not_state_is_no_difference():
    unknown = {"batch_size": float("nan")}
    (pair,) = made(unknown, unknown | {"precision": "amp-fp16"})
    assert pair.differs == ()


def test_a_third_precision_is_compared_with_each_that_is_wider():
    found = made(*({"precision": name} for name in ("amp-fp16", "tf32", "fp32")))
    names = {(pair.base["precision"], pair.other["precision"]) for pair in found}
    assert names == {("fp32", "tf32"), ("fp32", "amp-fp16"), ("tf32", "amp-fp16")}


@pytest.mark.parametrize(
    ("before", "after", "speedup"),
    [
        ({"time_per_epoch_s": 30.0, "samples_per_s": 1.0}, {"time_per_epoch_s": 20.0, "samples_per_s": 9.0}, 1.5),
        ({"total_time_s": 30.0}, {"total_time_s": 60.0}, 0.5),
        ({"samples_per_s": 30.0}, {"samples_per_s": 60.0}, 2.0),
        ({"value": 30.0, "unit": "tokens/s"}, {"value": 45.0, "unit": "tokens/s"}, 1.5),
        ({"value": 30.0, "unit": "tokens/s"}, {"value": 45.0, "unit": "tokens/s per GPU"}, None),
        ({"samples_per_s": 30.0}, {"time_per_epoch_s": 45.0}, None),
    ],
)
def test_a_speedup_is_of_two_figures_of_one_kind(before, after, speedup):
    (pair,) = made(before, {"precision": "amp-fp16"} | after)
    assert pair.speedup[0] == pytest.approx(speedup, nan_ok=True) if speedup else not known(pair.speedup[0])


def test_the_spread_of_a_ratio_is_that_of_both_rows():
    (pair,) = made(
        {"samples_per_s": 100.0, "spread": 3.0}, {"precision": "tf32", "samples_per_s": 200.0, "spread": 8.0}
    )
    assert pair.spread == pytest.approx(0.05)
    (pair,) = made({"samples_per_s": 100.0}, {"precision": "tf32", "samples_per_s": 200.0, "spread": 8.0})
    assert not known(pair.spread)


def test_sources_agree_on_bert_and_differ_on_resnet50(literature):
    figures = same_figures(literature)
    bert = figures[Figure("bert", "V100", 1, "fp32", "mixed precision")]
    resnet = figures[Figure("resnet50", "A100", 1, "tf32", "mixed precision")]
    told = {(pair.base["source"].split()[0], f"{pair.speedup[0]:.2f}") for pair in bert}
    assert {("NVIDIA", "4.48"), ("Lambda", "4.50")} < told
    told = {(pair.base["source"].split()[0], f"{pair.speedup[0]:.2f}") for pair in resnet}
    assert {("NVIDIA", "2.63"), ("Lambda", "1.48")} < told
    (nvidia,) = (pair for pair in resnet if f"{pair.speedup[0]:.2f}" == "2.63")
    assert nvidia.differs == ("layout",)


def test_one_source_alone_is_no_figure_of_several():
    rows = [{"samples_per_s": 1.0}, {"samples_per_s": 2.0, "precision": "amp-fp16"}]
    several = [
        figure(gpu=gpu, source=source, **row)
        for gpu, source in (("Tesla V100", "a"), ("V100-16GB", "b"))
        for row in rows
    ]
    (found,) = same_figures(pd.DataFrame(several))
    assert found == Figure("mlp", "V100", None, "fp32", "mixed precision")
    assert same_figures(pd.DataFrame(several[:2])) == {}


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
