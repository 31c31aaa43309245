"""A step's products alone: which they are, on which operands, and that they run on operands of their kind."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.devices.base import Backend
from bench.measure import alone
from bench.measure.alone import calls_of, times

CPU = torch.device("cpu")


@pytest.fixture(scope="module", autouse=True)
def few_copies():
    """Make no more copies of operands than a small cache would hold."""
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(Backend, "cold_bytes", 2**12)
        yield


@pytest.fixture(scope="module")
def calls():
    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.conv, self.norm = nn.Conv2d(4, 6, 3), nn.BatchNorm2d(6)
            self.out = nn.Linear(6, 5)

        def forward(self, images):
            return self.out(self.norm(self.conv(images)).relu().mean(dim=(2, 3)))

    model = Block()

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(torch.ones(3, 4, 8, 8))
        outputs.float().sum().backward()

    return calls_of(step)


def find(calls, name):
    return [call for call in calls if call.name == name]


def test_calls_are_below_autocast_with_module_flops_and_types(calls):
    (forward,) = find(calls, "convolution")
    assert (forward.module, forward.dtype, forward.count) == ("conv", torch.bfloat16, 1)
    assert [operand.shape for operand in forward.operands] == [(3, 4, 8, 8), (6, 4, 3, 3), (6,)]
    assert forward.flops == 2 * 3 * 6 * 6 * 6 * 4 * 3 * 3
    (backward,) = find(calls, "convolution_backward")
    assert backward.module == "conv"
    assert not find(calls, "_to_copy")


def test_every_call_runs_alone_in_either_type(calls):
    for call in calls:
        assert None not in times([call, call.in_type(torch.bfloat16)], CPU, 0.0), call.title


def test_whole_numbers_are_drawn_from_those_that_the_step_had():
    numbers = torch.arange(0, 500, 5).view(10, 10)
    (call,) = calls_of(lambda: numbers @ numbers)
    first = call.operands[0]
    tensor = first.make(CPU, torch.Generator().manual_seed(0))
    assert first.largest == 495
    assert 0 <= tensor.min() < tensor.max() <= 495
    assert times([call], CPU, 0.0) != [None]


def test_a_sparse_operand_is_described_and_its_call_does_not_run_alone(capsys):
    gradient = torch.eye(3).to_sparse()
    (call,) = [call for call in calls_of(lambda: gradient @ torch.ones(3, 2)) if "mm" in call.name]
    assert times([call], CPU, 0.0) == [None]
    assert "sparse_coo" in capsys.readouterr().out


class SlowHost:
    """A GPU whose host takes longer to queue an operator than the GPU to compute it; a clock of both, in seconds."""

    def __init__(self, queueing_s):
        self.queueing_s = queueing_s
        self.host_s = self.device_s = 0.0

    def queue(self, queueing_s, computing_s):
        self.host_s += queueing_s
        self.device_s = max(self.device_s, self.host_s) + computing_s

    def evict(self):
        self.queue(1e-6, 1e-4)

    def run(self):
        for _ in range(5):
            self.queue(self.queueing_s, 1e-5)

    def synchronize(self):
        self.host_s = max(self.host_s, self.device_s)

    def record_event(self, *, timing):
        at_s = max(self.host_s, self.device_s)
        return SimpleNamespace(at_s=at_s, elapsed_time=lambda end: 1e3 * (end.at_s - at_s))


@pytest.mark.parametrize("queueing_s", [1e-6, 1e-4, 2e-3])
def test_a_gpus_time_has_no_time_of_the_host_in_it(monkeypatch, queueing_s):
    gpu = SlowHost(queueing_s)
    monkeypatch.setattr(alone.time, "perf_counter", lambda: gpu.host_s)
    assert alone._gpu_s(gpu.run, gpu) == pytest.approx(5e-5)


def test_padding_rounds_odd_sizes_up_and_keeps_the_order_of_the_strides():
    (call,) = calls_of(lambda: torch.mm(torch.ones(4095, 130), torch.ones(7, 130).t()))
    first, second = call.padded(64).operands
    assert (first.shape, first.stride) == ((4096, 192), (192, 1))
    assert (second.shape, second.stride) == ((192, 7), (1, 192))
    (even,) = calls_of(lambda: torch.mm(torch.ones(128, 64), torch.ones(64, 64)))
    assert even.padded(64) == even


def test_channels_last_turns_images_and_nothing_else(calls):
    (forward,) = find(calls, "convolution")
    images, weights, bias = forward.channels_last().operands
    assert images.stride == torch.empty(3, 4, 8, 8).to(memory_format=torch.channels_last).stride()
    assert weights.stride == torch.empty(6, 4, 3, 3).to(memory_format=torch.channels_last).stride()
    assert bias.stride == (1,)
