"""Every phase sees which types an arm's products ran in, and says where they are not its precision's."""

import pytest
import torch
from torch import nn

from bench.phases import speed
from bench.results.records import TrialResult
from bench.spec.phases import PHASES
from tests.phases.conftest import of_kind, run_phase

SEEN = [name for name in PHASES if name not in ("fit", "floor", "energy", "layers")]
"""The phases that observe a step; energy needs a GPU's meter."""


class Narrow(nn.Linear):
    """Computes in bfloat16 by itself."""

    def forward(self, inputs):
        return nn.functional.linear(inputs.bfloat16(), self.weight.bfloat16()).float()


def model(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), Narrow(8, data.classes))


@pytest.mark.parametrize(
    "phase", [pytest.param(name, marks=[pytest.mark.slow] * (name in ("explain", "ladder"))) for name in SEEN]
)
def test_an_fp32_that_is_none_is_told_with_its_module(tiny_trial, cpu, use_suite, monkeypatch, phase):
    monkeypatch.setattr(speed, "CEILING_S", 0.01)
    use_suite(model)
    (result,) = of_kind(TrialResult, run_phase(tiny_trial, cpu, phase, "fp32"))
    assert result.status == "ok"
    assert result.operations.other_modules == "2"
    assert "% of its products in bfloat16 (2)" in result.detail


def test_products_of_an_optimizer_are_not_the_models(tiny_trial, cpu, use_suite, monkeypatch):
    monkeypatch.setattr(speed, "CEILING_S", 0.01)

    class Orthogonal(torch.optim.SGD):
        """Multiplies in bfloat16, as Muon does."""

        def step(self, closure=None):
            square = torch.ones(64, 64, dtype=torch.bfloat16)
            square @ square
            return super().step(closure)

    use_suite(
        lambda data: nn.Sequential(nn.Flatten(), nn.Linear(192, data.classes)),
        optimizer=lambda parameters: Orthogonal(parameters, lr=0.1),
    )
    (result,) = of_kind(TrialResult, run_phase(tiny_trial, cpu, "speed", "fp32"))
    assert (result.operations.compute_dtypes, result.detail) == ("float32:100%", "")


def test_modules_are_unknown_of_a_model_that_cannot_be_followed(tiny_trial, cpu, use_suite, monkeypatch):
    def fail(_step):
        raise RuntimeError("autograd.grad is not followed")

    monkeypatch.setattr("bench.phases.arms.calls_of", fail)
    use_suite(model)
    (result,) = of_kind(TrialResult, run_phase(tiny_trial, cpu, "memory", "fp32"))
    assert result.operations.other_modules == ""
    assert result.detail.endswith("of its products in bfloat16")
