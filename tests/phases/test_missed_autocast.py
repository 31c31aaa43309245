"""A model that turns autocast off for itself, and a loss that is NaN, are said in every phase that cannot show them."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.cli.display import describe_results
from bench.spec.trial import DataSource
from tests.phases.conftest import result_of, run_phase


class Classifier(nn.Module):
    """One layer, with autocast as it is or turned off; its loss may be NaN."""

    def __init__(self, *, off: bool, scale: float = 1.0):
        super().__init__()
        self.layer, self.off, self.scale = nn.Linear(192, 2), off, scale

    def forward(self, inputs):
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not self.off):
            return self.layer(inputs.flatten(1).float()) * self.scale


@pytest.mark.parametrize("phase", ["memory", "train"])
@pytest.mark.parametrize("case", [("amp-bf16", True, True), ("amp-bf16", False, False), ("fp32", True, False)])
def test_memory_and_training_say_that_autocast_was_off(use_suite, tiny_trial, cpu, phase, case):
    precision, off, said = case
    use_suite(lambda data: Classifier(off=off))
    cell = replace(tiny_trial.cell, data=DataSource(kind="synthetic"))
    result = result_of(run_phase(tiny_trial, cpu, phase, precision, cell=cell))
    assert result.status == "ok"
    assert ("autocast did not reach the model, whose products ran in float32:100%" in result.detail) == said
    assert ("autocast" in describe_results([result])) == said


@pytest.mark.parametrize(("scale", "said"), [(float("nan"), True), (1.0, False)])
def test_memory_says_that_the_loss_was_nan(use_suite, tiny_trial, cpu, scale, said):
    use_suite(lambda data: Classifier(off=False, scale=scale))
    result = result_of(run_phase(tiny_trial, cpu, "memory", "fp32"))
    assert (result.detail == "the loss was nan after a few steps") == said
    assert result.memory.model_bytes is not None
