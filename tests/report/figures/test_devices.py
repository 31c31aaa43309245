"""Figures against batch size: what is described, which are drawn, and that the drawing shows it."""

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
from bench.report.reading.load import CELL, load
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
def runs(tmp_path_factory):
    return load([write_run(tmp_path_factory.mktemp("three") / "run", THREE)])


@pytest.fixture(scope="module")
def summary(runs):
    return summarise(runs.trials)


def rows(*figures):
    """Rows of a summary: label, precision, batch size, speedup and perhaps an interval; without a
    value, oom.
    """
    columns = ["label", "precision", "batch_size", "speedup", "speedup_low", "speedup_high"]
    frame = pd.DataFrame([(*figure, None, None)[:6] for figure in figures], columns=columns)
    frame = frame.astype(dict.fromkeys(columns[3:], float)).assign(**dict.fromkeys(CELL[:-1], ""))
    return frame.assign(
        speed_status=np.where(frame["speedup"] > 0, "ok", "oom"), device_kind="cuda"
    )


def drawn(frame, metric=SPEED):
    return against_batch(frame, metric, workload="mlp", name="x", tints=tints_of(frame))


def marks(panel, kind, tint=None):
    return [mark for mark in panel.marks if isinstance(mark, kind) and tint in (None, mark.tint)]


def curve(device, precision, *values):
    return [(device, precision, 32 * 2**place, value) for place, value in enumerate(values)]


def test_a_precision_has_a_panel_and_a_device_a_line_with_whiskers_on_axes_that_all_share():
    ends = [("A", "tf32", 32, 1.5, 1.4, 1.6), ("A", "tf32", 64, 1.7, 1.6, 1.8)]
    figure = drawn(rows(*ends, *curve("B", "tf32", 1.2, 1.1), *curve("A", "amp-fp16", 3.0, 4.0)))
    tf32, fp16 = figure.panels
    assert [(panel.title, panel.precision) for panel in figure.panels] == [
        ("tf32", "tf32"),
        ("amp-fp16", "amp-fp16"),
    ]
    assert (tf32.x, tf32.y) == (fp16.x, fp16.y)
    (line,) = marks(tf32, Curve, "device-0")
    assert line.points == [(32, 1.5), (64, 1.7)]
    assert line.whiskers == [(32, 1.4, 1.6), (64, 1.6, 1.8)]
    assert marks(tf32, Curve, "device-1")[0].points == [(32, 1.2), (64, 1.1)]
    assert [mark.at for mark in fp16.marks if isinstance(mark, Rule)] == [1.0]
    assert figure.legend == [("A", "device-0"), ("B", "device-1")]


def test_one_device_has_one_panel_with_a_line_for_each_precision():
    (panel,) = drawn(rows(*curve("A", "tf32", 1.5, 1.7), *curve("A", "amp-bf16", 2.0, 2.2))).panels
    assert [line.tint for line in marks(panel, Curve)] == ["tf32", "amp-bf16"]
    assert (panel.title, panel.precision) == ("A", "")


def test_one_batch_size_is_a_dot_plot_with_a_row_for_each_name():
    figure = drawn(
        rows(("A", "tf32", 64, 1.5, 1.4, 1.6), ("B", "tf32", 64, 2.0), ("C", "tf32", 64, None))
    )
    (panel,) = figure.panels
    assert [name for _, name in panel.y.ticks] == ["A 1.50×", "B 2.00×", "C ✕"]
    assert panel.rows == 3
    assert marks(panel, Curve, "device-1")[-1].points == [(2.0, 1.5)]
    assert figure.caption.startswith("Speedup at batch size 64")


