"""What the self-tests measure, in this process and on a CPU, or on a fake NVIDIA driver."""

from dataclasses import replace

import pytest
import torch

from bench.doctor import arithmetic, arms, estimator, gpu, judge, memory
from bench.measure.energy import Window
from bench.measure.simulated import SimulatedMachine, SimulatedRunner
from bench.measure.warmup import WarmUp
from bench.results.records import Device
from tests.devices.fake_gpu import FakeGpu, GiB
from tests.devices.fake_nvml import FakeDriver

MIB = 2**20
UUIDS = ("aaaaaaaa-1111", "bbbbbbbb-2222")


def test_fp32_is_ieee_here_and_the_probe_sees_less(monkeypatch, cpu):
    assert judge.fp32(arithmetic.matmul_error(cpu, "fp32", print)).passed is True
    exact = torch.Tensor.__matmul__
    rough = lambda a, b: exact(a.bfloat16().to(a.dtype), b) if a.dtype == torch.float32 else exact(a, b)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    assert judge.fp32(arithmetic.matmul_error(cpu, "fp32", print)).passed is False


def test_autocast_reaches_the_small_model(cpu):
    plain, mixed = (arithmetic.compute_dtypes(cpu, name, print) for name in ("fp32", "amp-bf16"))
    assert judge.reaches_model("bfloat16", plain, mixed).passed is True
    assert judge.reaches_model("bfloat16", plain, plain).passed is False


def test_what_a_step_holds_is_in_its_peak(cpu):
    held = 64 * MIB
    small, large = (memory.peak(cpu, size, print).headline_bytes for size in (0, held))
    if small is None:
        pytest.skip("the kernel does not reset a process's peak")
    assert judge.raised("resident", held, small, large, tolerance=0.1, why="").passed is True


def test_memory_is_taken_only_where_there_is_twice_as_much(monkeypatch, cpu):
    assert memory.take(cpu, MIB, print) is True
    monkeypatch.setattr(memory.psutil, "virtual_memory", lambda: type("Memory", (), {"available": 2 * MIB - 1}))
    assert memory.take(cpu, MIB, print) is False


def test_a_few_simulated_arms_are_estimated_as_they_are():
    bias, coverage = estimator.bias_and_coverage(12)
    assert abs(bias) < 0.005
    assert coverage >= 0.75


def test_an_estimator_that_is_off_is_seen(monkeypatch):
    honest = estimator.estimate
    monkeypatch.setattr(estimator, "estimate", lambda seed, ratio, **kind: honest(seed, 1.01 * ratio, **kind))
    assert judge.estimator(*estimator.bias_and_coverage(6), 6).passed is False


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs that CUDA counts the other way round than NVML."""
    sizes = (24 * GiB, 80 * GiB)
    FakeDriver(
        FakeGpu(f"GPU-{uuid}", name=f"NVIDIA {uuid[0]}", memory_total=size)
        for uuid, size in zip(UUIDS, sizes, strict=True)
    ).install(monkeypatch)
    properties = {
        index: type("Properties", (), {"uuid": uuid, "name": f"NVIDIA {uuid[0]}", "total_memory": size})
        for index, (uuid, size) in enumerate(zip(UUIDS[::-1], sizes[::-1], strict=True))
    }
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda index: properties[index])
    return properties


def cuda(index):
    return Device(placement=str(index), kind="cuda", name="NVIDIA", architecture="Hopper")


def test_a_gpu_is_found_by_its_uuid_whatever_the_order(two_gpus):
    for index in (0, 1):
        found = gpu.identify(cuda(index), print)
        assert found.uuid == f"GPU-{UUIDS[1 - index]}"
        assert judge.identity(found, "").passed is True


def test_a_uuid_that_leads_to_another_gpu_or_to_two_is_seen(two_gpus):
    two_gpus[0].uuid = UUIDS[0]
    found = gpu.identify(cuda(0), print)
    assert found.back == (0, 1)
    assert judge.identity(found, "").passed is False


def test_a_gpu_that_nvml_does_not_know_cannot_be_checked(two_gpus):
    two_gpus[0].uuid = "cccccccc"
    assert gpu.identify(cuda(0), print) is None


def test_energy_is_told_by_the_step_of_each_window(two_gpus, monkeypatch):
    asked = []

    def measure(load, meter, *, burst, seconds):
        asked.append((seconds, burst))
        return Window(source="counter", energy_j=300 * seconds, seconds=seconds, steps=100 * seconds)

    runner = SimulatedRunner("fp32", SimulatedMachine(), 1e6)
    monkeypatch.setattr(gpu, "training_runner", lambda device: runner)
    monkeypatch.setattr(gpu, "warm_up", lambda runner, cap_s: WarmUp(steady=True, steps=12, step_ns=5e6))
    monkeypatch.setattr(gpu, "measure", measure)
    known = replace(cuda(0), uuid=UUIDS[1])
    assert gpu.energy_windows(known, print) == (3.0, 3.0)
    assert asked == [(5.0, 4), (10.0, 4)]
    monkeypatch.setattr(gpu, "measure", lambda *load, **more: None)
    assert gpu.energy_windows(known, print) is None


def test_one_per_cent_of_a_step_is_spun_in_cycles_of_the_gpus_own_clock(monkeypatch):
    machine, spun = SimulatedMachine(), []

    def spin(cycles):
        spun.append(cycles)
        machine.now_ns += round(cycles / 1.5)  # at 1.5 GHz

    monkeypatch.setattr(arms, "spin", spin)
    monkeypatch.setattr(arms, "synchronize", lambda device: None)
    monkeypatch.setattr(arms.time, "perf_counter_ns", machine.clock)
    arms.pause(torch.device("cuda", 0), 20_000)()
    assert spun[-1] == pytest.approx(30_000)
