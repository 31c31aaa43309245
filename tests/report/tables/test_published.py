"""Published figures compared with measured ones: the same recipe only, and its differences in words."""

import json
import re
from datetime import date

import pandas as pd
import pytest

from bench.report.analysis.summary import summarise
from bench.report.format import known, records
from bench.report.reading.load import load
from bench.report.tables.published import (
    FOLDER,
    WIDER,
    compared_with_published,
    comparisons,
    links,
    load_published,
    pairs,
)
from bench.report.tables.table import Material
from bench.results.records import MemoryPeak
from bench.spec.errors import UsageError
from bench.spec.precisions import find_precision
from tests.conftest import call
from tests.report.builders import MIB, RunBuilder
from tests.report.fleet import edit_rows
from tests.report.tables.lines import column, lines
from tests.report.tables.published import figure


def published_tables(runs, published):
    summary = summarise(runs.trials)
    return compared_with_published(Material(runs=runs, summary=summary, rows=summary, literature=published))


def table(run, *published):
    runs = load([run.folder])
    (rows,) = published_tables(runs, pd.DataFrame(published))
    assert rows is not None
    return rows


def test_measured_and_published_rows_stand_in_one_table_with_their_sources(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0], epoch_s=3.0).train("amp-bf16", [90.0], epoch_s=2.0)
    arm = figure(precision="fp16-master", time_per_epoch_s=25.0, note="FP16 weights")
    shown = table(run, figure(time_per_epoch_s=50.0), arm, figure(model="vgg", time_per_epoch_s=1.0))
    assert column(shown, "source") == ["measured: run", "measured: run", "a post", "a post"]
    assert column(shown, "time/epoch (s)") == ["3.000", "2.000", "50.00", "25.00"]
    assert column(shown, "times as fast as its own fp32") == ["baseline", "1.500", "baseline", "2.000"]
    assert column(shown, "note") == ["–", "–", "–", "FP16 weights"]


def test_times_as_fast_are_taken_within_one_source_gpu_and_batch_only(tmp_path):
    run = RunBuilder(tmp_path / "run").speed()
    rows = table(
        run,
        figure(total_time_s=100.0),
        figure(gpu="P100", total_time_s=300.0),
        figure(gpu="P100", precision="amp-fp16", total_time_s=150.0),
        figure(gpu="T4", precision="amp-fp16", total_time_s=1.0),
    )
    shown = dict(zip(column(rows, "device"), column(rows, "times as fast as its own fp32"), strict=True))
    assert shown["P100"] == "2.000 (by total time)"
    assert shown["T4"] == "–"
    assert shown["NVIDIA Test 1"].endswith("(by step)")


def test_a_batch_size_in_common_leaves_the_others_out_and_says_so(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=128).speed(batch=64)
    shown = table(run, figure(samples_per_s=1.0), figure(batch_size=512.0, samples_per_s=2.0))
    assert column(shown, "batch size") == ["128", "128", "128"]
    assert "Published also at batch 512, which was not measured here." in shown.footnotes
    apart = table(RunBuilder(tmp_path / "other").speed(batch=64), figure(batch_size=512.0, samples_per_s=2.0))
    assert (column(apart, "batch size"), apart.footnotes) == (["64", "64", "512"], [])


def test_what_differs_between_measured_and_published_rows_is_in_columns(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0], epochs=2)
    peak = MemoryPeak(peak_allocated_bytes=100 * MIB, driver_used_bytes=700 * MIB)
    run.result("memory", "fp32", memory=peak)
    edit_rows(run.folder, lambda row: row.update(data="folder:/home/me/cifar10-jpeg"))
    there = {"dataset": "CIFAR-10", "epochs": 200.0, "n_gpus": 1.0, "setup": "torch 1.12", "architecture": "Volta"}
    ours, theirs = lines(table(run, figure(**there, memory_mb=900.0)))
    differ = ("device", "epochs", "data", "software", "GPU memory in use (MiB)")
    assert [ours[name] for name in differ] == ["NVIDIA Test 1", "2", "folder cifar10-jpeg", "torch 2.11.0", "700.0"]
    assert [theirs[name] for name in differ] == ["V100 (Volta)", "200", "CIFAR-10", "torch 1.12", "900.0"]


