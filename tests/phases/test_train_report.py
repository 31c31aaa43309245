"""The tables and figures of training."""

from dataclasses import replace

import pytest

from bench.phases.train.report import charts, differences, training
from bench.report import report, terminal
from bench.report.reading.load import load
from bench.report.tables.table import material_of
from bench.spec.metrics import ACCURACY, LOSS
from perf.synthetic_fleet import Shape, write_run
from tests.report.builders import RunBuilder
from tests.report.tables import lines


@pytest.fixture
def run(tmp_path):
    return RunBuilder(tmp_path / "run")


def test_the_loss_above_a_known_entropy_is_a_mean_over_seeds(run):
    run.train("fp32", [None] * 3, test_loss=[3.1, 3.2, 3.3], entropy_nats=3.0)
    run.train("amp-bf16", [None], test_loss=3.1, entropy_nats=3.0)
    learned, _ = training(run.summary())
    assert lines.column(learned, "above the entropy (nats)") == ["0.2000", "0.1000"]
    assert lines.column(learned, "perplexity") == ["24.53", "22.20"]
    assert lines.column(learned, "difference (nats) [90 % interval]") == ["baseline", "+0.0000"]


def test_what_training_cost_is_in_its_units_and_where_the_data_were(run):
    run.train(
        "amp-bf16",
        [90.0, 91.0],
        checkpoint_bytes=90 * 2**20,
        data_storage="file",
        data_wait_pct=12.0,
    )
    learned, cost = training(run.summary())
    assert lines.column(cost, "checkpoint (MiB)") == ["90.00"]
    assert lines.column(cost, "total time (s)") == ["6.000"]
    assert lines.column(cost, "data from") == ["disk"]
    assert lines.column(cost, "waiting for data (%)") == ["12"]
    assert {"perplexity", "above the entropy (nats)"}.isdisjoint(learned.headers)


# The loader as the limit of training, from measurements alone.


@pytest.mark.parametrize(
    ("wait_pct", "pace", "reached_pct"),
    [
        (40.0, 23_000.0, 90),
        (40.0, 23_100.0, None),  # waiting while the GPU works
        (9.9, 12_800.0, None),
    ],
)
def test_a_loader_that_limits_is_told_in_words(run, tmp_path, wait_pct, pace, reached_pct):
    run.speed()  # amp-bf16 at 25,600 samples/s
    run.train("amp-bf16", [90.0], data_wait_pct=wait_pct, train_samples_per_s=pace)
    out = tmp_path / "report"
    contents = report([run.folder], out, figures="none")
    markdown = (out / "report.md").read_text()
    html = (out / "report.html").read_text()
    for shown in (terminal(contents, tmp_path), markdown, html):
        is_named = "batch 128, amp-bf16: the loader limits training" in shown
        assert is_named == (reached_pct is not None)
        if is_named:
            assert "waited for batches 40 %" in shown
            assert f"and reached {reached_pct} % of the throughput" in shown


# Its figures.


@pytest.mark.parametrize(
    ("metric", "column", "fp32", "mixed"),
    [
        (ACCURACY, "test_accuracy_pct", [90.0, 90.2], [90.4, 90.4]),
        (LOSS, "test_loss", [3.0, 3.1], [3.002, 3.106]),
    ],
)
def test_accuracy_and_the_loss_of_tokens_are_drawn_with_their_margins(
    run, metric, column, fp32, mixed
):
    unknown = [None, None]
    run.train("fp32", unknown, **{column: fp32})
    run.train("amp-bf16", unknown, **{column: mixed})
    (panel,) = differences(run.summary(), metric).panels
    bar, *_, dot = panel.marks
    assert bar.x == (-metric.margin, metric.margin)
    change = sum(mixed) / 2 - sum(fp32) / 2
    assert dot.points == [(pytest.approx(change), 0.5)]
    ((_, label),) = panel.y.ticks
    assert label == "Test 1 amp-bf16"


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
        chosen = replace(material, figures=choice)
        return [part for title, part in charts(chosen) if title]

    (sentence,) = drawn("overview")
    assert sentence == (
        "The course of training on 3 devices is drawn by run_bench.py report --figures all."
    )
    captions = set()
    for figure in drawn("all"):
        assert figure.name.endswith("-b128")
        captions.add(figure.caption)
    assert len(captions) == 3
