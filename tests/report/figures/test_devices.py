"""Figures against batch size: what is described, which are drawn, and that the drawing shows it."""

import math
from xml.etree import ElementTree

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from bench.report.analysis.summary import summarise
from bench.report.figures import chart, devices
from bench.report.figures.chart import Curve, Rule, Text
from bench.report.figures.devices import against_batch, tints_of
from bench.report.figures.draw import draw
from bench.report.parts import OVERVIEW
from bench.report.reading.load import SUBJECT, load
from bench.spec.metrics import MEMORY, SPEED, THROUGHPUT
from perf.synthetic_fleet import Shape, write_run
from tests.report.builders import RunBuilder

THREE = Shape(
    gpus=("V100", "A100", "H100"),
    models=("resnet50",),
    batch_sizes=(64, 128),
    processes=2,
    seeds=2,
    epochs=2,
    rounds=2,
)


@pytest.fixture(scope="module")
def summary(tmp_path_factory):
    run = write_run(tmp_path_factory.mktemp("three") / "run", THREE)
    return summarise(load([run]).trials)


def speedups(device, precision, *values, factor=math.nan):
    """A summary with the speedups of a device at batch sizes 32, 64 and so on; NaN did not fit.

    Their intervals go from the speedup ÷ ``factor`` to the speedup × ``factor``.
    """
    rows = pd.DataFrame({"speedup": values})
    return rows.assign(
        **dict.fromkeys(SUBJECT, ""),
        label=device,
        device_kind="cuda",
        precision=precision,
        batch_size=32 * 2**rows.index,
        speedup_low=rows["speedup"] / factor,
        speedup_high=rows["speedup"] * factor,
        speed_status=np.where(rows["speedup"].isna(), "oom", "ok"),
    )


def described(*summaries, metric=SPEED):
    """The figure of all rows of some summaries."""
    rows = pd.concat(summaries, ignore_index=True)
    return against_batch(rows, metric, workload="mlp", name="x", tints=tints_of(rows))


def elements(figure, folder):
    """The elements of the page that a figure is drawn as."""
    return ElementTree.fromstring(f"<p>{draw(figure, folder)}</p>")


def curves(panel):
    return [mark for mark in panel.marks if isinstance(mark, Curve)]


def crosses(panel):
    """The tint and the batch size of each cross."""
    places = []
    for mark in panel.marks:
        if isinstance(mark, Text):
            places.append((mark.tint, mark.x))
    return places


def test_a_precision_has_a_panel_and_a_device_a_line_with_whiskers_on_axes_that_all_share():
    figure = described(
        speedups("A", "tf32", 1.5, 1.75, factor=1.25),
        speedups("B", "tf32", 1.2, 1.1),
        speedups("A", "amp-fp16", 3.0, 4.0),
    )
    tf32, fp16 = figure.panels
    assert tf32.title == tf32.precision == "tf32"
    assert fp16.title == fp16.precision == "amp-fp16"
    assert tf32.x == fp16.x
    assert tf32.y == fp16.y
    first, second = curves(tf32)
    assert first.points == [(32, 1.5), (64, 1.75)]
    assert first.whiskers == [
        (32, 1.2, 1.875),
        (64, 1.4, 2.1875),
    ]
    assert second.points == [(32, 1.2), (64, 1.1)]
    assert Rule(at=1.0, axis="y") in fp16.marks
    assert dict(figure.legend) == {
        "A": first.tint,
        "B": second.tint,
    }


def test_one_device_has_one_panel_with_a_line_for_each_precision():
    figure = described(
        speedups("A", "tf32", 1.5, 1.7),
        speedups("A", "amp-bf16", 2.0, 2.2),
    )
    (panel,) = figure.panels
    assert [line.tint for line in curves(panel)] == ["tf32", "amp-bf16"]
    assert panel.title == "A"
    assert panel.precision == ""


def test_one_batch_size_is_a_dot_plot_with_a_row_for_each_name():
    figure = described(
        speedups("A", "tf32", 1.5, factor=1.25),
        speedups("B", "tf32", 2.0),
        speedups("C", "tf32", math.nan),
    )
    (panel,) = figure.panels
    assert [name for _, name in panel.y.ticks] == ["A 1.50×", "B 2.00×", "C ✕"]
    assert panel.rows == 3
    interval, dot, *_ = curves(panel)
    assert interval.points == [(1.2, 0.5), (1.875, 0.5)]
    assert dot.points == [(1.5, 0.5)]
    assert figure.caption.startswith("Speedup at batch size 32")
    assert "goes on beyond" not in figure.about


