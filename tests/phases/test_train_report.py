"""The tables and figures of training."""

from dataclasses import replace
from pathlib import Path

import pytest

from bench.phases.train.report import charts, differences, training
from bench.report import report, terminal
from bench.report.figures.chart import Bar, Curve
from bench.report.reading.load import load
from bench.report.tables.table import material_of
from bench.spec.metrics import ACCURACY, LOSS
from perf.synthetic_fleet import Shape, write_run
from tests.report.builders import RunBuilder
from tests.report.tables.lines import column


def test_the_loss_above_a_known_entropy_is_a_mean_over_seeds(tmp_path):
    run = RunBuilder(tmp_path / "run")
    run.train("fp32", [None] * 3, test_loss=[3.1, 3.2, 3.3], entropy_nats=3.0)
    run.train("amp-bf16", [None], test_loss=3.1, entropy_nats=3.0)
    learned, _ = training(run.summary())
    assert column(learned, "above the entropy (nats)") == ["0.2000", "0.1000"]
    assert column(learned, "perplexity") == ["24.53", "22.20"]
    assert column(learned, "difference (nats) [90 % interval]") == ["baseline", "+0.0000"]
    others, _ = training(RunBuilder(tmp_path / "other").train("fp32", [90.0]).summary())
    assert {"perplexity", "above the entropy (nats)"}.isdisjoint(others.headers)


def test_what_training_cost_is_in_its_units_and_where_the_data_were(tmp_path):
    run = RunBuilder(tmp_path / "run").train(
        "amp-bf16",
        [90.0, 91.0],
        checkpoint_bytes=90 * 2**20,
        data_storage="file",
        data_wait_pct=12.0,
    )
    _, cost = training(run.summary())
    assert column(cost, "checkpoint (MiB)") == ["90.00"]
    assert column(cost, "total time (s)") == ["6.000"]
    assert column(cost, "data from") == ["disk"]
    assert column(cost, "waiting for data (%)") == ["12"]


# The loader as the limit of training, from measurements alone.


@pytest.mark.parametrize(
    ("wait_pct", "pace", "reached_pct"),
    [
        (40.0, 23_000.0, 90),
        (40.0, 23_100.0, None),  # waiting while the GPU works
        (9.9, 12_800.0, None),
    ],
)
def test_a_loader_that_limits_is_told_in_words(tmp_path: Path, wait_pct, pace, reached_pct) -> None:
    # Amp-bf16 at 25,600 samples/s.
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.0, 2.0])
    run.train("amp-bf16", [90.0], data_wait_pct=wait_pct, train_samples_per_s=pace)
    contents = report([run.folder], tmp_path / "report", figures="none")
    folder = tmp_path / "report"
    markdown, html = (folder / "report.md").read_text(), (folder / "report.html").read_text()
    for shown in (terminal(contents, tmp_path), markdown, html):
        is_named = "batch 128, amp-bf16: the loader limits training" in shown
        assert is_named == (reached_pct is not None)
        if is_named:
            assert "waited for batches 40 %" in shown
            assert f"and reached {reached_pct} % of the throughput" in shown


# Its figures.


ACCURACIES = {"fp32": ([90.0, 90.2], None), "amp-bf16": ([90.4, 90.4], None)}
LOSSES = {"fp32": ([None] * 2, [3.0, 3.1]), "amp-bf16": ([None] * 2, [3.002, 3.106])}


@pytest.mark.parametrize(
    ("metric", "arms", "change", "margin"),
    [(ACCURACY, ACCURACIES, 0.3, 0.5), (LOSS, LOSSES, 0.004, 0.01)],
)
def test_accuracy_and_the_loss_of_tokens_are_drawn_with_their_margins(
    tmp_path, metric, arms, change, margin
):
    run = RunBuilder(tmp_path / "run")
    for name, (accuracies, losses) in arms.items():
        run.train(name, accuracies, test_loss=losses)
    (panel,) = differences(run.summary(), metric).panels
    (dot,) = (mark for mark in panel.marks if isinstance(mark, Curve) and mark.dots)
    assert dot.points == [(pytest.approx(change), 0.5)]
    assert [text for _, text in panel.y.ticks] == ["Test 1 amp-bf16"]
    (bar,) = (mark for mark in panel.marks if isinstance(mark, Bar))
    assert bar.x == (-margin, margin)


def test_trainings_on_many_devices_are_drawn_only_where_all_figures_are_asked_for(tmp_path):
    shape = Shape(
        gpus=("V100", "A100", "H100"),
        models=("resnet50",),
        batch_sizes=(128,),
        processes=2,
        seeds=2,
        epochs=2,
    )
    material = material_of(load([write_run(tmp_path / "run", shape)]))

    def drawn(choice):
        return [part for title, part in charts(replace(material, figures=choice)) if title]

    few, every = drawn("overview"), drawn("all")
    assert few == [
        "The course of training on 3 devices is drawn by run_bench.py report --figures all."
    ]
    assert [figure.name.rsplit("-", 1)[-1] for figure in every] == ["b128"] * 3
    assert len({figure.caption for figure in every}) == 3