def test_a_recipe_that_nobody_published_gets_a_sentence(tmp_path):
    runs = load([RunBuilder(tmp_path / "run", suite="resnet20").speed().folder])
    (remark,) = published_tables(runs, load_published())
    assert all(suite in remark for suite in ("resnet20", "resnet50", "intel_resnet18", "cifar10_resnet18"))


def test_the_projects_own_file_is_read_and_holds_the_recipes_that_it_is_matched_by(tmp_path):
    published = load_published()
    sources = set()
    for suite in ("resnet50", "intel_resnet18", "cifar10_resnet18"):
        runs = load([RunBuilder(tmp_path / suite, suite=suite).speed().folder])
        (rows,) = published_tables(runs, published)
        sources |= set(column(rows, "source"))
        if suite == "resnet50":
            v100 = [line for line in lines(rows) if line["device"].startswith("Tesla V100")]
            (master,) = [line for line in v100 if line["precision"] == "fp16-master"]
            assert master["times as fast as its own fp32"] == "1.840"
    assert not [source for source in sources if source.startswith(("NVIDIA", "Lambda"))]  # ImageNet, another recipe
    runs = load([RunBuilder(tmp_path / "vit", suite="vit_b_16").speed(batch=192).folder])
    (rows,) = published_tables(runs, published)
    assert column(rows, "layout")[-2:] == ["nchw", "channels_last"]


def test_published_comparisons_have_their_ratio_its_spread_the_change_in_memory_and_an_address():
    address = {"repository": "me/mine", "path": "a/b.md", "commit": "c0ffee"}
    rows = [
        figure(samples_per_s=100.0, spread=3.0, memory_mb=800.0, note="hot; limited"),
        figure(samples_per_s=200.0, spread=8.0, memory_mb=600.0, precision="amp-fp16", note="limited", **address),
        figure(samples_per_s=500.0, precision="fp16-master", layout="channels_last"),
    ]
    ratios, accuracies = comparisons(pd.DataFrame(rows))
    (line,) = lines(ratios)
    assert (line["precisions"], line["times as fast"]) == ("fp32 → amp-fp16", "2.000")
    assert (line["its spread"], line["memory"], line["notes"]) == ("±5.0 %", "−25 %", "hot; limited")
    assert line["where"] == "https://github.com/me/mine/blob/c0ffee/a/b.md"
    assert accuracies is None
    assert comparisons(pd.DataFrame(rows[:1])) == [None, None]


def test_a_ratio_that_a_source_states_without_times_stands_as_stated_in_both_tables(tmp_path):
    stated = figure(precision="amp-fp16", times_as_fast=1.3)
    ratios, _ = comparisons(pd.DataFrame([stated]))
    assert [(line["precisions"], line["times as fast"]) for line in lines(ratios)] == [
        ("fp32 → amp-fp16", "1.300 (as stated)")
    ]
    run = RunBuilder(tmp_path / "run").speed()
    assert column(table(run, stated), "times as fast as its own fp32")[-1] == "1.300 (as stated)"


def test_accuracies_alone_are_a_table_with_the_difference_in_points_or_the_words_in_its_place(literature):
    _, accuracies = comparisons(literature)
    shown = {(line["model"], line["precisions"]): line for line in lines(accuracies)}
    alexnet = shown["AlexNet", "fp32 → fp16-master"]
    assert (alexnet["of the first (%)"], alexnet["difference (points)"]) == ("56.77", "+0.16")
    ssd = shown["Multibox SSD", "fp32 → fp16-master-noscale"]
    assert (ssd["metric"], ssd["of the second (%)"], ssd["difference (points)"]) == ("VOC 2007 mAP", "diverges", "–")
    other = [figure(quality=80.0, quality_metric="map_pct"), figure(quality=90.0, quality_metric="top1_pct")]
    other[1]["precision"] = "amp-fp16"
    (line,) = lines(comparisons(pd.DataFrame(other))[1])
    assert line["difference (points)"] == "–"  # of two metrics


