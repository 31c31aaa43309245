"""The tables of memory, energy and inference: which trials they take, in which order and unit, and
what is compared.
"""

from dataclasses import replace

import pytest

from bench.phases.energy import Energy
from bench.phases.inference import Inference
from bench.phases.memory import MemoryPeak
from bench.phases.memory.report import memory_held
from bench.report.analysis.lead import line
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.reading.load import load
from bench.report.tables.measurements import SUM
from bench.results.records import Device
from tests.report.builders import GPU, MIB, RunBuilder, text_of, write_report
from tests.report.tables.lines import column, lines, titled

CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="CPU")
KINDS_MIB = {
    "tracked_peak": 90,
    "parameter": 20,
    "gradient": 18,
    "optimizer": 40,
    "activation": 11,
    "temporary": 1,
}
GPU_MIB = {
    "peak_allocated": 100,
    "first_peak": 150,
    "peak_reserved": 200,
    "driver_used": 500,
    "gpu_used": 900,
}
KINDS = {f"{name}_bytes": size * MIB for name, size in KINDS_MIB.items()}
ON_A_GPU = KINDS | {f"{name}_bytes": size * MIB for name, size in GPU_MIB.items()}
NAMED = {"device": "NVIDIA Test 1", "batch size": "128"}


class Run(RunBuilder):
    """A run whose memory and energy trials have their details."""

    def held(self, precision, *, batch=128, status="ok", **figures):
        return self.result(
            "memory", precision, batch=batch, status=status, row=MemoryPeak(**figures)
        )

    def drew(self, precision, joules, *, batch=128, source="counter", status="ok", **more):
        steps = round(312.4 * 5.1 / joules)
        net_j = joules - 71.2 * 5.1 / steps
        figures = {
            "energy_net_j_per_step": net_j,
            "idle_power_w": 71.2,
            "mean_power_w": 312.4,
        } | more
        energy = Energy(
            energy_source=source,
            energy_j_per_step=joules,
            energy_window_s=5.1,
            energy_steps=steps,
            **figures,
        )
        return self.result("energy", precision, batch=batch, status=status, row=energy)

    @property
    def memory_table(self):
        return titled(self.folder, "Where the memory went")

    @property
    def energy_table(self):
        return titled(self.folder, "Energy")


@pytest.fixture
def run(tmp_path):
    return Run(tmp_path / "run", suite="vit")


def test_every_kind_of_memory_has_its_own_column_and_an_unknown_figure_is_a_dash(run):
    table = run.held("fp32", **ON_A_GPU | {"driver_used_bytes": None}).memory_table
    (line,) = lines(table)
    shown = list(map(float, list(line.values())[3:]))
    # The peak, the kinds in the order of KINDS_MIB, then what the allocator and the GPU held.
    assert shown == [100, *KINDS_MIB.values(), 150, 200, 900]
    run.held("amp-bf16", **ON_A_GPU)
    assert column(run.memory_table, "driver (MiB)") == ["–", "500.0"]


def test_on_a_cpu_the_peak_is_resident_and_what_only_a_gpu_has_is_left_out(tmp_path):
    run = Run(tmp_path / "run", device=CPU)
    run.held("fp32", **KINDS, peak_resident_bytes=95 * MIB)
    (line,) = lines(run.memory_table)
    assert line["peak (MiB)"] == "95.00"
    assert "driver (MiB)" not in line
    assert "reserved (MiB)" not in line


@pytest.mark.parametrize("sizes", [(120, 100), (100, 120)])  # MiB
def test_of_two_processes_that_read_a_peak_the_larger_is_shown_and_explained(run, sizes):
    for replicate, size in enumerate(sizes):
        peak = MemoryPeak(**ON_A_GPU | {"peak_allocated_bytes": size * MIB})
        for name in ("fp32", "amp-bf16"):
            run.result("memory", name, row=peak, replicate=replicate)
    assert column(run.memory_table, "peak (MiB)") == ["120.0", "120.0"]
    held = memory_held(load([run.folder]).trials)
    assert [*held["peak_allocated_bytes"]] == [120 * MIB] * 2


def test_only_trials_that_count_are_in_the_table_of_memory(run):
    run.memory("fp32", 10).lost("memory", "amp-fp16", "oom").speed()
    assert run.memory_table is None
    run.held("amp-bf16", **ON_A_GPU).held("tf32", status="invalid", **ON_A_GPU)
    assert column(run.memory_table, "precision") == ["amp-bf16"]


