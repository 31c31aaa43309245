"""Figures of devices: what is described, which are drawn, and that both drawings show it."""

import itertools

import matplotlib as mpl
import pytest
from matplotlib.figure import Figure

from bench.report.analysis import verdict
from bench.report.analysis.summary import summarise
from bench.report.figures import chart, devices, files, overview, svg
from bench.report.figures.chart import Bar, Line, Rule, Text, limits, ticks
from bench.report.figures.devices import across, at_verdicts, labelled, single
from bench.report.reading.load import load
from bench.spec.metrics import ACCURACY, LOSS
from perf.synthetic_run import Shape, write_run
from tests.report.builders import MIB, RunBuilder, write_report

THREE = Shape(suites=1, gpus=3, batch_sizes=2, replicates=2, seeds=2, epochs=2, blocks=3 * 2 * 2 * 8 * 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("three") / "run", THREE)


@pytest.fixture(scope="module")
def runs(run):
    return load([run])


@pytest.fixture(scope="module")
def summary(runs):
    return summarise(runs.trials)


def described(summary, runs, figures="overview"):
    """Return the figures of a run, and the remarks on those that are left out."""
    described = list(devices.charts(summary, runs.epochs, {}, figures))
    charts = [(title, chart) for title, chart in described if not isinstance(chart, str)]
    remarks = dict(remark for remark in described if isinstance(remark[1], str))
    return [chart for _, chart in charts], remarks


def test_few_are_drawn_device_by_device_and_many_replaced_by_one_a_recipe_unless_all_are_asked_for(
    summary, runs, monkeypatch
):
    charts, remarks = described(summary, runs)
    assert remarks == {}
    assert [chart.name.rsplit("-", 1)[-1] for chart in charts] == ["speed", "b64"] * 3
    assert all(chart.in_files for chart in charts)
    monkeypatch.setattr(devices, "MOST", 5)
    (chart,), remarks = described(summary, runs)
    assert not chart.in_files
    assert "6 figures" in remarks["model0"]
    assert "--figures all" in remarks["model0"]
    charts, remarks = described(summary, runs, "all")
    assert (len(charts), remarks) == (6, {})


@pytest.mark.slow
def test_the_overview_is_on_the_page_with_what_it_replaces(run, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "MOST", 5)
    page = write_report([run], tmp_path).read_text()
    assert "](devices.svg)" in page
    assert "The 6 figures of this recipe" in page
    assert {path.name for path in tmp_path.glob("*.png") if "matrix" not in path.name} == {
        *("devices.png", "memory.png", "accuracy.png")
    }
    assert "](devices.svg)" in (tmp_path / "report.md").read_text()
    assert "model0: speedup and memory against batch size</title>" in (tmp_path / "report.html").read_text()


def test_each_device_is_at_the_batch_size_of_its_verdict(summary):
    rows = at_verdicts(summary)
    assert set(rows["batch_size"]) == {64}
    assert rows.groupby("line")["where"].first().tolist() == [f"NVIDIA Synthetic {index}" for index in range(3)]
    assert set(rows["text"]) == set(rows["label"])
    other = summary.copy()
    other.loc[other["placement"].eq("1") & other["batch_size"].eq(64), ["speedup", "train_status"]] = None
    assert at_verdicts(other)["text"].unique().tolist()[:2] == ["Synthetic 0, batch 64", "Synthetic 1, batch 32"]


def points(panel, tint):
    return [
        point
        for mark in panel.marks
        if isinstance(mark, Line) and mark.tint == tint and mark.dots
        for point in mark.points
    ]


def test_a_mark_is_where_the_device_and_its_figure_are_in_both_drawings(summary):
    described = across(summary)
    (panel,) = described.panels
    arm = at_verdicts(summary)
    arm = arm[arm["precision"] == "tf32"]
    expected = list(zip(arm["samples_per_s"], [0.5, 1.5, 2.5], strict=True))
    assert points(panel, "tf32") == expected
    with mpl.rc_context(files.STYLE):
        axes = Figure().subplots()
        files._panel(axes, panel=panel)
    marker = chart.marker("tf32")
    assert [
        (line.get_xdata()[0], line.get_ydata()[0]) for line in axes.lines if line.get_marker() == marker
    ] == expected
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first device on top
    text = svg.draw(described)
    assert text.count('<g class="p-tf32"><path class="dots"') == 3
    assert all(f"Synthetic {index}</text>" in text for index in range(3))
    assert "style=" not in text


