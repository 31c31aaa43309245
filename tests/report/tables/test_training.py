"""The tables of training."""

from pathlib import Path

import pytest

from bench.report.tables.measurements import training, training_remarks
from tests.report.builders import RunBuilder
from tests.report.tables.lines import column


def test_a_precision_whose_every_seed_diverged_is_called_diverged_in_the_table(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0, 90.0]).diverged("amp-bf16").diverged("amp-bf16", seed=1)
    learned, _ = training(run.summary())
    assert column(learned, "parity") == ["–", "diverged"]


def test_columns_that_are_empty_for_all_rows_are_left_out(tmp_path):
    learned, cost = training(RunBuilder(tmp_path / "run").train("fp32", [90.0]).train("amp-bf16", [90.0]).summary())
    assert "evaluated in fp32 (%)" not in learned.headers
    assert not [header for header in cost.headers if re_any(header, "checkpoint", "energy", "accuracy", "step speedup")]
    assert all(len(row) == len(table.headers) for table in (learned, cost) for row in table.rows)


def test_the_loss_above_a_known_entropy_is_a_mean_over_seeds_with_its_interval(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [None] * 3, test_loss=[3.1, 3.2, 3.3], entropy_nats=3.0)
    learned, _ = training(run.train("amp-bf16", [None], test_loss=3.1, entropy_nats=3.0).summary())
    half = 4.302653 * 0.1 / 3**0.5  # Student's, two degrees of freedom
    assert column(learned, "above the entropy (nats) [95 % interval]") == [
        f"+0.2000 [−{half - 0.2:.4f}, +{half + 0.2:.4f}]",
        "+0.1000",
    ]
    assert column(learned, "perplexity") == ["24.53", "22.20"]
    assert column(learned, "difference (nats) [90 % interval]") == ["baseline", "+0.0000"]
    others, _ = training(RunBuilder(tmp_path / "other").train("fp32", [90.0]).summary())
    assert not [header for header in others.headers if re_any(header, "entropy", "perplexity", "nats")]


def re_any(text, *words):
    return any(word in text for word in words)


def test_storage_energy_and_accuracy_in_fp32_are_shown_in_their_units(tmp_path):
    figures = {"checkpoint_bytes": 90 * 2**20, "checkpoint_16bit_bytes": 45 * 2**20, "train_energy_j": 12_340.0}
    run = RunBuilder(tmp_path / "run").train("amp-bf16", [90.0, 91.0], test_accuracy_fp32_pct=[89.0, 90.0], **figures)
    learned, cost = training(run.summary())
    assert column(learned, "evaluated in fp32 (%)") == ["89.50"]
    assert column(cost, "checkpoint (MiB)") == ["90.00"]
    assert column(cost, "checkpoint in 16 bit (MiB)") == ["45.00"]
    assert column(cost, "energy (kJ)") == ["12.34"]
    assert column(cost, "total time (s)") == ["6.000"]


def test_where_the_data_were_stands_next_to_the_waiting(tmp_path):
    run = RunBuilder(tmp_path / "run").train("fp32", [90.0], data_storage="file", data_wait_pct=12.0)
    _, cost = training(run.summary())
    assert (column(cost, "data from"), column(cost, "waiting for data (%)")) == (["disk"], ["12"])


def test_time_to_accuracy_counts_the_seeds_that_reached_it(tmp_path):
    run = RunBuilder(tmp_path / "run")
    asked = {"target_accuracy_pct": 90.0}
    run.train("fp32", [90.0] * 2, epoch_s=[1.0, 2.0], **asked)
    run.train("amp-bf16", [80.0, 90.0], **asked).train("tf32", [80.0], **asked)
    _, cost = training(run.summary())
    assert column(cost, "time to accuracy (s)") == [
        "3.000 (to 90 %)",
        "90 % not reached",
        "6.000 (to 90 %, 1 of 2 seeds)",
    ]


def test_nothing_trained_is_no_table(tmp_path):
    assert training(RunBuilder(tmp_path / "run").speed().summary()) == [None, None]


# The loader as the limit of training, from measurements alone.


@pytest.mark.parametrize(
    ("wait_pct", "pace", "limit", "reached_pct"),
    [
        (40.0, 14_080.0, "the loader, not arithmetic, is the limit", 55),
        (40.0, 7_680.0, "the loader is a part of the limit", 30),
        (40.0, 23_000.0, "the loader, not arithmetic, is the limit", 90),
        (40.0, 23_100.0, "", None),  # waiting while the GPU works
        (9.9, 12_800.0, "", None),
    ],
)
def test_a_loader_that_limits_is_told_in_words(tmp_path: Path, wait_pct, pace, limit, reached_pct) -> None:
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.0, 2.0])  # amp-bf16 at 25,600 samples/s
    run.train("amp-bf16", [90.0], data_wait_pct=wait_pct, train_samples_per_s=pace)
    text = f"amp-bf16 on NVIDIA Test 1, batch 128: {limit}. Training waited for batches 40 % of its time and reached "
    remarks = [remark.partition(" % of the throughput")[0] for remark in training_remarks(run.summary())]
    assert remarks == ([f"{text}{reached_pct}"] if limit else [])