@pytest.mark.slow
def test_the_sum_over_devices_is_next_to_the_largest_ones_peak(tmp_path):
    both = Run(tmp_path / "run", device=replace(GPU, placement="0+1", name="2 × Card"))
    both.held("fp32", **ON_A_GPU, all_devices_bytes=190 * MIB)
    alone = Run(tmp_path / "alone").held("fp32", **ON_A_GPU)
    assert list(lines(both.memory_table)[0].items())[3:5] == [
        ("peak (MiB)", "100.0"),
        ("sum of peaks (MiB)", "190.0"),
    ]
    assert "sum of peaks (MiB)" not in lines(alone.memory_table)[0]
    for folder, held in ((both.folder, "100.0; sum 190.0"), (alone.folder, "100.0")):
        page = text_of(write_report([folder], tmp_path / "out", figures="none"))
        assert f"| {held} |" in page
        assert (SUM in page) == ("sum" in held)


@pytest.mark.parametrize(
    ("device", "field", "saved", "change"),
    [
        (CPU, "peak_resident_bytes", 4, "–"),
        (CPU, "peak_resident_bytes", 6, "−15 %"),
        (GPU, "peak_allocated_bytes", 4, "−10 %"),
    ],
)
def test_on_a_cpu_peaks_that_differ_no_more_than_processes_do_are_not_told_apart(
    tmp_path, device, field, saved, change
):
    run = Run(tmp_path / "run", device=device).speed()
    run.held("fp32", **{field: 40 * MIB}).held("amp-bf16", **{field: (40 - saved) * MIB})
    (answer,) = answers(summarise(load([run.folder]).trials))
    assert line(answer).changes["memory"].text == change


def test_energy_is_compared_with_fp32_of_the_same_cell_and_source(run):
    run.drew("fp32", 4.0).drew("amp-bf16", 1.0).drew("amp-fp16", 1.0, source="power")
    run.drew("fp32", 8.0, batch=256).drew("amp-bf16", 6.0, batch=256)
    run.drew("tf32", 3.0, batch=64)
    table = run.energy_table
    assert column(table, "batch size") == ["64", "128", "128", "128", "256", "256"]
    compared = ["–", "baseline", "–", "0.250", "baseline", "0.750"]
    assert column(table, "energy ÷ fp32") == compared


def test_the_table_of_energy_has_what_was_read_and_its_source_or_its_status(run):
    assert run.speed().memory("fp32", 10).energy_table is None
    run.drew("amp-bf16", 1.6).drew("fp32", 4.0, idle_power_w=None, energy_net_j_per_step=None)
    run.lost("energy", "amp-fp16", "unsupported").drew("tf32", 1.0, status="nonfinite")
    fp32, tf32, amp_fp16, line = lines(run.energy_table)
    assert (fp32["above idle (J)"], fp32["idle power (W)"]) == ("–", "–")
    assert (tf32["energy/step (J)"], tf32["energy ÷ fp32"]) == ("nonfinite", "–")
    assert (amp_fp16["energy/step (J)"], amp_fp16["energy ÷ fp32"]) == ("unsupported", "–")
    assert line == NAMED | {
        "precision": "amp-bf16",
        "source": "counter",
        "energy/step (J)": "1.600",
        "above idle (J)": "1.235",
        "samples/J": "80.00",
        "step alone (ms)": "5.120",
        "mean power (W)": "312",
        "idle power (W)": "71.2",
        "energy ÷ fp32": "0.400",
    }


def answered(speedup, agreement=100.0, error=0.0):
    ends = (None, None)
    if speedup is not None:
        ends = (speedup - 0.1, speedup + 0.1)
    return Inference(
        latency_p50_ms=1.5,
        latency_p95_ms=2.0,
        inference_samples_per_s=1000.0,
        inference_speedup=speedup,
        inference_speedup_low=ends[0],
        inference_speedup_high=ends[1],
        top1_agreement_pct=agreement,
        output_error=error,
    )


def test_inference_has_a_row_for_each_precision_in_order_and_of_the_lowest_seed(run):
    run.memory("fp32", 100)
    assert titled(run.folder, "Inference") is None
    for seed in (1, 0):
        run.result("inference", "amp-bf16", seed=seed, row=answered(2.0 + seed, 98.75, 0.004))
    run.result("inference", "fp32", row=answered(None))
    assert [list(line.values())[2:] for line in lines(titled(run.folder, "Inference"))] == [
        ["fp32", "1.500", "2.000", "1,000", "baseline", "100.00", "0"],
        ["amp-bf16", "1.500", "2.000", "1,000", "2.00 [1.90, 2.10]", "98.75", "0.004"],
    ]
