"""The tables of memory, energy and inference: which trials they take, in which order and unit, and
what is compared.
"""

from dataclasses import replace

import pytest

from bench.phases.energy import Energy
from bench.phases.inference import Inference
from bench.phases.memory import MemoryPeak
from bench.report.analysis.lead import line
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
GPU_MIB = KINDS_MIB | {
    "peak_allocated": 100,
    "first_peak": 150,
    "peak_reserved": 200,
    "gpu_used": 900,
}
NAMED = {"device": "NVIDIA Test 1", "batch size": "128"}


class Run(RunBuilder):
    """A run whose memory and energy trials have their details."""

    def held(self, precision, *, replicate=0, status="ok", **mib):
        sizes = {f"{name}_bytes": size * MIB for name, size in mib.items()}
        peak = MemoryPeak(**sizes)
        return self.result("memory", precision, replicate=replicate, status=status, row=peak)

    def drew(self, precision, joules, *, batch=128, source="counter", status="ok", **more):
        steps = round(312.4 * 5.1 / joules)
        net_j = joules - 71.2 * 5.1 / steps
        energy = Energy(
            energy_source=source,
            energy_j_per_step=joules,
            energy_net_j_per_step=net_j,
            energy_window_s=5.1,
            energy_steps=steps,
            idle_power_w=71.2,
            mean_power_w=312.4,
        )
        energy = replace(energy, **more)
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
    (row,) = run.held("fp32", **GPU_MIB).memory_table.rows
    # The peak, the kinds in the order of KINDS_MIB, then what the allocator and the GPU held.
    assert [float(cell) for cell in row[3:]] == [100, *KINDS_MIB.values(), 150, 200, 900]
    run.held("amp-bf16", **GPU_MIB, driver_used=500)
    assert column(run.memory_table, "driver (MiB)") == ["–", "500.0"]


def test_on_a_cpu_the_peak_is_resident_and_what_only_a_gpu_has_is_left_out(tmp_path):
    run = Run(tmp_path / "run", device=CPU).held("fp32", **KINDS_MIB, peak_resident=95)
    (line,) = lines(run.memory_table)
    assert line["peak (MiB)"] == "95.00"
    assert not {"driver (MiB)", "reserved (MiB)"} & line.keys()


@pytest.mark.parametrize("sizes", [(120, 100), (100, 120)])
def test_of_two_processes_that_read_a_peak_the_larger_is_shown(run, sizes):
    for replicate, size in enumerate(sizes):
        run.held("fp32", replicate=replicate, **GPU_MIB | {"peak_allocated": size})
    assert column(run.memory_table, "peak (MiB)") == ["120.0"]


def test_only_trials_that_count_are_in_the_table_of_memory(run):
    run.memory("fp32", 10).lost("memory", "amp-fp16", "oom").speed()
    assert run.memory_table is None
    run.held("amp-bf16", **GPU_MIB).held("tf32", status="invalid", **GPU_MIB)
    assert column(run.memory_table, "precision") == ["amp-bf16"]


@pytest.mark.slow
def test_the_sum_over_devices_is_next_to_the_largest_ones_peak(tmp_path):
    both = Run(tmp_path / "run", device=replace(GPU, placement="0+1", name="2 × Card"))
    both.held("fp32", **GPU_MIB, all_devices=190)
    alone = Run(tmp_path / "alone").held("fp32", **GPU_MIB)
    assert column(both.memory_table, "peak (MiB)") == ["100.0"]
    assert column(both.memory_table, "sum of peaks (MiB)") == ["190.0"]
    assert "sum of peaks (MiB)" not in alone.memory_table.headers
    for folder, held in ((both.folder, "100.0; sum 190.0"), (alone.folder, "100.0")):
        page = text_of(write_report([folder], tmp_path / "out", figures="none"))
        assert f"| {held} |" in page
        assert (SUM in page) == ("sum" in held)


@pytest.mark.parametrize(
    ("device", "peak", "saved", "change"),
    [
        (CPU, "peak_resident", 4, "–"),
        (CPU, "peak_resident", 6, "−15 %"),
        (GPU, "peak_allocated", 4, "−10 %"),
    ],
)
def test_on_a_cpu_peaks_that_differ_no_more_than_processes_do_are_not_told_apart(
    tmp_path, device, peak, saved, change
):
    run = Run(tmp_path / "run", device=device).speed()
    run.held("fp32", **{peak: 40}).held("amp-bf16", **{peak: 40 - saved})
    assert line(run.answer()).changes["memory"].text == change


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


def test_inference_has_a_row_for_each_precision_in_order_and_of_the_lowest_seed(run):
    assert titled(run.memory("fp32", 100).folder, "Inference") is None
    fp32 = Inference(
        latency_p50_ms=1.5,
        latency_p95_ms=2.0,
        inference_samples_per_s=1000.0,
        inference_speedup=None,
        inference_speedup_low=None,
        inference_speedup_high=None,
        top1_agreement_pct=100.0,
        output_error=0.0,
    )
    amp = replace(
        fp32,
        inference_speedup=2.0,
        inference_speedup_low=1.9,
        inference_speedup_high=2.1,
        top1_agreement_pct=98.75,
        output_error=0.004,
    )
    run.result("inference", "amp-bf16", seed=1, row=fp32)
    run.result("inference", "amp-bf16", seed=0, row=amp).result("inference", "fp32", row=fp32)
    assert [row[2:] for row in titled(run.folder, "Inference").rows] == [
        ["fp32", "1.500", "2.000", "1,000", "baseline", "100.00", "0"],
        ["amp-bf16", "1.500", "2.000", "1,000", "2.00 [1.90, 2.10]", "98.75", "0.004"],
    ]
