"""The loader as the limit of training, from measurements alone."""

from __future__ import annotations

from pathlib import Path

import pytest

from bench.report.tables.measurements import training_remarks
from tests.report.builders import RunBuilder


def loading(folder: Path, wait_pct: float, pace: float, storage: str = "host") -> list[str]:
    run = RunBuilder(folder).speed(speedups=[2.0, 2.0, 2.0])  # amp-bf16 at 25,600 samples/s
    figures = {"data_wait_pct": wait_pct, "train_samples_per_s": pace, "data_storage": storage}
    return training_remarks(run.train("amp-bf16", [90.0], **figures).summary())


def test_a_loader_that_limits_is_told_in_words(tmp_path: Path) -> None:
    (remark,) = loading(tmp_path / "run", 40.0, 14_080.0)
    assert remark.startswith("amp-bf16 on NVIDIA Test 1, batch 128: the loader, not arithmetic, is the limit.")
    assert "waited for batches 40 % of its time and reached 55 % of the throughput" in remark
    assert "without waiting" not in remark
    assert remark.endswith("the images came from host memory.")
    assert "from disk" in loading(tmp_path / "other", 40.0, 12_800.0, "file")[0]


def test_a_loader_that_explains_only_a_part_is_not_called_the_limit(tmp_path: Path) -> None:
    (remark,) = loading(tmp_path / "run", 40.0, 7_680.0)
    assert ": the loader is a part of the limit. Training waited for batches 40 % of its time and reached 30" in remark
    assert "without waiting it would have reached 50 %" in remark
    assert "not arithmetic" not in remark


@pytest.mark.parametrize(
    ("wait_pct", "pace", "count"),
    [(9.9, 12_800.0, 0), (40.0, 23_100.0, 0), (40.0, 23_000.0, 1)],
)
def test_little_waiting_and_waiting_while_the_gpu_works_are_no_limit(tmp_path, wait_pct, pace, count) -> None:
    assert len(loading(tmp_path / "run", wait_pct, pace)) == count