def test_a_wide_interval_reaches_the_edge_of_the_axis_and_the_caption_says_so():
    figure = described(speedups("A", "tf32", 0.5, factor=16.0))
    (panel,) = figure.panels
    interval, _ = curves(panel)
    (left, _), (right, _) = interval.points
    assert left == panel.x.low
    assert right == panel.x.high
    assert "goes on beyond" in figure.about


def test_what_did_not_fit_is_a_cross_at_its_batch_size_and_crosses_stand_apart(tmp_path):
    figure = described(
        speedups("A", "tf32", 1.5, 1.7, math.nan),
        speedups("B", "tf32", 1.2, 1.4, math.nan),
    )
    (panel,) = figure.panels
    assert crosses(panel) == [("device-0", 128), ("device-1", 128)]
    page = elements(figure, tmp_path)
    places = []
    for word in page.iter("text"):
        if word.text == "✕":
            places.append(float(word.get("x")))
    left, right = sorted(places)
    assert right - left > 8


def test_a_speedup_does_not_fit_where_fp32_does_not(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=64)
    run.lost("speed", "fp32", "oom")
    run.lost("speed", "tf32", "unsupported")
    run.alone("amp-bf16", [5.0, 5.1])
    (panel,) = described(run.summary()).panels
    assert crosses(panel) == [("amp-bf16", 128)]


def test_other_metrics_have_the_same_shape_in_their_own_unit_with_fp32(tmp_path):
    run = RunBuilder(tmp_path / "run")
    for batch in (64, 128):
        run.memory("amp-bf16", 2 * batch, batch=batch)
    run.memory("fp32", 300, batch=64)
    run.lost("memory", "fp32", "oom")
    (panel,) = described(run.summary(), metric=MEMORY).panels
    assert panel.y.label == "MiB"
    fp32, bf16 = curves(panel)
    assert fp32.points == [(64, 300)]
    assert bf16.points == [(64, 128), (128, 256)]
    assert crosses(panel) == [("fp32", 128)]


@pytest.mark.parametrize("choice", ["overview", "all"])
def test_speedups_come_first_and_of_the_others_files_are_drawn_where_all_figures_are_asked_for(
    summary, choice
):
    figures = []
    for title, figure in devices.charts(summary, choice):
        if figure is not None:
            figures.append((title, figure.name, figure.in_files))
    assert figures == [
        (OVERVIEW, "speedup-vs-batch-resnet50", True),
        ("resnet50", "throughput-vs-batch-resnet50", choice == "all"),
        ("resnet50", "memory-vs-batch-resnet50", choice == "all"),
    ]


def test_a_page_shows_every_dot_where_its_figure_is(summary, tmp_path):
    figure = described(summary)
    page = elements(figure, tmp_path)
    legend = page.find("div/svg")
    assert list(legend.itertext()) == ["V100", "A100", "H100"]
    drawings = page.findall(".//div[@class]/svg")
    for panel, drawing in zip(figure.panels, drawings, strict=True):
        assert drawing.get("data-precision") == panel.precision
        values = []
        for line in curves(panel):
            for _, value in line.points:
                values.append(value)
        heights = []
        for dot in drawing.iter("use"):
            heights.append(float(dot.get("y")))
        # On a line, but for places that are rounded to a tenth of a pixel.
        correlation = np.corrcoef(values, heights)[0, 1]
        assert correlation == pytest.approx(-1, abs=1e-5)
    image = Image.open(tmp_path / "x.png")
    assert image.width > 900
    file = ElementTree.parse(tmp_path / "x.svg")
    assert file.getroot().tag.endswith("svg")


def test_each_of_many_devices_and_of_arms_without_letters_has_a_look_or_a_class_of_its_own():
    looks = {chart.look(f"device-{place}") for place in range(64)}
    assert len(looks) == 64
    names = ["1", "2", "+", "++", "a b", "a-b", "a_b", "é"]
    classes = {chart.class_of(name) for name in names}
    assert len(classes) == len(names)


def test_what_nobody_measured_has_no_figure(summary):
    bare = summary.assign(speedup=math.nan, samples_per_s=math.nan)
    assert described(bare) is None
    assert described(bare, metric=THROUGHPUT) is None
