"""Published figures beside measured ones: the same recipe only, and its differences in words."""

import re

import pandas as pd
import pytest

from bench.report.analysis.literature import load_published
from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.report.tables.published import published_beside
from bench.results.records import MemoryPeak, TrialResult
from tests.conftest import call
from tests.report.builders import MIB, RunBuilder
from tests.report.fleet import edit_rows
from tests.report.tables.lines import column, lines
from tests.report.tables.published import figure


def table(run, *published):
    runs = load([run.folder])
    found, remarks = published_beside(summarise(runs.trials), runs, pd.DataFrame(published))
    assert found is not None
    assert remarks == []
    return found


def test_measured_and_published_rows_stand_in_one_table_with_their_sources(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0], epoch_s=3.0).train("amp-bf16", [90.0], epoch_s=2.0)
    arm = figure(precision="fp16-master", time_per_epoch_s=25.0, note="FP16 weights")
    found = table(run, figure(time_per_epoch_s=50.0), arm, figure(model="vgg", time_per_epoch_s=1.0))
    assert column(found, "source") == ["measured: run", "measured: run", "a post", "a post"]
    assert column(found, "time/epoch (s)") == ["3.000", "2.000", "50.00", "25.00"]
    assert column(found, "times as fast as its own fp32") == ["baseline", "1.500", "baseline", "2.000"]
    assert column(found, "note") == ["–", "–", "–", "FP16 weights"]


def test_times_as_fast_are_taken_within_one_source_gpu_and_batch_only(tmp_path):
    run = RunBuilder(tmp_path / "run").speed()
    found = table(
        run,
        figure(total_time_s=100.0),
        figure(gpu="P100", total_time_s=300.0),
        figure(gpu="P100", precision="amp-fp16", total_time_s=150.0),
        figure(gpu="T4", precision="amp-fp16", total_time_s=1.0),
    )
    shown = dict(zip(column(found, "device"), column(found, "times as fast as its own fp32"), strict=True))
    assert shown["P100"] == "2.000 (by total time)"
    assert shown["T4"] == "–"
    assert shown["NVIDIA Test 1"].endswith("(by step)")


def test_a_batch_size_in_common_leaves_the_others_out_and_says_so(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=128).speed(batch=64)
    found = table(run, figure(samples_per_s=1.0), figure(batch_size=512.0, samples_per_s=2.0))
    assert column(found, "batch size") == ["128", "128", "128"]
    assert "Published also at batch 512, which was not measured here." in found.footnotes


def test_no_batch_size_in_common_shows_all_and_names_it_as_a_difference(tmp_path):
    found = table(RunBuilder(tmp_path / "run").speed(batch=64), figure(batch_size=512.0, samples_per_s=2.0))
    assert column(found, "batch size") == ["64", "64", "512"]
    assert "batch size: here 64, there 512" in found.footnotes[0]


@pytest.fixture
def from_folder(tmp_path):
    """Make a training's run whose data came from somewhere."""

    def make(data, **more):
        run = RunBuilder(tmp_path / "run", **more).train("fp32", [90.0], epochs=2)
        edit_rows(run.folder, lambda row: row.update(data=data))
        return run

    return make


def test_only_what_differs_is_listed(from_folder):
    run = from_folder("folder:/home/me/cifar10-jpeg", parameters=(("lr", 0.5),))
    there = figure(dataset="CIFAR-10", epochs=200.0, n_gpus=1.0, quality=94.0, quality_metric="top1_pct")
    (footnote,) = table(run, there).footnotes
    for difference in (
        "device: here NVIDIA Test 1, there V100",
        "epochs: here 2, there 200",
        "data: here folder cifar10-jpeg, there CIFAR-10",
        "recipe: here with lr=0.5",
        "software: here torch 2.11.0",
        "re-encoded",
        "Accuracies",
    ):
        assert difference in footnote
    assert not re.search("(GPUs|batch size|precision|memory):", footnote)
    (footnote,) = table(run, there | {"setup": "torch 1.12"}).footnotes
    assert "software: here torch 2.11.0, there torch 1.12" in footnote


def test_the_same_data_under_another_spelling_is_no_difference(from_folder):
    there = figure(dataset="CIFAR-10", epochs=2.0, quality=94.0, quality_metric="top1_pct")
    (footnote,) = table(from_folder("cifar10"), there).footnotes
    assert not re.search("data:|Accuracies", footnote)


def test_memory_is_compared_as_the_driver_sees_it(tmp_path):
    run = RunBuilder(tmp_path / "run")
    peak = MemoryPeak(peak_allocated_bytes=100 * MIB, driver_used_bytes=700 * MIB)
    run.add(run.trial("memory", ["fp32"], 128), TrialResult(precision="fp32", status="ok", memory=peak))
    found = table(run, figure(memory_mb=900.0))
    assert column(found, "GPU memory in use (MiB)") == ["700.0", "900.0"]
    assert "memory: here less what was in use before" in found.footnotes[0]


def test_a_recipe_that_nobody_published_gets_a_sentence(tmp_path):
    runs = load([RunBuilder(tmp_path / "run", suite="resnet20").speed().folder])
    found, (remark,) = published_beside(summarise(runs.trials), runs, load_published())
    assert found is None
    assert all(suite in remark for suite in ("resnet20", "resnet50", "intel_resnet18", "cifar10_lightning"))


def test_the_projects_own_file_is_read_and_holds_the_recipes_that_it_is_matched_by(tmp_path):
    published = load_published()
    sources = set()
    for suite in ("resnet50", "intel_resnet18", "cifar10_lightning"):
        runs = load([RunBuilder(tmp_path / suite, suite=suite).speed().folder])
        found, _ = published_beside(summarise(runs.trials), runs, published)
        assert found is not None
        sources |= set(column(found, "source"))
        if suite == "resnet50":
            v100 = [line for line in lines(found) if line["device"].startswith("Tesla V100")]
            (master,) = [line for line in v100 if line["precision"] == "fp16-master"]
            assert master["times as fast as its own fp32"] == "1.840"
    assert not [source for source in sources if source.startswith(("NVIDIA", "Lambda"))]  # ImageNet, another recipe
    runs = load([RunBuilder(tmp_path / "vit", suite="vit_b_16").speed(batch=192).folder])
    found, _ = published_beside(summarise(runs.trials), runs, published)
    assert column(found, "layout")[-2:] == ["nchw", "channels_last"]


def test_the_flag_reaches_the_page_from_any_directory(tmp_path):
    run = RunBuilder(tmp_path / "run", suite="resnet50").train("fp32", [90.0]).folder
    words = ["report", run, "--figures", "none", "--out", tmp_path / "out"]
    page = tmp_path / "out" / "details.md"
    for more, shown in (["--published"], True), ([], False):
        call(*words, *more, cwd=tmp_path)
        for title in "### Beside published figures", "## Published figures", "### One figure, several sources":
            assert (title in page.read_text()) == shown
