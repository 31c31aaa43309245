"""Peaks of memory, on this machine's CPU and on a faked GPU and driver; what tensors hold, reckoned
by hand.
"""

import gc
import os
from functools import partial

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam

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
FLOAT = 4
HALF = 2
"""Bytes of a number."""
OWN = os.getpid()
NOWHERE = 2**22 + 1
"""Above the largest process id that Linux gives."""
UNLISTED = {"nvmlDeviceGetComputeRunningProcesses_v2": fake.NO_PERMISSION}


def peaks(step, device=CPU, **more):
    columns = memory.measure_peaks(step, device, **more)
    return MemoryPeak(**columns)


def test_a_cpus_steady_peak_is_that_of_the_steps_after_the_first_without_what_that_has_freed():
    kept = []

    def first():
        # 16 KiB each: freed, they stay with the C library.
        small = [torch.ones(4096) for _ in range(12_000)]
        kept.append(small[-1])  # which cannot give back what lies below this one by itself

    def large():
        torch.ones(80 * MIB // FLOAT)

    def empty():
        pass

    steps = [first, large, empty, empty]

    def step():
        function = steps.pop(0)
        function()

    peak = peaks(step, resident_before=memory.resident_bytes())
    assert 180 * MIB < peak.first_peak_bytes < 230 * MIB
    assert 75 * MIB < peak.peak_resident_bytes < 110 * MIB


def test_where_the_kernel_does_not_reset_its_mark_a_cpus_peaks_are_unknown(monkeypatch):
    monkeypatch.setattr(Cpu, "reset_peak_memory", lambda self: False)
    peak = peaks(lambda: None, resident_before=memory.resident_bytes())
    assert peak.first_peak_bytes is None
    assert peak.peak_resident_bytes is None


def test_a_small_models_peak_is_the_models_and_not_the_libraries(tiny_trial, cpu):
    messages = []
    ending = LocalLauncher().run(tiny_trial, cpu, messages.append)
    assert ending.kind == "done", ending.text
    (result,) = [message for message in messages if isinstance(message, TrialResult)]
    peak = result.row
    assert peak.parameter_bytes == peak.model_bytes
    assert peak.tracked_peak_bytes < MIB
    # Pages of code that a process's first step loads would be 13 MiB and more.
    assert peak.peak_resident_bytes < 8 * MIB


def test_the_first_step_and_the_steady_ones_are_told_apart_on_a_gpu(monkeypatch):
    class Gpu:
        """Its peaks count the steps since they were reset."""

        is_gpu = True
        steps = 0

        def step(self):
            self.steps += 1

        def reset_peak_memory(self):
            self.steps = 0
            return True

        def peak_memory(self):
            return PeakMemory(allocated=self.steps, reserved=10 * self.steps)

    gpu = Gpu()
    monkeypatch.setattr(memory, "backend_of", lambda _device: gpu)
    peak = peaks(gpu.step, torch.device("cuda", 0), steps=3)
    assert peak.first_peak_bytes == 1
    assert peak.peak_allocated_bytes == 3
    assert peak.peak_reserved_bytes == 30
    assert peak.peak_resident_bytes is None


@pytest.mark.parametrize(
    ("processes", "state", "held"),
    [
        ({os.getppid(): 2 * GiB, OWN: GiB}, {}, GiB),
        ({OWN: None}, {}, 3 * GiB),
        ({OWN: GiB, NOWHERE: GiB}, {}, 3 * GiB),
        ({OWN: GiB}, {"errors": UNLISTED}, 3 * GiB),
        ({}, {"memory_used": GiB}, None),
        ({OWN: GiB}, {"lost": True}, None),
    ],
)
def test_what_this_process_holds_is_the_drivers_figure_or_else_what_is_used_above_before(
    monkeypatch, processes, state, held
):
    usual = {"memory_used": 5 * GiB, "processes": processes}
    gpu = FakeGpu("GPU-a", **usual | state)
    FakeDriver([gpu]).install(monkeypatch)
    _used, driver_held = memory.driver_memory_bytes("GPU-a", before=2 * GiB)
    assert driver_held == held


@pytest.mark.parametrize("uuid", ["GPU-a", None])
def test_without_a_driver_it_is_unknown(monkeypatch, uuid):
    fake.without_driver(monkeypatch)
    assert memory.driver_memory_bytes(uuid, GiB) == (None, None)


momentum = partial(SGD, lr=0.01, momentum=0.9)


def counted(model, inputs, *, optimizer=momentum, autocast=False):
    """Count the bytes of a training step; again it is the same, so counting leaves nothing."""
    stepping = optimizer(model.parameters())

    def step():
        stepping.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
            outputs = model(inputs)
        loss = outputs.float().square().mean()
        loss.backward()
        stepping.step()

    count = partial(
        tensor_bytes,
        step,
        CPU,
        modules=[model],
        optimizers=[stepping],
        held=[inputs],
    )
    step()  # the optimizer's state
    kinds = count()
    gc.collect()
    assert count() == kinds
    peak = MemoryPeak(**kinds)
    del kinds["tracked_peak_bytes"]
    assert peak.tracked_peak_bytes == sum(kinds.values())
    assert min(kinds.values()) >= 0
    return peak


@pytest.mark.parametrize(
    ("optimizer", "states", "scalars"),
    [
        (partial(SGD, lr=0.01), 0, 0),
        (momentum, 1, 0),
        (Adam, 2, 1),
    ],
    ids=["sgd", "momentum", "adam"],
)
def test_parameters_gradients_and_optimizer_state_are_exact(optimizer, states, scalars):
    # The second layer is so small that the first one's gradient makes the peak.
    model = nn.Sequential(
        nn.Linear(256, 512, bias=False),
        nn.ReLU(),
        nn.Linear(512, 8, bias=False),
    )
    inputs = torch.randn(2, 256)
    peak = counted(model, inputs, optimizer=optimizer)
    weights = FLOAT * 512 * (256 + 8)
    assert peak.parameter_bytes == weights
    assert peak.gradient_bytes == weights
    # Adam counts its steps in a scalar for each of the two parameters.
    assert peak.optimizer_bytes == states * weights + scalars * 2 * FLOAT


def test_buffers_count_as_parameters_and_shared_weights_once():
    shared = nn.Linear(256, 256, bias=False)
    model = nn.Sequential(shared, nn.BatchNorm1d(256), shared)
    inputs = torch.randn(4, 256)
    peak = counted(model, inputs)
    weights = FLOAT * 256 * (256 + 2)
    buffers = FLOAT * 256 * 2 + 8  # running mean and variance, and a count in int64
    assert peak.parameter_bytes == weights + buffers
    assert peak.gradient_bytes == weights


def test_activations_are_what_forward_keeps_for_backward_and_smaller_under_autocast():
    # Nothing counts but what the layers put out. A sigmoid keeps what it returns, which is also all
    # that the next linear layer keeps.
    layers = []
    for _ in range(12):
        layers += [nn.Linear(64, 64), nn.Sigmoid()]
    model = nn.Sequential(*layers)
    inputs = torch.randn(2048, 64)
    full = counted(model, inputs)
    mixed = counted(model, inputs, autocast=True)
    output = 2048 * 64 * FLOAT
    assert 12 * output <= full.activation_bytes <= 13 * output + 64
    assert mixed.activation_bytes < 0.75 * full.activation_bytes
    assert mixed.tracked_peak_bytes < full.tracked_peak_bytes
    assert mixed.parameter_bytes == full.parameter_bytes
    assert mixed.optimizer_bytes == full.optimizer_bytes


def test_autocasts_copies_of_weights_are_activations():
    # The large layer is frozen, so that no gradient of it makes the peak later, when its copy is
    # gone.
    large = nn.Linear(512, 512).requires_grad_(False)
    model = nn.Sequential(
        nn.Linear(8, 512),
        large,
        nn.Linear(512, 8),
    )
    inputs = torch.randn(2, 8)
    full = counted(model, inputs)
    mixed = counted(model, inputs, autocast=True)
    assert full.activation_bytes < 20_000
    assert mixed.activation_bytes >= HALF * 512 * 512


def test_what_forward_makes_and_drops_is_temporary():
    class Peaked(nn.Linear):
        def forward(self, inputs):
            with torch.no_grad():
                shift = torch.zeros(1_000_000).sum()
            return super().forward(inputs) + shift

    model = Peaked(16, 8)
    inputs = torch.randn(2, 16)
    peak = counted(model, inputs)
    assert peak.temporary_bytes >= FLOAT * 1_000_000
    assert peak.activation_bytes < 1000


def test_a_step_that_cannot_be_watched_costs_only_the_kinds():
    def step():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert tensor_bytes(step, CPU, modules=[], optimizers=[]) == {}
