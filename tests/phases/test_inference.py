"""The inference phase: paired with fp32, and its answers compared with fp32's."""

import math

import pytest
import torch
from torch import nn

from bench.phases.inference import measure as inference
from bench.spec.suite import Data
from tests.phases.conftest import result_of, run_phase


@pytest.fixture
def measure(tiny_trial, cpu):
    def run(name):
        sent = run_phase(tiny_trial, cpu, "inference", name)
        return result_of(sent)

    return run


@pytest.fixture
def answers(use_suite):
    """A suite whose model is one linear layer of two outputs with the weights 1 and this one; it
    must be in eval mode.
    """

    class Layer(nn.Linear):
        def forward(self, inputs):
            assert not self.training
            assert torch.is_inference_mode_enabled()
            return super().forward(inputs.abs())

    def use(second):
        def model(data):
            layer = Layer(1, 2, bias=False)
            layer.weight.data = torch.tensor([[1.0], [second]])
            return layer

        use_suite(model, data=Data(input_shape=(1,), classes=2))

    return use


def test_a_precision_is_paired_with_fp32_and_fp32_is_alone(measure):
    plain = measure("fp32").row
    assert plain.inference_speedup is None
    assert plain.output_error == 0.0
    mixed = measure("amp-bf16").row
    assert mixed.inference_speedup_low <= mixed.inference_speedup <= mixed.inference_speedup_high
    assert 0 < mixed.output_error < 0.05
    assert 0 < mixed.latency_p50_ms <= mixed.latency_p95_ms


@pytest.mark.parametrize(
    ("second", "agreement_pct"),
    [
        (1.001, 0.0),  # equal to 1 in bfloat16, where the first is the answer
        (1.5, 100.0),
    ],
)
def test_outputs_that_16_bits_cannot_tell_apart_are_other_answers(
    measure, answers, second, agreement_pct
):
    answers(second)
    row = measure("amp-bf16").row
    assert row.top1_agreement_pct == agreement_pct


def test_outputs_that_overflow_are_not_finite(measure, answers):
    answers(3e6)
    result = measure("amp-fp16")
    assert result.status == "nonfinite"
    assert result.detail == "an output is infinite or NaN"
    assert not math.isfinite(result.row.output_error)


class Slowing:
    """A runner whose first passes are slow; it keeps the time."""

    now_ns = passes = 0

    def activate(self):
        """Nothing differs."""

    def synchronize(self):
        """Nothing is queued."""

    def forward(self, inputs):
        assert inputs.shape == (1, 3)
        self.passes += 1
        self.now_ns += 500_000 if self.passes > inference.LATENCY_WARM_UP else 2_000_000


def test_latencies_are_those_of_single_samples_after_a_warm_up():
    runner = Slowing()
    times = inference.latencies_ms(runner, [torch.zeros(4, 3)], lambda: runner.now_ns)
    assert times == [0.5] * inference.LATENCY_SAMPLES
