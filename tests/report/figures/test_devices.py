"""Figures against batch size: what is described, which are drawn, and that both drawings show it."""

import matplotlib as mpl
import pandas as pd
import pytest
from matplotlib.figure import Figure

from bench.report.analysis.summary import summarise
from bench.report.figures import chart, devices, files, overview, svg
from bench.report.figures.chart import Bar, Chart, Line, Rule, Text
from bench.report.figures.devices import against_batch, figures_of, speedups_of, tints_of
from bench.report.reading.load import load
from bench.spec.metrics import ACCURACY, LOSS, MEMORY, SPEED, THROUGHPUT
from perf.synthetic_fleet import Shape, write_run
from tests.report.builders import RunBuilder

THREE = Shape(
    gpus=("V100", "A100", "H100"), models=("resnet50",), batch_sizes=(64, 128), processes=2, seeds=2, epochs=2, rounds=2
)


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    return load([write_run(tmp_path_factory.mktemp("three") / "run", THREE)])


@pytest.fixture(scope="module")
def summary(runs):
    return summarise(runs.trials)


def rows(*figures, **same):
    """Rows of ``against_batch``: device, precision, batch size, value and perhaps an interval; without a value, oom."""
    ends = [figure[4:] or (None, None) for figure in figures]
    columns = ["device", "precision", "batch_size", "value"]
    frame = pd.DataFrame([figure[:4] for figure in figures], columns=columns).astype({"value": float})
    frame[["low", "high"]] = pd.DataFrame(ends, dtype=float)
    return frame.assign(status=frame["value"].map(lambda value: "ok" if value > 0 else "oom"), **same)


def drawn(frame, metric=SPEED, *, over_fp32=True):
    tints = {device: chart.device(place) for place, device in enumerate(frame["device"].unique())}
    return against_batch(frame, metric, workload="mlp", name="x", tints=tints, over_fp32=over_fp32)


def marks(panel, kind, tint=None):
    return [mark for mark in panel.marks if isinstance(mark, kind) and tint in (None, mark.tint)]


def curve(device, precision, *values):
    return [(device, precision, 32 * 2**place, value) for place, value in enumerate(values)]


def test_a_precision_has_a_panel_and_a_device_a_line_with_whiskers_on_axes_that_all_share():
    ends = [("A", "tf32", 32, 1.5, 1.4, 1.6), ("A", "tf32", 64, 1.7, 1.6, 1.8)]
    figure = drawn(rows(*ends, *curve("B", "tf32", 1.2, 1.1), *curve("A", "amp-fp16", 3.0, 4.0)))
    tf32, fp16 = figure.panels
    assert [(panel.title, panel.precision) for panel in figure.panels] == [("tf32", "tf32"), ("amp-fp16", "amp-fp16")]
    assert (tf32.x, tf32.y) == (fp16.x, fp16.y)
    (line,) = marks(tf32, Line, "device-0")
    assert line.points == [(32, 1.5), (64, 1.7)]
    assert line.whiskers == [(32, 1.4, 1.6), (64, 1.6, 1.8)]
    assert marks(tf32, Line, "device-1")[0].points == [(32, 1.2), (64, 1.1)]
    assert [mark.at for mark in fp16.marks if isinstance(mark, Rule)] == [1.0]
    assert {mark.text: mark.tint for mark in marks(tf32, Text)} == {"A": "device-0", "B": "device-1"}


def test_one_device_has_one_panel_with_a_line_for_each_precision():
    (panel,) = drawn(rows(*curve("A", "tf32", 1.5, 1.7), *curve("A", "amp-bf16", 2.0, 2.2))).panels
    assert [line.tint for line in marks(panel, Line)] == ["amp-bf16", "tf32"]
    assert (panel.title, panel.precision) == ("A", "")


def test_one_batch_size_is_a_dot_plot_with_the_names_at_the_dots():
    figure = drawn(rows(("A", "tf32", 64, 1.5, 1.4, 1.6), ("B", "tf32", 64, 2.0), ("C", "tf32", 64, None)))
    (panel,) = figure.panels
    assert (panel.rows, panel.y.scale) == (3, "words")
    assert {mark.text for mark in marks(panel, Text)} == {"A 1.50×", "B 2.00×", "✕ C"}
    assert marks(panel, Line, "device-1")[0].points == [(2.0, 1.5)]
    assert figure.caption.startswith("Speedup at batch size 64")


def test_a_name_that_is_wider_than_a_panel_leaves_room_for_the_figures():
    name = "AMD EPYC (run digits-cpu-20261126-195602)"
    (panel,) = drawn(rows((name, "tf32", 64, 1.2), (name.replace("digits", "mlp"), "tf32", 64, 0.3))).panels
    assert panel.x.low < 0.3
    assert 1.2 < panel.x.high < 4


