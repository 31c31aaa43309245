"""Answers of drivers on machines of others: each record is judged right, or said to be doubtful or unknown.

The figures are those of the source that stands with them; the fake driver gives them back under the real nvidia-ml-py.
"""

from __future__ import annotations

from typing import NamedTuple

import pytest

from bench.devices.monitor import GpuMeter, energy_source, open_monitor
from bench.phases.energy.stream import Window, doubt, rest
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu
from tests.phases.test_energy_stream import NO_COUNTER, Bench, SimulatedLoad

POWER = "nvmlDeviceGetPowerUsage"
NO_POWER = {POWER: fake.NOT_SUPPORTED, "nvmlDeviceGetFieldValues": fake.NOT_SUPPORTED}


@pytest.fixture
def record(monkeypatch):
    """Return a function that measures a GPU for five seconds, idle or in steps of some length."""

    def make(gpu: FakeGpu, *, idle: bool = False, step_s: float = 0.007) -> Window | None:
        bench = Bench(monkeypatch, gpu)
        return bench.measure(rest if idle else SimulatedLoad(bench.clock, step_s))

    return make


def judged(window: Window, idle: Window | None = None, **about) -> str:
    return doubt(window, idle, **{"name": "GPU", "limit_w": None, **about})


class Record(NamedTuple):
    """Counter and power of the same seconds."""

    source: str
    joules: float
    seconds: float
    power_w: float
    right: bool


RECORDS = [
    Record("github.com/ml-energy/zeus/issues/181, an idle GPU", 187.443, 5.0045, 326.883 / 5.0045, right=False),
    Record("github.com/powerapi-ng/pyJoules/issues/23, TITAN RTX active", 16_522.288, 60.0, 280.0, right=True),
]


@pytest.mark.parametrize("recorded", RECORDS, ids=[row.source for row in RECORDS])
def test_a_counter_beside_the_power_of_the_same_seconds(record, recorded):
    idle, counted_w = "idle" in recorded.source, recorded.joules / recorded.seconds
    window = record(FakeGpu("GPU-a", power_w=recorded.power_w, counter_power_w=counted_w), idle=idle)
    assert (window.source, window.power_w) == ("counter", pytest.approx(counted_w, rel=0.01))
    assert window.sampled_w == pytest.approx(recorded.power_w, rel=0.01)
    steps = Window(source="counter", power_w=300.0, seconds=5.0, steps=100, start_s=0.0, sampled_w=299.0)
    answer = judged(steps, window) if idle else judged(window)
    assert (answer == "") == recorded.right
    if not recorded.right:
        assert "idle its counter rose by 37.5 W and its power read 65.3 W" in answer


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
def test_the_energy_of_a_grace_hopper_is_doubtful_even_if_counter_and_power_agree(record, errors):
    # github.com/ml-energy/zeus/pull/172: there the counter is that of the module, not of the GPU; arXiv 2312.02741: and
    # so is the instantaneous power.
    window = record(FakeGpu("GPU-a", power_w=400.0, errors=errors))
    assert judged(window) == ""
    assert "its module's, CPU and memory included" in judged(window, name="NVIDIA GH200 480GB")


@pytest.mark.parametrize("errors", [{}, NO_COUNTER])
def test_power_that_stands_far_above_the_limit_is_doubtful(record, errors):
    # github.com/NVIDIA/open-gpu-kernel-modules/issues/1237: an RTX 2000 Ada laptop of 35 W reads 588 W all the time.
    window = record(FakeGpu("GPU-a", power_w=588.0, errors=errors))
    assert "588 W is more than its power limit of 35 W" in judged(window, limit_w=35.0)
    assert judged(window, limit_w=600.0) == ""


def test_without_power_the_counter_stands_alone(record):
    # github.com/msminhas93/nviwatch/pull/28: an RTX 4060 that does not support power readings.
    window = record(FakeGpu("GPU-a", power_w=115.0, errors=NO_POWER))
    assert (window.source, window.sampled_w, judged(window)) == ("counter", None, "")


def test_a_board_that_tells_neither_is_unknown_and_says_so(record, monkeypatch):
    # github.com/HazyResearch/intelligence-per-watt/issues/40: a Jetson Orin, driver 595.78, on which NVML starts.
    gpu = FakeGpu("GPU-a", errors={**NO_COUNTER, **NO_POWER})
    assert record(gpu) is None
    monitor = open_monitor()
    assert energy_source(GpuMeter(monitor, "GPU-a")) is None
    assert monitor.energy_problem("GPU-a").count("Not Supported") == 2


