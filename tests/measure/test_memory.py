"""Peaks of memory: on this machine's CPU, and as a faked GPU and its driver would tell them."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest
import torch

from bench.devices.backend import PeakMemory
from bench.devices.cpu import Cpu
from bench.launch.local import LocalLauncher
from bench.measure import memory
from bench.phases import memory as phase
from bench.results.records import Device, TrialResult
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB

CPU, GPU = torch.device("cpu"), torch.device("cuda", 0)
MIB = 2**20
NOWHERE = 2**22 + 1
"""Above the largest process id that Linux gives."""


def peaks(step, device=CPU, *, resident_before=None, driver_before=None, uuid=None):
    return memory.measure_peaks(
        step, device, resident_before=resident_before, driver_before=driver_before, uuid=uuid, model_bytes=7
    )


def test_the_first_step_and_the_steady_ones_are_told_apart_on_a_cpu():
    sizes = iter([200, 80, 60, 40])
    found = peaks(lambda: torch.ones(next(sizes) * MIB // 4), resident_before=memory.resident_bytes())
    assert 195 * MIB < found.first_peak_bytes < 230 * MIB
    assert 75 * MIB < found.peak_resident_bytes < 110 * MIB
    assert found.model_bytes == 7


def test_where_the_kernel_does_not_reset_its_mark_a_cpus_peaks_are_unknown(monkeypatch):
    monkeypatch.setattr(Cpu, "reset_peak_memory", lambda self: False)
    found = peaks(lambda: None, resident_before=memory.resident_bytes())
    assert (found.first_peak_bytes, found.peak_resident_bytes, found.model_bytes) == (None, None, 7)


def test_a_rise_below_what_was_there_before_is_none_at_all(monkeypatch):
    told = iter((90 * MIB, 80 * MIB))
    monkeypatch.setattr(Cpu, "peak_memory", lambda self: PeakMemory(resident=next(told)))
    found = peaks(lambda: None, resident_before=85 * MIB)
    assert (found.first_peak_bytes, found.peak_resident_bytes) == (5 * MIB, 0)


def test_a_small_models_peak_is_the_models_and_not_the_libraries(tiny_trial, cpu):
    messages = []
    ending = LocalLauncher().run(tiny_trial, cpu, messages.append)
    assert ending.kind == "done", ending.text
    (found,) = [message.memory for message in messages if isinstance(message, TrialResult)]
    kinds = (found.parameter_bytes, found.gradient_bytes, found.optimizer_bytes, found.activation_bytes)
    assert sum(kinds) + found.temporary_bytes == found.tracked_peak_bytes
    assert found.parameter_bytes == found.model_bytes
    assert found.tracked_peak_bytes < MIB
    # Pages of code that a process's first step loads would be 13 MiB and more.
    assert found.peak_resident_bytes < 8 * MIB


class FakeCuda:
    """The calls of torch.cuda that a measurement makes, and a caching allocator's counters."""

    def __init__(self, monkeypatch):
        self.said, self.held, self.peak, self.retries = [], 0, 0, 5
        for name in ("synchronize", "empty_cache", "reset_peak_memory_stats", "memory_stats"):
            monkeypatch.setattr(torch.cuda, name, getattr(self, name))

    def synchronize(self, device):
        self.said.append("synchronize")

    def empty_cache(self):
        self.said.append("empty_cache")

    def reset_peak_memory_stats(self, device):
        self.said.append("reset")
        self.peak = self.held

    def memory_stats(self, device):
        shares = {"allocated": 1, "active": 2, "reserved": 3}
        counters = {f"{name}_bytes.all.peak": share * self.peak for name, share in shares.items()}
        return counters | {"num_alloc_retries": self.retries}

    def step(self, size, retries=0):
        self.said.append("step")
        self.peak, self.retries = max(self.peak, self.held + size), self.retries + retries


