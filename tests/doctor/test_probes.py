"""The self-tests' measurements: on a simulated clock, on this CPU, and on a fake NVIDIA driver."""

import math
from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.devices.backend import Cuda
from bench.doctor import checks, probes
from bench.doctor.probes import FINE, KNOWN, known_step, lengthened, timed
from bench.measure.energy import Window
from bench.measure.warmup import WarmUp
from bench.results.records import Device
from bench.spec.trial import Protocol
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB
from tests.doctor.scripted import AGAINST_ITSELF, measured
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, gaussian

CPU = Device(placement="cpu", kind="cpu", name="CPU", architecture="x86-64")
MIB = 2**20
UUIDS = ("aaaaaaaa-1111", "bbbbbbbb-2222")


def advancing(machine, time_ns):
    def wait():
        machine.now_ns += round(time_ns)

    return wait


@pytest.mark.parametrize(("distortion", "passed"), [(1.0, True), (1.02, False)])
def test_a_known_ratio_is_measured_and_an_inflated_arm_is_not_taken_for_it(distortion, passed):
    machine = SimulatedMachine(look_ns=100)
    sizes = {"longer": 3 * MS * distortion, "shorter": 2 * MS}
    known = [known_step(name, torch.device("cpu"), advancing(machine, size)) for name, size in sizes.items()]
    (speedup,) = timed(known, KNOWN, clock=machine.clock)
    rows = measured("clock and a known ratio", CPU, known_ratio=(1.5, speedup))
    assert rows["known ratio 1.50"].passed is passed


@pytest.mark.parametrize(("slower", "added", "passed"), [(1.0, 0.01, True), (1.03, 0.0, False)])
def test_one_per_cent_is_told_from_nothing_and_an_arm_that_is_slower_than_itself_fails(
    monkeypatch, slower, added, passed
):
    centers = []
    for process in range(3):
        machine = SimulatedMachine()
        base, again, longer = (
            SimulatedRunner(name, machine, 3 * MS * factor, noise=gaussian(process, 0.005))
            for name, factor in (("A", 1.0), ("A again", slower), ("A + 1 %", 1.0))
        )
        longer = lengthened("A + 1 %", longer, advancing(machine, added * 3 * MS))
        logs = timed([base, again, longer], FINE, seed=process, clock=machine.clock)
        centers.append([log.center for log in logs])
    monkeypatch.setattr(checks, "PROCESSES", len(centers))
    rows = measured(AGAINST_ITSELF, CPU, against_itself=dict(enumerate(centers)))
    assert rows["A/A"].passed is rows["A/A + 1 %"].passed is passed


def test_the_real_arms_have_ratios_and_an_empty_block_takes_time(monkeypatch, cpu):
    monkeypatch.setitem(probes.SIZES, "cpu", (8, 4))
    monkeypatch.setattr(probes, "FINE", Protocol(time_budget_s=0.1))
    assert all(map(math.isfinite, probes.against_itself(cpu, 0, print)))
    assert probes.empty_block(cpu, print) > 0


def test_a_nap_waits_for_what_it_was_asked_by_the_clock_that_times_it(monkeypatch):
    now = {"ns": 0}
    asleep = []

    def look():
        now["ns"] += 1000
        return now["ns"]

    def sleep(seconds):
        asleep.append(seconds)
        now["ns"] += int(seconds * 1e9) + 300_000  # late

    monkeypatch.setattr(probes.time, "perf_counter_ns", look)
    monkeypatch.setattr(probes.time, "sleep", sleep)
    probes.busy_wait(3 * MS, probes.SLEPT)()
    assert 3 * MS <= now["ns"] <= 3 * MS + 3000
    assert 0 < asleep[0] < 0.003


def test_a_lengthened_arm_is_the_other_one_with_a_wait_after_each_step():
    machine = SimulatedMachine()
    inner = SimulatedRunner("fp32", machine, MS, asynchronous=True, launch_ns=MS)
    longer = lengthened("longer", inner, advancing(machine, 10))
    longer.activate()
    longer.run(2)
    longer.synchronize()
    assert longer.asynchronous
    assert machine.active is inner
    assert machine.now_ns == 3 * MS + 20
    assert longer.fingerprint() == inner.fingerprint()
    assert longer.taken_steps() == 2


