"""What is read from NVML, on the machines that a fake driver makes."""

from __future__ import annotations

import os
import sys
import time

import pytest

from bench.devices.monitor import DeviceLostError
from bench.devices.nvidia import Nvml, nvml_problem, open_nvml
from tests.devices import fake_nvml as fake
from tests.devices.fake_gpu import FakeClock, FakeGpu, GiB
from tests.devices.fake_nvml import FakeDriver


@pytest.fixture
def machine(monkeypatch):
    """Make a machine of GPUs and open its NVML."""

    def make(*gpus: FakeGpu, **options) -> Nvml:
        FakeDriver(gpus, **options).install(monkeypatch)
        nvml = open_nvml()
        assert nvml is not None
        return nvml

    return make


def test_without_a_driver_there_is_no_nvml_and_no_error(monkeypatch):
    fake.without_driver(monkeypatch)
    assert open_nvml() is None
    assert "Shared Library Not Found" in nvml_problem()


@pytest.mark.parametrize("code", [fake.DRIVER_NOT_LOADED, fake.MISMATCH, fake.UNKNOWN])
def test_a_driver_that_does_not_start_is_no_nvml(monkeypatch, code):
    FakeDriver([FakeGpu("GPU-a")], init_code=code).install(monkeypatch)
    assert open_nvml() is None
    assert nvml_problem()


def test_without_nvidia_ml_py_there_is_no_nvml(monkeypatch):
    monkeypatch.setitem(sys.modules, "pynvml", None)
    assert open_nvml() is None
    assert "nvidia-ml-py" in nvml_problem()


def test_leaving_the_context_shuts_nvml_down_once(monkeypatch):
    driver = FakeDriver([FakeGpu("GPU-a")]).install(monkeypatch)
    with open_nvml() as nvml:
        assert driver.running == 1
        nvml.close()
    assert driver.running == 0
    assert nvml_problem() is None
    assert driver.running == 0


def test_gpus_are_described_in_their_units(machine):
    nvml = machine(
        FakeGpu("GPU-b", name="NVIDIA Titanic", memory_total=24 * GiB, power_limit_w=350.0, capability=(8, 6)),
        FakeGpu("GPU-a", processes={1: None, os.getpid(): GiB}),
    )
    assert nvml.driver_version() == "580.65.06"
    first, second = nvml.gpus()
    assert (first.index, first.uuid, first.name) == (0, "GPU-b", "NVIDIA Titanic")
    assert (first.memory_total_bytes, first.power_limit_w, first.model) == (24 * GiB, 350.0, "8.6")
    assert first.processes == ()
    assert (second.index, second.uuid) == (1, "GPU-a")
    assert second.processes == (1, os.getpid())


def test_a_gpu_is_found_by_uuid_whatever_the_order(machine):
    nvml = machine(FakeGpu("GPU-c", sm_clock_mhz=3), FakeGpu("GPU-a", sm_clock_mhz=1), FakeGpu("GPU-b", sm_clock_mhz=2))
    assert [nvml.sm_clock_mhz(uuid) for uuid in ("GPU-a", "GPU-b", "GPU-c")] == [1, 2, 3]
    assert nvml.gpu("GPU-b").index == 2


def test_a_uuid_without_its_prefix_is_the_same_gpu(machine):
    nvml = machine(FakeGpu("GPU-a", memory_used=GiB))
    assert nvml.memory_used_bytes("a") == GiB


def test_a_uuid_that_is_not_there_is_a_failure_that_names_it(machine):
    with pytest.raises(DeviceLostError, match="GPU-z"):
        machine(FakeGpu("GPU-a")).power_w("GPU-z")


def test_used_memory_leaves_the_reserve_out_where_the_driver_tells_it_apart(machine):
    gpu = FakeGpu("GPU-a", memory_used=5 * GiB, memory_reserved=GiB)
    assert machine(gpu).memory_used_bytes("GPU-a") == 5 * GiB
    assert machine(gpu, missing=fake.DRIVER_470).memory_used_bytes("GPU-a") == 6 * GiB


def test_memory_is_read_right_after_gpustat_has_patched_pynvml(machine):
    nvml = machine(FakeGpu("GPU-a", memory_used=5 * GiB))
    import gpustat  # noqa: F401

    assert nvml.memory_used_bytes("GPU-a") == 5 * GiB


