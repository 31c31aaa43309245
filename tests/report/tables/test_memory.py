"""Where the memory went: which trials the table takes, and in which order and unit it tells them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import sentences
from bench.report.reading.load import load
from bench.report.tables.measurements import SUM
from bench.report.tables.memory import memory
from bench.results.records import Device, MemoryPeak, TrialResult
from tests.report.builders import GPU, MIB, RunBuilder, write_report

CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="CPU")
KINDS = {
    "tracked_peak_bytes": 90 * MIB,
    "parameter_bytes": 20 * MIB,
    "gradient_bytes": 18 * MIB,
    "optimizer_bytes": 40 * MIB,
    "activation_bytes": 11 * MIB,
    "temporary_bytes": 1 * MIB,
}
ON_A_GPU = {
    "peak_allocated_bytes": 100 * MIB,
    "first_peak_bytes": 150 * MIB,
    "peak_reserved_bytes": 200 * MIB,
    "driver_used_bytes": 500 * MIB,
}


class MemoryRun(RunBuilder):
    """A run whose memory trials say where it went."""

    def held(self, precision: str, *, batch: int = 128, status: str = "ok", **figures: int | None) -> MemoryRun:
        result = TrialResult(precision=precision, status=status, memory=MemoryPeak(**figures))
        self.add(self.trial("memory", [precision], batch), result)
        return self


@pytest.fixture
def run(tmp_path: Path) -> MemoryRun:
    return MemoryRun(tmp_path / "run", suite="vit")


def table(run: MemoryRun):
    return memory(load([run.folder]).trials)


def test_every_kind_has_its_own_column(run: MemoryRun) -> None:
    made = table(run.held("fp32", **KINDS, **ON_A_GPU))
    (row,) = [dict(zip(made.headers, row, strict=True)) for row in made.rows]
    assert row == {
        "suite": "vit",
        "device": "NVIDIA Test 1",
        "batch size": "128",
        "precision": "fp32",
        "peak (MiB)": "100.0",
        "tensors (MiB)": "90.0",
        "parameters (MiB)": "20.0",
        "gradients (MiB)": "18.0",
        "optimizer (MiB)": "40.0",
        "activations (MiB)": "11.0",
        "temporaries (MiB)": "1.0",
        "first step (MiB)": "150.0",
        "reserved (MiB)": "200.0",
        "driver (MiB)": "500.0",
    }
    assert [column.align for column in made.columns] == ["left", "left", "right", "left", *["right"] * 10]


def test_on_a_cpu_the_peak_is_resident_and_what_only_a_gpu_has_is_left_out(tmp_path: Path) -> None:
    run = MemoryRun(tmp_path / "run", device=CPU).held("fp32", **KINDS, peak_resident_bytes=95 * MIB)
    made = table(run)
    assert made.headers[4:] == [
        "peak (MiB)",
        "tensors (MiB)",
        "parameters (MiB)",
        "gradients (MiB)",
        "optimizer (MiB)",
        "activations (MiB)",
        "temporaries (MiB)",
    ]
    assert made.rows[0][4] == "95.0"
    assert "driver" not in made.about


def test_rows_go_by_batch_size_and_then_by_precision_with_the_baseline_first(run: MemoryRun) -> None:
    for precision, batch in (("amp-bf16", 256), ("amp-bf16", 64), ("fp32", 256), ("fp32", 64)):
        run.held(precision, batch=batch, **KINDS, **ON_A_GPU)
    assert [row[2:4] for row in table(run).rows] == [
        ["64", "fp32"],
        ["64", "amp-bf16"],
        ["256", "fp32"],
        ["256", "amp-bf16"],
    ]


def test_large_figures_are_told_in_gib_and_an_unknown_one_as_a_dash(run: MemoryRun) -> None:
    made = table(
        run.held("fp32", **KINDS, **ON_A_GPU | {"peak_reserved_bytes": 20480 * MIB, "driver_used_bytes": None})
    )
    assert made.headers[-2:] == ["reserved (GiB)", "driver (GiB)"]
    assert made.rows[0][-2:] == ["20.00", "–"]
    assert made.rows[0][4] == "0.10"


def test_only_trials_that_were_counted_are_told(run: MemoryRun) -> None:
    run.memory("fp32", 10).lost("memory", "amp-fp16", "oom").speed()
    assert table(run) is None
    run.held("amp-bf16", **KINDS, **ON_A_GPU).held("tf32", status="invalid", **KINDS, **ON_A_GPU)
    assert [row[3] for row in table(run).rows] == ["amp-bf16"]


def test_the_sum_over_devices_stands_beside_the_largest_ones_peak(tmp_path: Path) -> None:
    run = MemoryRun(tmp_path / "run", device=replace(GPU, placement="0+1", name="2 × Card"))
    alone = MemoryRun(tmp_path / "alone").held("fp32", **KINDS, **ON_A_GPU)
    run.held("fp32", **KINDS, **ON_A_GPU, all_devices_bytes=190 * MIB)
    made = table(run)
    assert made.headers[4:7] == ["peak (MiB)", "sum of peaks (MiB)", "tensors (MiB)"]
    assert made.rows[0][4:6] == ["100.0", "190.0"]
    assert "sum of peaks" not in " ".join(table(alone).headers)
    for folder, held in ((run.folder, "100.0; sum 190.0"), (alone.folder, "100.0")):
        page = write_report([folder], tmp_path / "out", figures="none").read_text()
        assert f"| {held} | baseline |" in page
        assert (SUM in page) == ("sum" in held)


def test_on_a_cpu_peaks_that_differ_no_more_than_processes_do_are_not_told_apart(tmp_path: Path) -> None:
    said = {}
    for device, field in ((CPU, "peak_resident_bytes"), (GPU, "peak_allocated_bytes")):
        for saved in (4, 6):
            run = MemoryRun(tmp_path / f"{device.kind}-{saved}", device=device).speed()
            run.held("fp32", **{field: 40 * MIB}).held("amp-bf16", **{field: (40 - saved) * MIB})
            (sentence,) = sentences(summarise(load([run.folder]).trials))
            said[device.kind, saved] = sentence.evidence
    assert "peak memory not told apart" in said["cpu", 4]
    assert "less peak memory" not in said["cpu", 4]
    assert "15 % less peak memory" in said["cpu", 6]
    assert "10 % less peak memory" in said["cuda", 4]