def test_the_first_step_and_the_steady_ones_are_told_apart_on_a_gpu(monkeypatch):
    cuda = FakeCuda(monkeypatch)
    cuda.held = 10
    steps = iter([(100, 2), (40, 0), (50, 1), (30, 0)])
    found = peaks(lambda: cuda.step(*next(steps)), GPU)
    assert found.first_peak_bytes == 110
    assert (found.peak_allocated_bytes, found.peak_active_bytes, found.peak_reserved_bytes) == (60, 120, 180)
    assert found.allocator_retries == 1  # neither the five of before nor the first step's two
    assert found.peak_resident_bytes is None
    first, steady = ["synchronize", "empty_cache", "reset", "step", "synchronize"], ["step"] * 3
    assert cuda.said == [*first, *first[:3], *steady, "synchronize"]


@pytest.fixture
def driver(monkeypatch):
    """Make a machine of one GPU with some processes on it; return what the driver says that this one holds."""

    def make(processes, *, before=2 * GiB, **more):
        FakeDriver([FakeGpu("GPU-a", memory_used=5 * GiB, processes=processes, **more)]).install(monkeypatch)
        return memory.driver_used_bytes("GPU-a", before)

    return make


def test_the_driver_tells_what_this_process_holds_whoever_else_came_meanwhile(driver):
    assert driver({os.getppid(): 2 * GiB, os.getpid(): GiB}) == GiB


@pytest.mark.parametrize(
    "processes",
    [{}, {os.getppid(): GiB}, {os.getpid(): None}, {os.getpid(): GiB, NOWHERE: GiB}],
    ids=["none listed", "this one not listed", "memory not told", "another's process ids"],
)
def test_where_it_does_not_tell_it_is_what_is_used_above_before(driver, processes):
    assert driver(processes) == 3 * GiB
    assert driver(processes, before=None) is None


def test_processes_that_may_not_be_listed_are_no_failure(driver):
    functions = ("nvmlDeviceGetComputeRunningProcesses_v3", "nvmlDeviceGetComputeRunningProcesses_v2")
    assert driver({os.getpid(): GiB}, errors=dict.fromkeys(functions, fake.NO_PERMISSION)) == 3 * GiB


def test_a_lost_gpu_or_no_driver_leaves_it_unknown(driver, monkeypatch, capsys):
    assert driver({os.getpid(): GiB}, lost=True) is None
    assert "lost" in capsys.readouterr().out
    fake.without_driver(monkeypatch)
    assert memory.driver_used_bytes("GPU-a", GiB) is None
    assert memory.driver_used_bytes(None, None) is None


def test_what_others_gave_back_meanwhile_is_no_memory_of_ours(driver):
    assert driver({}, before=6 * GiB) is None


def test_the_driver_is_asked_before_anything_makes_a_context(monkeypatch, tiny_trial, cpu):
    order = []
    for module, name in ((phase.memory, "driver_memory_bytes"), (phase, "open_context"), (phase, "enter")):
        monkeypatch.setattr(module, name, noting(order, name, getattr(module, name)))
    device: Device = replace(cpu, uuid="GPU-a")
    phase.run(tiny_trial, device, lambda _message: None)
    assert order == ["driver_memory_bytes", "open_context", "enter"]


def noting(order, name, function):
    def noted(*arguments):
        order.append(name)
        return function(*arguments)

    return noted


def test_without_the_kinds_the_peaks_are_still_sent(monkeypatch, tiny_trial, cpu):
    monkeypatch.setattr(phase, "tensor_bytes", lambda *_, **__: None)
    messages = []
    phase.run(tiny_trial, cpu, messages.append)
    (result,) = [message for message in messages if isinstance(message, TrialResult)]
    assert result.status == "ok"
    assert result.memory.tracked_peak_bytes is None
    assert result.memory.peak_resident_bytes is not None


def test_what_the_first_step_has_freed_is_not_in_the_peak_of_those_after_it():
    kept, steps = [], iter(range(4))

    def step():
        if next(steps) == 0:
            small = [torch.ones(4096) for _ in range(4000)]  # 16 KiB each: freed, they stay with the C library
            kept.append(small[-1])  # which cannot give back what lies below this one by itself

    found = peaks(step, resident_before=memory.resident_bytes())
    assert found.first_peak_bytes > 55 * MIB
    assert found.peak_resident_bytes < 10 * MIB