def test_a_mig_slice_has_no_energy_even_where_the_driver_answers_with_its_boards(monkeypatch):
    # github.com/guilbaults/slurm-job-exporter/pull/55: the power that is reported for a slice is the whole GPU's.
    answered = {"PowerUsage", "TotalEnergyConsumption", "FieldValues", "EnforcedPowerLimit"}
    monkeypatch.setattr(fake, "_FOR_SLICES", fake._FOR_SLICES | answered)
    FakeDriver([FakeGpu("GPU-a", slices=[FakeGpu("MIG-s", power_w=250.0)])]).install(monkeypatch)
    monitor = open_monitor()
    meter = GpuMeter(monitor, "MIG-s")
    assert (meter.energy_j(), meter.power_w(), monitor.describe("MIG-s")["power_limit_w"]) == (None, None, None)


def test_a_board_with_slices_keeps_its_memory_where_utilisation_is_not_supported(monkeypatch):
    # github.com/XuehaiPan/nvitop/issues/5: an A100 of 42,505,273,344 B in MIG mode, driver 470.42.01.
    total, used = 42_505_273_344, 14_987_362_304
    no_rates = {"nvmlDeviceGetUtilizationRates": fake.NOT_SUPPORTED}
    gpu = FakeGpu("GPU-a", memory_total=total, memory_used=used, memory_reserved=0, errors=no_rates)
    FakeDriver([gpu], missing=fake.DRIVER_470, version="470.42.01").install(monkeypatch)
    sample = open_monitor().sample("GPU-a", "0")
    assert (sample.utilization_pct, sample.memory_used_bytes) == (None, used)


class Board(NamedTuple):
    """Readings of a board by nvidia-smi, which asks NVML; None where it reported that there is no such reading."""

    source: str
    driver: str
    power_w: float | None
    """Instantaneous where the driver told it."""
    average_w: float | None
    limit_w: float
    utilization_pct: int | None
    reasons: int = 0


EXPORTER = "github.com/utkuozdemir/nvidia_gpu_exporter, internal/integration/testdata"
TELEGRAF = "github.com/influxdata/telegraf, plugins/inputs/nvidia_smi/testdata"
BOARDS = {
    "A100 80 GB in MIG mode": Board(f"{TELEGRAF}/a100-sxm4-v12.xml", "535.54.03", 67.03, None, 500.0, None),
    "H100 under load": Board(f"{EXPORTER} (h100-80gb-hbm3, load)", "590.48.01", 625.68, 631.95, 700.0, 100),
    "RTX 2080 SUPER idle": Board(f"{EXPORTER} (rtx-2080-super, idle)", "595.71.05", 39.32, None, 250.0, 0, reasons=4),
    "GT 1030": Board(f"{TELEGRAF}/gt-1030.xml", "470.74", None, None, 30.0, 0, reasons=1),
}


def board_of(name: str) -> tuple[FakeGpu, FakeDriver]:
    """Return a board that answers as it did where it was recorded, and its driver."""
    board = BOARDS[name]
    errors = {} if board.utilization_pct is not None else {"nvmlDeviceGetUtilizationRates": fake.NOT_SUPPORTED}
    gpu = FakeGpu(
        "GPU-a",
        power_w=board.power_w or 0.0,
        average_power_w=board.average_w,
        has_power_instant=board.average_w is not None,
        power_limit_w=board.limit_w,
        utilization_pct=board.utilization_pct or 0,
        reasons=board.reasons,
        errors=errors if board.power_w else {**errors, **NO_POWER},
        slices=[FakeGpu("MIG-s")] if "MIG" in name else [],
    )
    missing = fake.DRIVER_470 if board.driver.startswith("470.") else ()
    return gpu, FakeDriver([gpu], clock=FakeClock(), missing=missing, version=board.driver)


@pytest.mark.parametrize("name", BOARDS)
def test_a_boards_readings_are_those_that_its_driver_told_and_its_power_is_right_or_unknown(monkeypatch, record, name):
    board, (gpu, driver) = BOARDS[name], board_of(name)
    driver.install(monkeypatch)
    monitor = open_monitor()
    sample = monitor.sample("GPU-a", "0")
    assert (sample.power_w, sample.utilization_pct) == (board.power_w, board.utilization_pct)
    assert (monitor.driver_version(), monitor.describe("GPU-a")["power_limit_w"]) == (board.driver, board.limit_w)
    assert sample.throttle_reasons == {0: "none", 1: "idle", 4: "sw_power_cap"}[board.reasons]
    if "MIG" in name:  # the board's power is no slice's
        assert energy_source(GpuMeter(monitor, "MIG-s")) is None
        assert "shares its board's power" in monitor.energy_problem("MIG-s")
    gpu.errors |= NO_COUNTER
    window = record(gpu)
    assert (window is None) == (board.power_w is None)
    if window is not None:
        assert window.power_w == pytest.approx(board.power_w, rel=1e-3)  # not the average, which lags by a second
        assert judged(window, limit_w=board.limit_w) == ""
