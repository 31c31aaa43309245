"""The loader as the limit of training, and why epochs gain less than steps: both from measurements alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.analysis.bottleneck import training_remarks
from tests.report.builders import RunBuilder


def loading(folder: Path, wait_pct: float, pace: float, storage: str = "host") -> list[str]:
    run = RunBuilder(folder).speed(speedups=[2.0, 2.0, 2.0])  # amp-bf16 at 25,600 samples/s
    figures = {"data_wait_pct": wait_pct, "train_samples_per_s": pace, "data_storage": storage}
    return training_remarks(run.train("amp-bf16", [90.0], **figures).summary())


def test_a_loader_that_limits_is_told_in_words(tmp_path: Path) -> None:
    (remark,) = loading(tmp_path / "run", 40.0, 14_080.0)
    assert remark.startswith("amp-bf16 on NVIDIA Test 1, batch 128: the loader, not arithmetic, is the limit.")
    assert "waited for batches 40 % of its time, and reached 55 % of the throughput" in remark
    assert "without waiting" not in remark
    assert remark.endswith("the images came from host memory.")
    assert "from the disk" in loading(tmp_path / "other", 40.0, 12_800.0, "file")[0]


def test_a_loader_that_explains_only_a_part_is_not_called_the_limit(tmp_path: Path) -> None:
    (remark,) = loading(tmp_path / "run", 40.0, 7_680.0)
    assert ": the loader is a part of the limit. Training waited for batches 40 % of its time, and reached 30" in remark
    assert "without waiting it would have reached 50 %" in remark
    assert "not arithmetic" not in remark


@pytest.mark.parametrize(
    ("wait_pct", "pace", "count"),
    [(9.9, 12_800.0, 0), (40.0, 23_100.0, 0), (40.0, 23_000.0, 1)],
)
def test_little_waiting_and_waiting_while_the_gpu_works_are_no_limit(tmp_path, wait_pct, pace, count) -> None:
    assert len(loading(tmp_path / "run", wait_pct, pace)) == count


def gap(folder: Path, *, epoch_s: float, wait_pct: float, pace: float = 1000.0) -> list[str]:
    """The remarks on epochs of ``epoch_s`` in amp-bf16 and 4 s in fp32, while steps are twice as fast."""
    run = RunBuilder(folder).speed(speedups=[2.0, 2.01, 1.99])
    run.train("fp32", [90.0], epoch_s=4.0, data_wait_pct=1.5, train_samples_per_s=pace)
    run.train("amp-bf16", [90.0], epoch_s=epoch_s, data_wait_pct=wait_pct, train_samples_per_s=pace)
    return training_remarks(run.summary())


def test_epochs_that_gain_less_because_the_loader_is_the_limit_are_explained_by_it(tmp_path: Path) -> None:
    (remark,) = gap(tmp_path / "run", epoch_s=3.2, wait_pct=38.0)
    assert "epochs are 1.250× as fast as fp32's, steps 2.000× (−37 %); the loader is a part of the limit" in remark
    assert "waited for batches 38 % of its time, fp32's 1.5 %" in remark


def test_a_gap_without_waiting_is_not_blamed_on_the_loader(tmp_path: Path) -> None:
    (remark,) = gap(tmp_path / "run", epoch_s=3.0, wait_pct=1.0, pace=6400.0)
    assert "waiting for data does not explain it" in remark
    assert "reached 25 % of the throughput of its steps" in remark


def test_epochs_that_gain_as_steps_do_need_no_remark(tmp_path: Path) -> None:
    assert gap(tmp_path / "run", epoch_s=1.9, wait_pct=30.0, pace=24_000.0) == []
    assert training_remarks(RunBuilder(tmp_path / "speed").speed().summary()) == []


def test_a_gap_that_the_seeds_interval_covers_is_called_possible_chance(tmp_path: Path) -> None:
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.01, 1.99])
    run.train("fp32", [90.0] * 2, epoch_s=[4.0, 4.0]).train("amp-bf16", [90.0] * 2, epoch_s=[2.0, 3.0])
    (remark,) = training_remarks(run.summary())
    assert "may be chance" in remark
