"""Every phase says that a model is hardly narrow, or goes past converted layers; memory that the
loss was NaN.
"""

from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional

from bench.cli.display import describe_results
from bench.results.records import TrialResult
from bench.spec.data_source import DataSource
from tests.devices.fake_nvml import FakeGpu
from tests.libraries import WITHOUT_TORCHAO
from tests.phases.conftest import (
    each_phase,
    install_gpus,
    of_kind,
    result_of,
    run_phase,
    shorten_energy,
    shorten_explain,
)

TOGETHER = ("speed", "explain")
"""Phases that measure fp32 along with the other precision."""


class Classifier(nn.Module):
    """Two layers, the larger one with autocast as it is or turned off."""

    def __init__(self, *, off: bool):
        super().__init__()
        self.layer, self.head, self.off = nn.Linear(192, 8), nn.Linear(8, 2), off

    def forward(self, inputs):
        with torch.autocast("cpu", enabled=torch.is_autocast_enabled("cpu") and not self.off):
            hidden = self.layer(inputs.flatten(1).float())
        return self.head(hidden)


@pytest.mark.parametrize("phase", ["memory", "train"])
@pytest.mark.parametrize(
    "case",
    [
        ("amp-bf16", True, True),
        ("amp-bf16:keep=layer", False, True),
        ("amp-bf16:keep=head", False, False),
        ("amp-bf16", False, False),
        ("fp32", True, False),
    ],
)
def test_memory_and_training_say_what_stayed_in_fp32(use_suite, tiny_trial, cpu, phase, case):
    precision, off, mentioned = case
    use_suite(lambda data: Classifier(off=off))
    cell = replace(tiny_trial.cell, batch_size=16, data=DataSource(kind="synthetic"))
    result = result_of(run_phase(tiny_trial, cpu, phase, precision, cell=cell))
    assert result.status == "ok"
    assert ("% of its products in float32 (layer)" in result.detail) == mentioned
    assert ("in float32" in describe_results(phase, [result])) == mentioned


class Broken(nn.Flatten):
    def forward(self, inputs):
        return super().forward(inputs) * float("nan")


def test_memory_says_that_the_loss_was_nan(use_suite, tiny_trial, cpu):
    use_suite(lambda data: nn.Sequential(Broken(), nn.Linear(192, 2)))
    result = result_of(run_phase(tiny_trial, cpu, "memory", "fp32"))
    assert result.detail == "the loss was nan after a few steps"
    assert result.row.model_bytes is not None


class PastTheLayer(nn.Module):
    """Multiplies by the weights of a layer that is converted, but for ``properly`` without calling
    the layer.
    """

    def __init__(self, *, properly: bool):
        super().__init__()
        self.layer, self.head, self.properly = nn.Linear(192, 32), nn.Linear(32, 2), properly

    def forward(self, inputs):
        flat = inputs.flatten(1)
        if self.properly:
            return self.head(self.layer(flat))
        hidden = functional.linear(flat, self.layer.weight, self.layer.bias)
        return self.head(hidden)


@pytest.fixture
def quick_with_a_gpu(monkeypatch):
    shorten_energy(monkeypatch)
    shorten_explain(monkeypatch)
    # CPUs alone take it, and have no float8.
    monkeypatch.setattr("bench.phases.memory.measure.SMALL_BATCH", 16)
    install_gpus(monkeypatch, FakeGpu("GPU-a", power_w=100.0, energy_tick_s=0.01))


@pytest.mark.usefixtures("quick_with_a_gpu")
@pytest.mark.parametrize("phase", each_phase("fit", "floor", "layers"))
@pytest.mark.parametrize("properly", [True, False])
@pytest.mark.skipif(bool(WITHOUT_TORCHAO), reason=WITHOUT_TORCHAO)
def test_products_in_other_types_are_no_figure_of_a_narrow_precision(
    use_suite, tiny_trial, cpu, phase, properly
):
    use_suite(lambda _data: PastTheLayer(properly=properly))
    cell = replace(tiny_trial.cell, batch_size=16, data=DataSource(kind="synthetic"))
    device = replace(cpu, uuid="GPU-a") if phase == "energy" else cpu
    names = ("fp32", "fp8-rowwise") if phase in TOGETHER else ("fp8-rowwise",)
    *others, result = of_kind(TrialResult, run_phase(tiny_trial, device, phase, *names, cell=cell))
    missed = result.detail.startswith("no product ran in float8, but in bfloat16:")
    assert missed != properly
    assert result.status == ("ok" if properly else "invalid")
    assert [other.status for other in others] == ["ok"] * len(others)