def test_what_did_not_fit_is_a_cross_at_its_batch_size_and_crosses_stand_apart(tmp_path):
    lost = [("A", "tf32", 128, None), ("B", "tf32", 128, None)]
    (panel,) = drawn(rows(*curve("A", "tf32", 1.5, 1.7), *curve("B", "tf32", 1.2, 1.4), *lost)).panels
    crosses = [mark for mark in marks(panel, Text) if mark.text == "✕"]
    assert [cross.tint for cross in crosses] == ["device-0", "device-1"]
    assert crosses[0].x < 128 < crosses[1].x
    run = RunBuilder(tmp_path / "run").speed(batch=64).lost("speed", "fp32", "oom", batch=128)
    run.alone("amp-bf16", [5.0, 5.1], batch=128).lost("speed", "tf32", "unsupported", batch=128)
    status = speedups_of(run.summary()).set_index(["precision", "batch_size"])["status"]
    assert status["amp-bf16", 128] == "oom"  # a speedup needs fp32
    assert status["tf32", 128] == "unsupported"


def test_other_metrics_have_the_same_shape_in_their_own_unit_with_fp32(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(batch=64).speed(batch=128)
    for batch, mib in ((64, 300), (128, 600)):
        run.memory("fp32", mib, batch=batch).memory("amp-bf16", 0.6 * mib, batch=batch)
    run.lost("memory", "fp32", "oom", batch=256).memory("amp-bf16", 900, batch=256)
    summary = run.summary()
    memory = drawn(figures_of(summary, MEMORY), MEMORY, over_fp32=False)
    (panel,) = memory.panels
    assert panel.y.label == "MiB"
    assert marks(panel, Line, "amp-bf16")[0].points == [(64, 180), (128, 360), (256, 900)]
    assert [mark.text for mark in marks(panel, Text, "fp32")] == ["✕", "fp32"]


def test_speedups_come_first_and_trainings_of_many_devices_only_where_all_figures_are_asked_for(summary, runs):
    few, every = (
        [
            (title, figure)
            for title, part in devices.charts(summary, runs.epochs, choice)
            if (figure := part() if callable(part) else part) is not None
        ]
        for choice in ("overview", "all")
    )
    names = ["speedup-vs-batch-resnet50", "throughput-vs-batch-resnet50", "memory-vs-batch-resnet50"]
    assert [(title, figure.name) for title, figure in few[:3]] == list(
        zip(["", "resnet50", "resnet50"], names, strict=True)
    )
    assert [figure.in_files for _, figure in few[:3]] == [True, False, False]
    assert [figure.name.rsplit("-", 1)[-1] for _, figure in every] == ["resnet50"] * 3 + ["b128"] * 3
    assert all(figure.in_files for _, figure in every)
    assert {figure.where for _, figure in every[3:]} == set(summary["where"])


def test_both_drawings_show_every_dot_where_its_figure_is(summary):
    figure = against_batch(
        speedups_of(summary), SPEED, workload="resnet50", name="x", tints=tints_of(summary), over_fp32=True
    )
    panel = next(panel for panel in figure.panels if panel.precision == "amp-fp16")
    with mpl.rc_context(files.STYLE):
        axes = Figure().subplots()
        files._panel(axes, panel=panel)
    expected = {tuple(line.points) for line in marks(panel, Line)}
    lines = [line for line in axes.lines if line.get_marker() in "os^"]
    assert {tuple(map(tuple, line.get_xydata())) for line in lines} == expected
    text = svg.draw(Chart(name="x", caption="x", about="", panels=[panel], columns=1))
    assert 'data-precision="amp-fp16"' in text


def test_what_nobody_measured_has_no_figure(summary):
    bare = summary.assign(speedup=float("nan"), samples_per_s=float("nan"), delta_points=float("nan"))
    tints = tints_of(bare)
    for frame, metric in ((speedups_of(bare), SPEED), (figures_of(bare, THROUGHPUT), THROUGHPUT)):
        assert (
            against_batch(frame, metric, workload="resnet50", name="x", tints=tints, over_fp32=metric is SPEED) is None
        )
    assert not [*overview.differences(bare, ACCURACY)]


def test_accuracy_and_the_loss_of_tokens_are_drawn_with_their_margins(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0, 90.2]).train("amp-bf16", [90.4, 90.4])
    tokens = RunBuilder(tmp_path / "tokens").train("fp32", [None] * 2, test_loss=[3.0, 3.1])
    tokens.train("amp-bf16", [None] * 2, test_loss=[3.002, 3.106])
    for builder, quality, change, margin in ((run, ACCURACY, 0.3, 0.5), (tokens, LOSS, 0.004, 0.01)):
        ((panel,),) = (each.panels for each in overview.differences(builder.summary(), quality))
        (dot,) = [mark for mark in marks(panel, Line, "amp-bf16") if mark.dots]
        assert dot.points == [(pytest.approx(change), 0.5)]
        assert [text for _, text in panel.y.ticks] == ["amp-bf16"]
        assert [mark.x for mark in panel.marks if isinstance(mark, Bar)] == [(-margin, margin)]
    assert not [*overview.differences(run.summary(), LOSS)]