def test_one_device_has_no_figure_of_all_and_what_nobody_measured_has_none(summary):
    assert across(summary[summary["placement"] == "0"]) is None
    columns = ["speedup", "low", "high", "samples_per_s", "memory_bytes", "delta_points"]
    bare = summary.assign(**dict.fromkeys(columns, float("nan")))
    assert across(bare) is None
    assert single(bare, {}, name="none") is None
    assert overview.differences(bare, ACCURACY) is None


def test_intervals_memory_of_the_device_and_what_did_not_fit_are_drawn(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(speedups=(2.0, 2.1, 1.9))
    for batch, mib in ((64, 300), (128, 600)):
        run.memory("fp32", mib, batch=batch).memory("amp-bf16", 0.6 * mib, batch=batch)
    run.lost("memory", "fp32", "oom", batch=256).memory("amp-bf16", 900, batch=256)
    row = run.row()
    speed, _, memory = single(run.summary(), {("run", "0"): 1000 * MIB}, name="x").panels
    (interval,) = (mark for mark in speed.marks if isinstance(mark, Line) and not mark.dots)
    assert interval.points[:2] == [(128, row["low"]), (128, row["high"])]
    assert [mark.at for mark in memory.marks if isinstance(mark, Rule)] == [1000]
    assert points(memory, "amp-bf16") == [(64, 180), (128, 360), (256, 900)]
    assert [(mark.text, mark.tint) for mark in memory.marks if isinstance(mark, Text)] == [("✕", "fp32")]


def test_the_kinds_of_memory_are_stacked_to_what_all_hold_together(runs, summary):
    trials = runs.trials
    answers = verdict.answers(summary)
    (panel,) = overview.memory_by_kind(summary, trials, answers).panels
    assert [text for _, text in panel.y.ticks[:2]] == ["Synthetic 0 fp32", f"Synthetic 0 {answers[0].precision}"]
    first = [mark for mark in panel.marks if isinstance(mark, Bar) and mark.y[0] < 1]
    row = trials[(trials["phase"] == "memory") & (trials["precision"] == "fp32") & (trials["batch_size"] == 64)].iloc[0]
    assert first[0].x[0] == 0
    assert all(bar.x[1] == other.x[0] for bar, other in itertools.pairwise(first))
    assert first[-1].x[1] * MIB == pytest.approx(row[["parameter_bytes", "gradient_bytes", "optimizer_bytes"]].sum())


def test_accuracy_and_the_loss_of_tokens_are_drawn_with_their_margins(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0, 90.2]).train("amp-bf16", [90.4, 90.4])
    tokens = RunBuilder(tmp_path / "tokens").train("fp32", [None] * 2, test_loss=[3.0, 3.1])
    tokens.train("amp-bf16", [None] * 2, test_loss=[3.002, 3.106])
    for builder, quality, change, margin in ((run, ACCURACY, 0.3, 0.5), (tokens, LOSS, 0.004, 0.01)):
        (panel,) = overview.differences(builder.summary(), quality).panels
        assert points(panel, "amp-bf16") == [(pytest.approx(change), 0.5)]
        assert [text for _, text in panel.y.ticks] == ["amp-bf16"]
        assert [mark.x for mark in panel.marks if isinstance(mark, Bar)] == [(-margin, margin)]
    assert overview.differences(run.summary(), LOSS) is None


def test_axes_reach_beyond_their_marks_and_have_round_ticks(summary):
    (panel,) = across(summary).panels
    low, high = limits(panel, "x")
    places = [place for place, _ in ticks(panel.x, low, high)]
    assert places
    assert low < min(places)
    assert max(places) < high
    assert all(f"{place:g}".rstrip("0") in ("1", "2", "5") for place in places)


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([64, 128, 256, 512, 513], [64, 128, 256, 513]),
        ([8], [8]),
        ([4, 32768, 131072], [4, 131072]),
        ([128, 32768, 131072], [128, 32768, 131072]),
    ],
)
def test_batch_sizes_are_labelled_as_far_as_their_labels_keep_apart(sizes, shown):
    assert labelled(sizes) == shown
    many = labelled([2**power for power in range(18)])
    assert (many[0], many[-1]) == (1, 2**17)
    assert all(other >= 2 * size for size, other in itertools.pairwise(many))
