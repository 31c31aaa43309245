"""AMD's GPUs, without any: torch with ROCm is a version string, amdsmi a fake."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bench.devices import survey
from bench.devices.backend import backend_of
from bench.devices.monitor import DeviceLostError, open_monitor
from bench.devices.processes import gpu_processes
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from tests.devices import fake_nvml
from tests.devices.fake_amdsmi import AmdGpu, AmdSmiException, install


@pytest.fixture
def smi(monkeypatch):
    """Return AMD SMI on a machine with one AMD GPU and no NVIDIA driver, the GPU, and its key."""
    fake_nvml.without_driver(monkeypatch)
    gpu = AmdGpu()
    module = install(monkeypatch, gpu)
    with open_monitor() as monitor:
        yield SimpleNamespace(monitor=monitor, gpu=gpu, module=module)
    assert module.running == 0


def rocm(monkeypatch, arch="gfx942:sramecc+:xnack-", *, hip="6.4.43482"):
    """Let torch be a build with ROCm that sees one GPU."""
    properties = SimpleNamespace(
        name="AMD Instinct", major=9, minor=4, gcnArchName=arch, total_memory=2**37, multi_processor_count=304,
        pci_domain_id=0, pci_bus_id=0xC1, pci_device_id=0,
    )  # fmt: skip
    monkeypatch.setattr(torch.version, "hip", hip)
    monkeypatch.setattr(torch.version, "cuda", None)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx90a", "gfx942", "gfx1100"])
    monkeypatch.setattr(survey, "_gflops", lambda device, size, dtype=None: 1000.0)
    return backend_of(torch.device("cuda", 0))


def test_a_gpu_of_amd_is_described_for_the_tables(monkeypatch, smi):
    rocm(monkeypatch)
    environment = survey.survey(None, print)
    (device,) = environment.devices
    assert (environment.cuda, environment.driver) == ("ROCm 6.4.43482", "6.12.12")
    assert (device.kind, device.architecture, device.compute_capability) == ("cuda", "CDNA 3", None)
    assert (device.uuid, device.power_limit_w, device.power_default_w) == (smi.gpu.uuid, 750.0, 700.0)
    assert device.energy == "power"  # the fake's counter stands still


def test_missing_kernels_are_named_in_amds_words(monkeypatch, smi):
    rocm(monkeypatch, "gfx906")
    with pytest.raises(UsageError, match=r"no kernels for GPU 0 \(AMD Instinct, gfx906\); it has gfx90a(?!.*Pascal)"):
        survey.survey(("0",), print)


def test_tf32_is_unsupported_where_torch_does_not_keep_its_switch(monkeypatch):
    class Ignored:
        allow_tf32 = property(lambda self: False, lambda self, value: None)

    backend = rocm(monkeypatch)
    monkeypatch.setattr(torch.backends.cuda, "matmul", Ignored())
    assert "does not offer" in backend.unsupported_reason(PRECISIONS["tf32"])
    assert backend.missing_arithmetic(PRECISIONS["tf32"]) is None


def test_readings_are_in_the_units_that_their_names_say(smi):
    sample = smi.monitor.sample(smi.gpu.bdf.upper(), "0", own_pids={1})
    assert (sample.power_w, sample.temperature_c, sample.utilization_pct) == (140.0, 47.0, 98.0)
    assert (sample.sm_clock_mhz, sample.memory_used_bytes, sample.foreign_processes) == (2100, 592 * 2**20, 0)
    assert sample.throttle_reasons is None
    assert smi.monitor.total_energy_j(smi.gpu.uuid) == pytest.approx(30.6)
    gpu = smi.monitor.gpu(smi.gpu.bdf)
    assert (gpu.uuid, gpu.model) == (smi.gpu.uuid, "gfx942")
    assert (gpu.memory_free_bytes, gpu.sm_clock_limit_mhz) == (196_000 * 2**20, 2400)
    assert [each.uuid for each in smi.monitor.gpus()] == [smi.gpu.uuid]


def test_what_is_unknown_of_a_gpu_is_none_with_the_reason_and_a_lost_one_raises(smi):
    smi.gpu.readings = {"get_energy_count": AmdSmiException(2), "get_power_info": AmdSmiException(10)}
    assert (smi.monitor.total_energy_j(smi.gpu.uuid), smi.monitor.power_w(smi.gpu.uuid)) == (None, None)
    assert "energy: Error code: 2; power: Error code: 10" in smi.monitor.energy_problem(smi.gpu.uuid)
    smi.gpu.readings = {"get_power_info": AmdSmiException(34)}
    with pytest.raises(DeviceLostError, match="get_power_info"):
        smi.monitor.power_w(smi.gpu.uuid)
    with pytest.raises(DeviceLostError, match="no GPU other"):
        smi.monitor.gpu("other")


def test_throttling_is_the_share_of_the_time_that_its_accumulator_grew(smi):
    def status(**values):
        smi.gpu.readings = {"get_violation_status": values}

    status(acc_counter=1000, acc_ppt_pwr=100, acc_socket_thrm=0, acc_vr_thrm="N/A")
    times = smi.monitor.throttle_times(smi.gpu.uuid)
    assert times.counted == {"sw_power_cap", "sw_thermal"}
    status(acc_counter=2000, acc_ppt_pwr=350, acc_socket_thrm=0, active_ppt_pwr=True, active_socket_thrm=False)
    assert times.since(2.0) == {"sw_power_cap": 0.5}
    assert smi.monitor.clock_event_reasons(smi.gpu.uuid) == ("sw_power_cap",)
    assert times.since(2.0) == {}
    assert smi.monitor.process_loads(smi.gpu.uuid)() is None


def test_processes_on_a_gpu_of_amd_are_known(smi):
    (process,) = gpu_processes()[smi.gpu.uuid]
    assert (process.pid, process.memory_bytes) == (1, 2**30)