def test_fp32_is_ieee_here_and_the_probe_sees_less(monkeypatch, cpu):
    def passes():
        error = probes.matmul_error(cpu, "fp32", print)
        return measured("FP32 and TF32", cpu, matmul_error=error)["FP32 is FP32"].passed

    assert passes() is True
    exact = torch.Tensor.__matmul__
    rough = lambda a, b: exact(a.bfloat16().to(a.dtype), b) if a.dtype == torch.float32 else exact(a, b)  # noqa: E731
    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    assert passes() is False


def test_autocast_reaches_the_small_model(cpu):
    plain, mixed = (probes.compute_dtypes(cpu, name, print) for name in ("fp32", "amp-bf16"))
    for types, passed in ((mixed, True), (plain, False)):
        rows = measured("mixed precision", CPU, compute_dtypes={"fp32": plain, "amp-bf16": types})
        assert rows["mixed precision reaches the model"].passed is passed


def test_what_a_step_holds_is_in_its_peak(cpu):
    held = 64 * MIB
    small, large = (probes.peak(cpu, size, print).headline_bytes for size in (0, held))
    if small is None:
        pytest.skip("the kernel does not reset a process's peak")
    assert large - small == pytest.approx(held, rel=0.1)


@pytest.fixture
def two_gpus(monkeypatch):
    """Two GPUs that CUDA counts the other way round than NVML."""
    sizes = (24 * GiB, 80 * GiB)
    gpus = [(uuid, f"NVIDIA {uuid[0]}", size) for uuid, size in zip(UUIDS, sizes, strict=True)]
    FakeDriver(FakeGpu(f"GPU-{uuid}", name=name, memory_total=size) for uuid, name, size in gpus).install(monkeypatch)
    properties = [
        SimpleNamespace(uuid=uuid, name=name, total_memory=size, major=9, minor=0, multi_processor_count=1)
        for uuid, name, size in gpus[::-1]
    ]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda gpu: properties[getattr(gpu, "index", gpu)])
    return properties


def cuda(index):
    return Device(placement=str(index), kind="cuda", name="NVIDIA", architecture="Hopper")


@pytest.mark.parametrize(
    ("changes", "same"),
    [
        ({}, True),
        ({"uuid": UUIDS[0]}, False),  # which leads back to both
        ({"name": "NVIDIA Y"}, False),
        ({"total_memory": 79 * GiB}, True),
        ({"total_memory": 40 * GiB}, False),
    ],
)
def test_a_gpu_is_found_by_its_uuid_whatever_the_order_unless_that_leads_to_another_or_to_two(two_gpus, changes, same):
    vars(two_gpus[0]).update(changes)
    text, alike = probes.identify(cuda(0), print)
    assert f"NVML GPU-{two_gpus[0].uuid}: " in text
    assert alike is same
    two_gpus[0].uuid = "cccccccc"
    assert probes.identify(cuda(0), print) is None


def test_energy_is_by_the_step_of_each_window(two_gpus, monkeypatch):
    asked, sampled = [], 300.0

    def measure(load, meter, *, burst, seconds):
        asked.append((seconds, burst))
        return Window(source="counter", energy_j=300 * seconds, seconds=seconds, steps=100 * seconds, sampled_w=sampled)

    runner = SimulatedRunner("fp32", SimulatedMachine(), 1e6)
    monkeypatch.setattr(probes, "training_runner", lambda device: runner)
    monkeypatch.setattr(probes, "warm_up", lambda runner, cap_s: WarmUp(steady=True, steps=12, step_ns=5e6))
    monkeypatch.setattr(probes, "measure", measure)
    known = replace(cuda(0), uuid=UUIDS[1])
    assert probes.energy_windows(known, print) == (3.0, 3.0, "")
    assert asked == [(5.0, 4), (10.0, 4)]
    sampled = 200.0
    assert "its power read 200 W" in probes.energy_windows(known, print)[2]
    monkeypatch.setattr(probes, "measure", lambda *load, **more: None)
    assert probes.energy_windows(known, print) is None


def test_one_per_cent_of_a_step_is_spun_in_cycles_of_the_gpus_own_clock(monkeypatch):
    machine, spun = SimulatedMachine(), []

    def spin(cycles):
        spun.append(cycles)
        machine.now_ns += round(cycles / 1.5)  # at 1.5 GHz

    monkeypatch.setattr(Cuda, "spin", lambda self, cycles: spin(cycles))
    monkeypatch.setattr(Cuda, "synchronize", lambda self: None)
    monkeypatch.setattr(probes.time, "perf_counter_ns", machine.clock)
    probes.pause(torch.device("cuda", 0), 20_000)()
    assert spun[-1] == pytest.approx(30_000)
