"""Every phase sees which types an arm's products ran in, and says where they are not its
precision's.
"""

import pytest
import torch
from torch import nn

from bench.results.records import TrialResult
from tests.phases.conftest import each_phase, of_kind, run_phase


class Narrow(nn.Linear):
    """Computes in bfloat16 by itself."""

    def forward(self, inputs):
        return nn.functional.linear(inputs.bfloat16(), self.weight.bfloat16()).float()


def model(data):
    return nn.Sequential(nn.Flatten(), nn.Linear(192, 8), Narrow(8, data.classes))


@pytest.mark.parametrize("phase", each_phase("fit", "floor", "energy", "layers"))
def test_an_fp32_that_is_none_is_told_with_its_module(tiny_trial, cpu, use_suite, phase):
    use_suite(model)
    (result,) = of_kind(TrialResult, run_phase(tiny_trial, cpu, phase, "fp32"))
    assert result.status == "ok"
    assert result.operations.other_modules == "2"
    assert "% of its products in bfloat16 (2)" in result.detail


def test_products_of_an_optimizer_are_not_the_models(tiny_trial, cpu, use_suite):

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


def test_modules_are_unknown_of_a_model_that_cannot_be_followed(
    tiny_trial, cpu, use_suite, monkeypatch
):
    def fail(_step):
        raise RuntimeError("autograd.grad is not followed")

    monkeypatch.setattr("bench.training.arms.flops_by_module", fail)
    use_suite(model)
    (result,) = of_kind(TrialResult, run_phase(tiny_trial, cpu, "memory", "fp32"))
    assert result.operations.other_modules == ""
    assert result.detail.endswith("of its products in bfloat16")