def test_power_is_instantaneous_where_there_is_such_a_reading(machine):
    clock = FakeClock()
    spike = FakeGpu("GPU-a", power_w=lambda now_s: 650.0 if 1.0 <= now_s < 1.05 else 100.0, average_power_w=120.0)
    nvml = machine(spike, clock=clock)
    readings = []
    for _ in range(3):
        readings.append(nvml.power_w("GPU-a"))
        clock.advance(1.0)
    assert readings == [100.0, 650.0, 100.0]


@pytest.mark.parametrize("options", [{"has_power_instant": False}, {"errors": {"nvmlDeviceGetFieldValues": 3}}])
def test_power_is_the_average_where_there_is_no_instantaneous_one(machine, options):
    assert machine(FakeGpu("GPU-a", average_power_w=120.0, **options)).power_w("GPU-a") == 120.0


def test_a_field_that_is_not_supported_has_its_reason_kept(machine):
    nvml = machine(FakeGpu("GPU-a", has_power_instant=False))
    nvml.power_w("GPU-a")
    assert nvml.reasons == {("GPU-a", "NVML_FI_DEV_POWER_INSTANT"): "Not Supported"}


def test_zero_power_is_unknown_power(machine):
    assert machine(FakeGpu("GPU-a", power_w=0.0)).power_w("GPU-a") is None
    assert machine(FakeGpu("GPU-a", power_w=0.0, average_power_w=90.0)).power_w("GPU-a") == 90.0


def test_energy_is_in_joules_and_moves_in_ticks(machine):
    clock = FakeClock()
    nvml = machine(FakeGpu("GPU-a", power_w=300.0, energy_start_j=1000.0), clock=clock)
    clock.advance(0.25)
    assert nvml.total_energy_j("GPU-a") == pytest.approx(1060.0)
    clock.advance(0.04)
    assert nvml.total_energy_j("GPU-a") == pytest.approx(1060.0)
    clock.advance(0.01)
    assert nvml.total_energy_j("GPU-a") == pytest.approx(1090.0)


def test_an_energy_counter_that_wraps_is_read_as_it_stands(machine):
    clock = FakeClock()
    nvml = machine(FakeGpu("GPU-a", power_w=300.0, energy_start_j=100.0, energy_wraps_at_j=120.0), clock=clock)
    clock.advance(0.1)
    assert nvml.total_energy_j("GPU-a") == pytest.approx(10.0)


@pytest.mark.parametrize("code", [fake.NOT_SUPPORTED, fake.NO_PERMISSION, fake.UNKNOWN])
def test_a_reading_that_fails_is_none_for_a_reason_and_the_others_go_on(machine, code):
    gpu = FakeGpu("GPU-a", errors={"nvmlDeviceGetTotalEnergyConsumption": code})
    nvml = machine(gpu)
    assert nvml.total_energy_j("GPU-a") is None
    assert nvml.reasons["GPU-a", "nvmlDeviceGetTotalEnergyConsumption"]
    assert nvml.temperature_c("GPU-a") == 50.0
    gpu.errors.clear()
    assert nvml.total_energy_j("GPU-a") == 0.0
    assert ("GPU-a", "nvmlDeviceGetTotalEnergyConsumption") not in nvml.reasons


@pytest.mark.parametrize("function", ["TemperatureV", "ComputeRunningProcesses_v3", "CurrentClocksEventReasons"])
def test_an_old_driver_is_asked_in_the_old_way(machine, function):
    gpu = FakeGpu("GPU-a", temperature_c=61, reasons=0x4, processes={1: GiB})
    nvml = machine(gpu, missing={f"nvmlDeviceGet{function}"})
    sample = nvml.sample("GPU-a", "0", set())
    assert (sample.temperature_c, sample.throttle_reasons, sample.foreign_processes) == (61.0, "sw_power_cap", 1)


def test_an_old_nvidia_ml_py_is_asked_in_the_old_way(monkeypatch):
    driver = FakeDriver([FakeGpu("GPU-a", temperature_c=61)]).install(monkeypatch)
    del driver.pynvml.nvmlDeviceGetTemperatureV
    assert open_nvml().temperature_c("GPU-a") == 61.0