def test_what_did_not_fit_is_a_cross_at_its_batch_size_and_crosses_stand_apart(tmp_path):
    lost = [("A", "tf32", 128, None), ("B", "tf32", 128, None)]
    figure = drawn(rows(*curve("A", "tf32", 1.5, 1.7), *curve("B", "tf32", 1.2, 1.4), *lost))
    crosses = marks(figure.panels[0], Text)
    assert [(cross.tint, cross.x, cross.y) for cross in crosses] == [
        ("device-0", 128, None),
        ("device-1", 128, None),
    ]
    page = ElementTree.fromstring(f"<p>{draw(figure, tmp_path)}</p>")
    words = [float(text.get("x")) for text in page.iter("text") if text.text == "✕"]
    assert abs(words[0] - words[1]) > 8


def test_a_speedup_does_not_fit_where_fp32_does_not(tmp_path):
    run = (
        RunBuilder(tmp_path / "run")
        .speed(batch=64)
        .speed(batch=256)
        .lost("speed", "fp32", "oom", batch=128)
    )
    run.alone("amp-bf16", [5.0, 5.1], batch=128).lost("speed", "tf32", "unsupported", batch=128)
    (panel,) = drawn(run.summary()).panels
    assert [(cross.tint, cross.x) for cross in marks(panel, Text)] == [("amp-bf16", 128)]


def test_other_metrics_have_the_same_shape_in_their_own_unit_with_fp32(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=64).speed(batch=128)
    for batch, mib in ((64, 300), (128, 600)):
        run.memory("fp32", mib, batch=batch).memory("amp-bf16", 0.6 * mib, batch=batch)
    run.lost("memory", "fp32", "oom", batch=256).memory("amp-bf16", 900, batch=256)
    summary = run.summary()
    memory = drawn(summary, MEMORY)
    (panel,) = memory.panels
    assert panel.y.label == "MiB"
    assert marks(panel, Curve, "amp-bf16")[0].points == [(64, 180), (128, 360), (256, 900)]
    assert [mark.text for mark in marks(panel, Text, "fp32")] == ["✕"]


@pytest.mark.parametrize("choice", ["overview", "all"])
def test_speedups_come_first_and_of_the_others_files_are_drawn_where_all_figures_are_asked_for(
    summary, choice
):
    described = [*devices.charts(summary, choice)]
    figures = [
        (title, figure.name, figure.in_files) for title, figure in described if figure is not None
    ]
    assert figures == [
        ("", "speedup-vs-batch-resnet50", True),
        ("resnet50", "throughput-vs-batch-resnet50", choice == "all"),
        ("resnet50", "memory-vs-batch-resnet50", choice == "all"),
    ]


def test_a_page_shows_every_dot_where_its_figure_is(summary, tmp_path):
    figure = drawn(summary)
    page = ElementTree.fromstring(f"<p>{draw(figure, tmp_path)}</p>")
    page, legend = page.findall(".//div[@class]/svg"), page.find("div/svg")
    assert [text.text for text in legend.iter("text")] == ["V100", "A100", "H100"]
    assert [panel.get("data-precision") for panel in page] == [
        panel.precision for panel in figure.panels
    ]
    for panel, drawing in zip(figure.panels, page, strict=True):
        values = [value for line in marks(panel, Curve) for _, value in line.points]
        heights = [float(dot.get("y")) for dot in drawing.iter("use")]
        slope, start = np.polyfit(values, heights, 1)
        assert slope < 0
        assert np.abs(start + slope * np.array(values) - heights).max() < 0.11
    assert Image.open(tmp_path / "x.png").width > 900
    assert ElementTree.parse(tmp_path / "x.svg").getroot().tag.endswith("svg")


def test_each_of_many_devices_and_of_arms_without_letters_has_a_look_or_a_class_of_its_own():
    assert len({chart.look(f"device-{place}") for place in range(64)}) == 64
    names = ["1", "2", "+", "++", "a b", "a-b", "a_b", "é"]
    assert len({chart.class_of(name) for name in names}) == len(names)


def test_what_nobody_measured_has_no_figure(summary):
    bare = summary.assign(speedup=float("nan"), samples_per_s=float("nan"))
    assert drawn(bare) is None
    assert drawn(bare, THROUGHPUT) is None