@pytest.mark.parametrize(
    ("parameters", "precision", "expected"),
    [
        (
            {},
            "amp-bf16",
            [
                "--set recipe=published",
                "published are fp32 and fp16-master",
                "2 epochs, not 200",
                "published with Data",
            ],
        ),
        ({"recipe": "published"}, "fp32", ["2 epochs, not 200", "published with DataParallel"]),
    ],
)
def test_a_measured_row_says_in_what_its_recipe_differs_from_the_published_one(
    tmp_path, parameters, precision, expected
):
    run = RunBuilder(tmp_path / "run", suite="resnet50").train(precision, [90.0])
    edit_rows(run.folder, lambda row: row.update(parameters_json=json.dumps(parameters)))
    there = {"model": "resnet50", "dataset": "CIFAR-10", "epochs": 200.0, "setup": "DataParallel"}
    rows = table(
        run, figure(**there, quality=94.5, quality_metric="top1_pct"), figure(**there, precision="fp16-master")
    )
    differs = column(rows, "what differs from the published recipe")[0].split("; ")
    assert len(differs) == len(expected)
    assert all(words in part for words, part in zip(expected, differs, strict=True))
    assert column(rows, "best epoch, tested in fp32 (%)")[-2:] == ["94.50", "–"]


def test_the_flag_reaches_the_page_from_any_directory(tmp_path):
    run = RunBuilder(tmp_path / "run", suite="resnet50").train("fp32", [90.0]).folder
    words = ["report", run, "--figures", "none", "--out", tmp_path / "out"]
    page = tmp_path / "out" / "details.md"
    for more, shown in (["--published"], True), ([], False):
        call(*words, *more, cwd=tmp_path)
        for title in "### Compared with published figures", "## Published figures":
            assert (title in page.read_text()) == shown


# The literature: rows that can be looked up, ratios of precisions alone, and figures as their sources print them.


NOWHERE = {
    "PyTorch Lightning AMP post, 2020-09-07",
    "Micikevicius et al., Mixed Precision Training (ICLR 2018)",
}
"""Sources that are no repository."""
ELSEWHERE = {*WIDER, "fp16-master-noscale", "rowwise_with_gw_hp"}
"""Precisions that a source runs and this project does not."""


@pytest.fixture(scope="module")
def literature():
    return load_published()


def compared_pairs(*rows):
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
    assert not literature.duplicated().any()


@pytest.mark.parametrize(
    ("before", "after", "compared"),
    [
        ({}, {}, True),
        ({"batch_size": float("nan")}, {"batch_size": float("nan")}, True),  # what a source does not state is the same
        ({}, {"batch_size": float("nan")}, False),
        *(({}, {name: "another"}, False) for name in ("source", "model", "dataset", "setup", "gpu", "host")),
        *(({}, {name: "another"}, False) for name in ("layout", "compile", "fp32_mode")),
        ({}, {"precision": "tf32", "fp32_mode": "tf32"}, True),  # of tf32 that is the precision
        ({"value": 30.0, "unit": "tokens/s"}, {"value": 30.0, "unit": "tokens/s per GPU"}, False),
    ],
)
def test_rows_are_a_pair_where_they_agree_in_all_but_the_precision(before, after, compared):
    assert len(compared_pairs(before, before | {"precision": "amp-fp16"} | after)) == compared


def test_a_switch_that_changed_nothing_is_no_precision_of_its_own(literature):
    amd = literature[literature["gpu"] == "MI325"]
    assert set(amd["precision"]) == {"fp32", "amp-fp16"}
    assert set(pairs(amd)["precision_base"]) == {"fp32"}


def test_a_third_precision_is_compared_with_each_that_is_wider():
    arms = compared_pairs(*({"precision": name} for name in ("amp-fp16", "tf32", "fp32")))
    names = {(pair["precision_base"], pair["precision"]) for pair in arms}
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
    (pair,) = compared_pairs(before, {"precision": "amp-fp16"} | after)
    assert (pair["times"], pair["by"]) == (pytest.approx(speedup, nan_ok=True), by)


def test_every_file_of_a_folder_is_read_and_without_one_or_with_a_broken_one_a_sentence_says_so(tmp_path):
    with pytest.raises(UsageError, match=r"no published figures in.*without --published"):
        load_published(tmp_path)
    for name in ("one", "two"):
        text = (FOLDER / "published.csv").read_text().splitlines(keepends=True)[:3]
        (tmp_path / f"{name}.csv").write_text("".join(text))
    assert len(load_published(tmp_path)) == 4
    (tmp_path / "own.csv").write_text("source,model\na post,mlp\n")
    with pytest.raises(UsageError, match=r"own\.csv' cannot be read as published figures"):
        load_published(tmp_path)
