"""Peaks of memory, on this machine's CPU and on a faked GPU and driver; what tensors hold, reckoned
by hand.
"""

from __future__ import annotations

import gc
import os

import pytest
import torch
from torch import nn, optim

from bench.devices.base import PeakMemory
from bench.devices.cpu import Cpu
from bench.launch.local import LocalLauncher
from bench.measure import memory
from bench.measure.memory import tensor_bytes
from bench.phases.memory import MemoryPeak
from bench.results.records import TrialResult
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB

CPU = torch.device("cpu")
MIB = 2**20
FLOAT, HALF = 4, 2
"""Bytes of a number."""
NOWHERE = 2**22 + 1
"""Above the largest process id that Linux gives."""
PROCESSES = ("nvmlDeviceGetComputeRunningProcesses_v2",)


def peaks(step, device=CPU, **more):
    return MemoryPeak(**memory.measure_peaks(step, device, **more))


def test_a_cpus_steady_peak_is_that_of_the_steps_after_the_first_without_what_that_has_freed():
    sizes = iter([80, 60, 40])
    kept = []

    def step():
        if kept:
            torch.ones(next(sizes) * MIB // FLOAT)
        else:
            # 16 KiB each: freed, they stay with the C library.
            small = [torch.ones(4096) for _ in range(12_000)]
            kept.append(small[-1])  # which cannot give back what lies below this one by itself

    peak = peaks(step, resident_before=memory.resident_bytes())
    assert 180 * MIB < peak.first_peak_bytes < 230 * MIB
    assert 75 * MIB < peak.peak_resident_bytes < 110 * MIB


def test_where_the_kernel_does_not_reset_its_mark_a_cpus_peaks_are_unknown(monkeypatch):
    monkeypatch.setattr(Cpu, "reset_peak_memory", lambda self: False)
    peak = peaks(lambda: None, resident_before=memory.resident_bytes())
    assert (peak.first_peak_bytes, peak.peak_resident_bytes) == (None, None)


def test_a_small_models_peak_is_the_models_and_not_the_libraries(tiny_trial, cpu):
    messages = []
    ending = LocalLauncher().run(tiny_trial, cpu, messages.append)
    assert ending.kind == "done", ending.text
    (peak,) = [message.row for message in messages if isinstance(message, TrialResult)]
    kinds = (peak.parameter_bytes, peak.gradient_bytes, peak.optimizer_bytes, peak.activation_bytes)
    assert sum(kinds) + peak.temporary_bytes == peak.tracked_peak_bytes
    assert peak.parameter_bytes == peak.model_bytes
    assert peak.tracked_peak_bytes < MIB
    # Pages of code that a process's first step loads would be 13 MiB and more.
    assert peak.peak_resident_bytes < 8 * MIB


def test_the_first_step_and_the_steady_ones_are_told_apart_on_a_gpu(monkeypatch):
    steps = []

    class Gpu:
        is_gpu = True

        def reset_peak_memory(self):
            return True

        def peak_memory(self):
            if len(steps) == 1:
                return PeakMemory(allocated=110, reserved=330)
            return PeakMemory(allocated=60, reserved=180)

    monkeypatch.setattr(memory, "backend_of", lambda _device: Gpu())
    peak = peaks(lambda: steps.append(1), torch.device("cuda", 0))
    assert (peak.first_peak_bytes, peak.peak_resident_bytes) == (110, None)
    assert (peak.peak_allocated_bytes, peak.peak_reserved_bytes) == (60, 180)


@pytest.fixture
def driver(monkeypatch):
    """Make a machine of one GPU with some processes on it; return what the driver says that this
    one holds.
    """

    def make(processes, *, before=2 * GiB, **more):
        gpu = FakeGpu("GPU-a", memory_used=5 * GiB, processes=processes, **more)
        FakeDriver([gpu]).install(monkeypatch)
        _used, held = memory.driver_memory_bytes("GPU-a", before)
        return held

    return make


@pytest.mark.parametrize(
    ("processes", "more", "held"),
    [
        ({os.getppid(): 2 * GiB, os.getpid(): GiB}, {}, GiB),
        ({os.getpid(): None}, {}, 3 * GiB),
        ({os.getpid(): GiB, NOWHERE: GiB}, {}, 3 * GiB),
        ({os.getpid(): GiB}, {"errors": dict.fromkeys(PROCESSES, fake.NO_PERMISSION)}, 3 * GiB),
        ({}, {"before": 6 * GiB}, None),
        ({os.getpid(): GiB}, {"lost": True}, None),
    ],
)
def test_what_this_process_holds_is_the_drivers_figure_or_else_what_is_used_above_before(
    driver, processes, more, held
):
    assert driver(processes, **more) == held


def test_without_a_driver_it_is_unknown(monkeypatch):
    fake.without_driver(monkeypatch)
    assert memory.driver_memory_bytes("GPU-a", GiB) == (None, None)
    assert memory.driver_memory_bytes(None) == (None, None)


def sgd(weights):
    return optim.SGD(weights, lr=0.01, momentum=0.9)


def counted(model, inputs, *, optimizer=sgd, autocast=False) -> MemoryPeak:
    """Count the bytes of a training step; again it is the same, so counting leaves nothing."""
    stepping = optimizer([weight for weight in model.parameters() if weight.requires_grad])

    def step():
        stepping.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            loss = model(inputs).float().square().mean()
        loss.backward()
        stepping.step()

    step()  # the optimizer's state
    parts = {"modules": [model], "optimizers": [stepping], "held": [inputs]}
    kinds = tensor_bytes(step, CPU, **parts)
    gc.collect()
    assert tensor_bytes(step, CPU, **parts) == kinds
    peak = MemoryPeak(**kinds)
    assert kinds.pop("tracked_peak_bytes") == sum(kinds.values())
    assert min(kinds.values()) >= 0
    return peak


@pytest.mark.parametrize(
    ("optimizer", "states", "scalars"),
    [(lambda them: optim.SGD(them, lr=0.01), 0, 0), (sgd, 1, 0), (optim.Adam, 2, 1)],
    ids=["sgd", "momentum", "adam"],
)
def test_parameters_gradients_and_optimizer_state_are_exact(optimizer, states, scalars):
    # The second layer is so small that the first one's gradient makes the peak.
    first, second = nn.Linear(256, 512, bias=False), nn.Linear(512, 8, bias=False)
    model = nn.Sequential(first, nn.ReLU(), second)
    peak = counted(model, torch.randn(2, 256), optimizer=optimizer)
    weights = FLOAT * (256 * 512 + 512 * 8)
    assert peak.parameter_bytes == peak.gradient_bytes == weights
    # Adam counts its steps in a scalar for each of the two parameters.
    assert peak.optimizer_bytes == states * weights + scalars * 2 * FLOAT


def test_buffers_count_as_parameters_and_shared_weights_once():
    shared = nn.Linear(256, 256, bias=False)
    peak = counted(nn.Sequential(shared, nn.BatchNorm1d(256), shared), torch.randn(4, 256))
    weights = FLOAT * (256 * 256 + 2 * 256)
    buffers = FLOAT * 2 * 256 + 8  # running mean and variance, and a count in int64
    assert peak.parameter_bytes == weights + buffers
    assert peak.gradient_bytes == weights


def test_activations_are_what_forward_keeps_for_backward_and_smaller_under_autocast():
    # Nothing counts but what the layers put out. A sigmoid keeps what it returns, which is also all
    # that the next linear layer keeps.
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(12)]
    model, inputs = nn.Sequential(*layers), torch.randn(2048, 64)
    output = 2048 * 64 * FLOAT
    full, mixed = counted(model, inputs), counted(model, inputs, autocast=True)
    assert 12 * output <= full.activation_bytes <= 13 * output + 64
    assert mixed.activation_bytes < 0.75 * full.activation_bytes
    assert mixed.tracked_peak_bytes < full.tracked_peak_bytes
    assert mixed.parameter_bytes == full.parameter_bytes
    assert mixed.optimizer_bytes == full.optimizer_bytes


def test_autocasts_copies_of_weights_are_activations():
    # The large layer is frozen, so that no gradient of it makes the peak later, when its copy is
    # gone.
    large = nn.Linear(512, 512).requires_grad_(False)
    model = nn.Sequential(nn.Linear(8, 512), large, nn.Linear(512, 8))
    inputs = torch.randn(2, 8)
    assert counted(model, inputs).activation_bytes < 20_000
    assert counted(model, inputs, autocast=True).activation_bytes >= HALF * 512 * 512


def test_what_forward_makes_and_drops_is_temporary():
    class Peaked(nn.Linear):
        def forward(self, inputs):
            with torch.no_grad():
                shift = torch.zeros(1_000_000).sum()
            return super().forward(inputs) + shift

    peak = counted(Peaked(16, 8), torch.randn(2, 16))
    assert peak.temporary_bytes >= FLOAT * 1_000_000
    assert peak.activation_bytes < 1000


def test_a_step_that_cannot_be_watched_costs_only_the_kinds():
    model = nn.Linear(4, 4)
    optimizer = sgd(model.parameters())

    def step():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert tensor_bytes(step, CPU, modules=[model], optimizers=[optimizer]) == {}