@pytest.mark.parametrize(
    ("bits", "names"),
    [
        (0x0, ()),
        (0x1, ("idle",)),
        (0x44, ("sw_power_cap", "hw_thermal")),
        (0x1AA, ("applications_clocks", "hw_slowdown", "sw_thermal", "hw_power_brake", "display_clock")),
        (0x10, ("sync_boost",)),
        (0x8004, ("sw_power_cap", "other")),
    ],
)
def test_clock_event_reasons_have_names(machine, bits, names):
    assert machine(FakeGpu("GPU-a", reasons=bits)).clock_event_reasons("GPU-a") == names


def test_no_reason_is_told_from_unknown_reasons(machine):
    functions = ("nvmlDeviceGetCurrentClocksEventReasons", "nvmlDeviceGetCurrentClocksThrottleReasons")
    blind = FakeGpu("GPU-b", errors=dict.fromkeys(functions, fake.NOT_SUPPORTED))
    nvml = machine(FakeGpu("GPU-a", reasons=0), blind)
    assert nvml.sample("GPU-a", "0").throttle_reasons == "none"
    assert nvml.sample("GPU-b", "1").throttle_reasons is None


def test_a_sample_holds_every_reading(machine):
    gpu = FakeGpu("GPU-a", power_w=321.5, reasons=0x24, processes={os.getpid(): None, os.getppid(): GiB})
    before = time.time()
    sample = machine(gpu).sample("GPU-a", "3", {os.getpid()})
    assert before <= sample.time_s <= time.time()
    assert (sample.placement, sample.uuid) == ("3", "GPU-a")
    assert (sample.utilization_pct, sample.memory_used_bytes, sample.power_w) == (90.0, 10 * GiB, 321.5)
    assert (sample.temperature_c, sample.sm_clock_mhz, sample.memory_clock_mhz) == (50.0, 1500, 2600)
    assert (sample.throttle_reasons, sample.foreign_processes) == ("sw_power_cap+sw_thermal", 1)


def test_foreign_processes_are_unknown_until_it_is_known_which_are_ours(machine):
    nvml = machine(FakeGpu("GPU-a", processes={1: GiB}))
    assert nvml.sample("GPU-a", "0", None).foreign_processes is None
    assert nvml.sample("GPU-a", "0", {1}).foreign_processes == 0


def test_foreign_processes_are_unknown_where_nvml_counts_in_another_process_namespace(machine):
    nowhere = 2**22 + 1  # Above the largest process id that Linux gives.
    assert machine(FakeGpu("GPU-a", processes={nowhere: GiB, 1: GiB})).foreign_processes("GPU-a", set()) is None


def test_processes_that_may_not_be_listed_are_unknown(machine):
    functions = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
    nvml = machine(FakeGpu("GPU-a", processes={1: 1}, errors=dict.fromkeys(functions, fake.NO_PERMISSION)))
    assert nvml.process_pids("GPU-a") is None
    assert nvml.gpu("GPU-a").processes is None
    assert nvml.foreign_processes("GPU-a", set()) is None


def test_a_mig_slice_has_its_own_memory_its_boards_clocks_and_no_power(machine):
    small = FakeGpu("MIG-s", memory_total=10 * GiB, memory_used=GiB, processes={1: GiB})
    board = FakeGpu("GPU-a", slices=[small], sm_clock_mhz=1234, temperature_c=66, reasons=0x40)
    nvml = machine(FakeGpu("GPU-b"), board)
    sample = nvml.sample("MIG-s", "0", set())
    assert (sample.memory_used_bytes, sample.foreign_processes) == (GiB, 1)
    assert (sample.sm_clock_mhz, sample.temperature_c, sample.throttle_reasons) == (1234, 66.0, "hw_thermal")
    assert sample.power_w is None
    assert sample.utilization_pct is None
    assert nvml.total_energy_j("MIG-s") is None
    described = nvml.gpu("MIG-s")
    assert (described.index, described.memory_total_bytes, described.power_limit_w) == (1, 10 * GiB, None)


def test_a_lost_gpu_is_a_failure_and_does_not_hide_the_others(machine):
    bad, good = FakeGpu("GPU-a"), FakeGpu("GPU-b")
    nvml = machine(bad, good)
    assert nvml.sample("GPU-a", "0").power_w == 200.0
    bad.lost = True
    with pytest.raises(DeviceLostError, match=r"GPU-a.*lost"):
        nvml.sample("GPU-a", "0")
    assert nvml.sample("GPU-b", "1").power_w == 200.0
    assert [gpu.uuid for gpu in nvml.gpus()] == ["GPU-b"]
