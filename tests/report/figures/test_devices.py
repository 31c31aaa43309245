"""Reports of many devices: one figure of all of them, and the choice of which figures are drawn."""

import itertools

import matplotlib as mpl
import pytest
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure

from bench.cli.parser import parse
from bench.report.analysis.summary import summarise
from bench.report.figures import devices, figure
from bench.report.figures.devices import MEASURES, SPEEDUP, at_verdicts, batch_axis, batch_labels, draw_overview
from bench.report.reading.load import load
from bench.spec.errors import UsageError
from perf.synthetic_run import Shape, write_run
from tests.report.builders import write_report

THREE = Shape(suites=1, gpus=3, batch_sizes=2, replicates=2, seeds=2, epochs=2, blocks=3 * 2 * 2 * 8 * 2)


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("three") / "run", THREE)


@pytest.fixture(scope="module")
def summary(run):
    return summarise(load([run]).trials)


@pytest.fixture
def drawn(monkeypatch):
    """Names of the figures that would be drawn; nothing is drawn."""
    names = []
    monkeypatch.setattr(figure, "save", lambda *_, name, **__: names.append(name))
    return names


def left_out(run, tmp_path, figures="overview"):
    """Draw the figures of a run; return the remarks on those that were left out."""
    runs = load([run])
    return devices.draw(summarise(runs.trials), runs.epochs, tmp_path, figures)[1]


def test_few_figures_are_drawn_device_by_device(run, tmp_path, drawn):
    assert left_out(run, tmp_path) == {}
    assert [name.rsplit("-", 1)[-1] for name in drawn] == ["speed", "b64"] * 3


def test_many_are_replaced_by_one_a_recipe_that_says_so_unless_all_are_asked_for(run, tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(devices, "MOST", 5)
    remark = left_out(run, tmp_path)["model0"]
    assert drawn == ["devices-model0"]
    assert "6 figures" in remark
    assert "--figures all" in remark
    drawn.clear()
    assert left_out(run, tmp_path, "all") == {}
    assert len(drawn) == 6


def test_two_devices_keep_their_own_figures_however_many_there_are(run, tmp_path, drawn, monkeypatch):
    monkeypatch.setattr(devices, "MOST", 1)
    runs = load([run])
    two = runs.trials[runs.trials["placement"] != "2"]
    assert devices.draw(summarise(two), runs.epochs, tmp_path)[1] == {}
    assert len(drawn) == 4


@pytest.mark.slow
def test_the_overview_is_on_the_page_with_what_it_replaces(run, tmp_path, monkeypatch):
    monkeypatch.setattr(devices, "MOST", 5)
    page = write_report([run], tmp_path).read_text()
    assert "](devices-model0.svg)" in page
    assert "The 6 figures of this recipe" in page
    assert {path.name for path in tmp_path.glob("*.png") if "matrix" not in path.name} == {"devices-model0.png"}


def test_without_figures_there_is_none_and_every_table(run, tmp_path, drawn):
    page = write_report([run], tmp_path / "none", figures="none").read_text()
    assert drawn == []
    assert "![" not in page
    whole = write_report([run], tmp_path / "whole").read_text()
    assert [line for line in whole.splitlines() if line[:1] == "|"] == [
        line for line in page.splitlines() if line[:1] == "|"
    ]


def test_each_device_is_at_the_batch_size_of_its_verdict(summary):
    found = at_verdicts(summary)
    assert set(found["batch_size"]) == {64}
    assert found.groupby("line")["where"].first().tolist() == [f"NVIDIA Synthetic {index}" for index in range(3)]
    assert set(found["label"]) == set(found["where"])
    other = summary.copy()
    other.loc[other["placement"].eq("1") & other["batch_size"].eq(64), ["speedup", "train_status"]] = None
    assert at_verdicts(other)["label"].unique().tolist()[:2] == [
        "NVIDIA Synthetic 0, batch 64",
        "NVIDIA Synthetic 1, batch 32",
    ]


def test_a_mark_is_where_the_device_and_its_figure_are(summary):
    rows = at_verdicts(summary)
    with mpl.rc_context():
        axes = Figure().subplots()
        devices._panel(axes, rows, measure=SPEEDUP)
    bars = {bar.get_label(): bar for bar in axes.containers}
    arm = rows[rows["precision"] == "tf32"]
    points = bars["tf32"].lines[0]
    assert points.get_xdata().tolist() == arm["speedup"].tolist()
    assert points.get_ydata().round().tolist() == [0, 1, 2]
    assert axes.get_ylim()[0] > axes.get_ylim()[1]  # the first device on top
    (ends,) = bars["tf32"].lines[2]
    assert [tuple(line[:, 0]) for line in ends.get_segments()] == [
        pytest.approx(pair) for pair in zip(arm["low"], arm["high"], strict=True)
    ]


def test_what_nobody_measured_has_no_panel_and_nothing_no_figure(summary, tmp_path):
    bare = summary.assign(**{measure.column: float("nan") for measure in MEASURES})
    assert draw_overview(bare, name="none", workload="model0", folder=tmp_path) is None
    drawn = draw_overview(
        bare.assign(memory_bytes=summary["memory_bytes"]), name="memory", workload="model0", folder=tmp_path
    )
    assert drawn.caption.startswith("model0 on 3 devices")
    assert {path.name for path in tmp_path.iterdir()} == {"memory.svg", "memory.png"}


def test_the_choice_of_figures_is_typed_and_another_refused():
    assert parse(["report", "results/a"]).figures == "overview"
    assert parse(["report", "results/a", "--figures", "all"]).figures == "all"
    with pytest.raises(UsageError, match="figures"):
        parse(["report", "results/a", "--figures", "some"])


def test_batch_labels_that_would_collide_share_one():
    assert [text for _, text in batch_labels([64, 128, 256, 512, 513])] == ["64", "128", "256", "512\n513"]
    assert [text for _, text in batch_labels([8])] == ["8"]


@pytest.mark.parametrize(
    ("sizes", "shown"),
    [
        ([4, 32768, 131072], ["4", "32768\n131072"]),
        ([128, 32768, 131072], ["128", "32768", "131072"]),
        ([2**power for power in range(18)], None),
    ],
)
def test_labels_of_many_digits_keep_apart_in_the_figure(sizes, shown):
    drawing = Figure(figsize=(3 * 3.7, 3.5), layout="constrained")
    drawing.set_canvas(FigureCanvasAgg(drawing))
    with mpl.rc_context(figure.STYLE):
        for axes in drawing.subplots(1, 3):
            axes.plot(sizes, [10_000.0] * len(sizes))
            batch_axis(axes, sizes)
        drawing.canvas.draw()
    for axes in drawing.axes:
        labels = axes.get_xticklabels()
        texts = [label.get_text() for label in labels]
        assert texts == shown or shown is None
        assert (texts[0].split()[0], texts[-1].split()[-1]) == (str(sizes[0]), str(sizes[-1]))
        boxes = [label.get_window_extent() for label in labels]
        assert all(after.x0 - before.x1 > 3 for before, after in itertools.pairwise(boxes))
