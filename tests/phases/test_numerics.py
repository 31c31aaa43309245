"""The numerics phase on small suites: what it sends, and what it says when numbers cease to be
finite.
"""

import math
from collections import Counter, defaultdict
from dataclasses import dataclass, replace

import pytest
import torch
from torch import nn

from bench.phases.numerics import measure as numerics
from bench.results.records import Numeric
from bench.spec.suite import Data
from bench.spec.trial import SuiteRef
from tests.arms import arms
from tests.phases.conftest import of_kind, result_of


@pytest.fixture
def watch(tiny_trial, cpu):
    """Run the phase in a precision; return its result, and its figures by step.

    A figure is called by its kind and its layer, or its name where it is of the whole model.
    """

    def run(name="fp32", *, steps=8, cell=tiny_trial.cell):
        trial = replace(tiny_trial, phase="numerics", arms=arms(name), cell=cell)
        messages = []
        numerics.run(trial, cpu, messages.append, steps)
        figures = defaultdict(dict)
        for row in of_kind(Numeric, messages):
            figures[f"{row.kind} {row.layer or row.name}"][row.step] = row.value
        return result_of(messages), figures

    return run


def counted(figures):
    """Return how many gradients were counted, by step."""
    numbers = Counter()
    for name, by_step in figures.items():
        if name.startswith("gradient "):
            numbers.update(by_step)
    return numbers


def test_every_step_is_told_and_gradients_of_the_first_and_the_last_five(watch):
    result, figures = watch("amp-fp16", steps=20)
    losses = figures["step loss"]
    assert list(losses) == list(range(20))
    first = losses[0]
    last = losses[19]
    assert result.detail == f"loss {first:#.4g} in the first step, {last:#.4g} in the last of 20"
    assert result.status == "ok"
    assert result.switches.loss_scaling
    assert figures["step loss_scale"] == dict.fromkeys(losses, 65536.0)
    assert figures["step skipped"] == dict.fromkeys(losses, 0.0)
    steps = (0, 15, 16, 17, 18, 19)
    weights = 193 * 16 + 17 * 2
    assert counted(figures) == dict.fromkeys(steps, weights)
    for layer in range(4):
        assert f"activation {layer}" in figures


def test_errors_are_those_of_the_precision_and_the_training_is_left_as_it_is(watch, monkeypatch):
    _, figures = watch()
    errors = figures["error gradient"]
    assert list(errors) == [0, 7]
    assert max(errors.values()) < 1e-6
    _, narrow_figures = watch("amp-bf16")
    for error in narrow_figures["error gradient"].values():
        assert 1e-4 < error < 0.1
    monkeypatch.setattr(numerics._Observation, "_errors", lambda *_: None)
    _, unobserved = watch()
    assert unobserved["step loss"] == figures["step loss"]


@pytest.mark.parametrize(("name", "lost_share"), [("fp32", 0), ("fp16-master", 0), ("bf16", 1)])
def test_updates_that_rounding_loses_are_counted_and_in_the_sentence(
    watch, use_suite, name, lost_share
):
    use_suite(
        lambda data: nn.Sequential(nn.Flatten(), nn.Linear(192, data.classes)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-5),
    )
    result, figures = watch(name)
    lost = figures["step lost_updates"]
    assert list(lost) == [0, 3, 4, 5, 6, 7]
    assert min(lost.values()) == pytest.approx(lost_share, abs=0.1)
    assert ("updates were lost to rounding" in result.detail) == lost_share


def planted_loss(model, batch):
    """Return a loss whose gradients by outputs are 60 % zeros, and 30 % zero in float16 alone."""
    gradients = torch.zeros(10)
    gradients[6:] = 2.0**-30
    gradients[9] = 2.0**-10
    outputs = model(batch[0]).float()
    return (outputs * gradients).sum()


@pytest.mark.parametrize(
    ("name", "shares"),
    [
        ("fp32", {"zero": 0.6, "-30": 0.3, "-10": 0.1}),
        ("amp-fp16", {"zero": 0.6, "-30": 0.3, "-10": 0.1}),
        ("amp-fp16-noscale", {"zero": 0.9, "-10": 0.1}),
    ],
)
def test_gradients_of_outputs_are_counted_unscaled_as_they_were_planted(
    watch, use_suite, name, shares
):
    use_suite(
        lambda data: nn.Sequential(nn.Linear(10, 10)),
        data=Data(input_shape=(10,), classes=10, steps_per_epoch=2),
        loss=planted_loss,
    )
    _, figures = watch(name)
    for power, share in shares.items():
        counts = figures[f"output_gradient {power}"]
        assert counts[7] == 40 * share


class Breaking(nn.Linear):
    """From its fourth pass on its outputs, or the gradients by them, are infinite."""

    def __init__(self, infinite):
        super().__init__(4, 4)
        self.infinite = infinite
        self.passes = 0

    def forward(self, inputs):
        outputs = super().forward(inputs)
        # The first pass is the comparison's with float64, on a copy.
        self.passes += self.weight.dtype == torch.float32
        if self.passes > 3:
            if self.infinite == "outputs":
                return outputs * math.inf
            outputs.register_hook(lambda gradient: gradient * math.inf)
        return outputs


@pytest.fixture
def breaking(use_suite):
    """Return a function that makes a suite whose second layer breaks."""

    def use(infinite):
        use_suite(
            lambda data: nn.Sequential(nn.Linear(4, 4), Breaking(infinite), nn.Linear(4, 2)),
            data=Data(input_shape=(4,), classes=2, steps_per_epoch=2),
        )

    return use


@pytest.mark.parametrize(
    ("infinite", "text"),
    [
        ("outputs", "the loss became nan at step 3, first in the output of layer 1"),
        ("gradients", "gradients became infinite or NaN at step 3, first in layer 1"),
    ],
)
def test_what_is_not_finite_is_found_with_its_step_and_the_layer_that_it_was_met_in_first(
    watch, breaking, infinite, text
):
    breaking(infinite)
    result, figures = watch()
    assert (result.status, result.detail) == ("nonfinite", text)
    assert list(figures["step loss"]) == [0, 1, 2, 3]
    assert figures["gradient nonfinite"][3] > 0


def test_an_activation_that_is_nan_counts_as_the_largest_of_its_layer(watch, breaking):
    breaking("outputs")
    _, figures = watch()
    assert figures["activation 1"] == {3: math.inf}
    (step, value), *others = figures["activation 2"].items()
    assert step == 3
    assert math.isnan(value)
    assert not others


def test_with_loss_scaling_such_a_step_is_skipped_and_training_goes_on(watch, breaking):
    breaking("gradients")
    result, figures = watch("amp-fp16", steps=6)
    assert result.status == "ok"
    skipped = list(figures["step skipped"].values())
    assert skipped == [0, 0, 0, 1, 1, 1]
    scales = list(figures["step loss_scale"].values())
    assert scales[3:] == [65536.0, 32768.0, 16384.0]


def test_underflow_stalls_without_loss_scaling_and_with_nothing_else(watch, tiny_trial):
    suite = SuiteRef(name="underflow")
    cell = replace(
        tiny_trial.cell,
        suite=suite,
        batch_size=64,
    )
    fall = {}
    for name in ("fp32", "amp-fp16", "amp-bf16", "amp-fp16-noscale"):
        result, figures = watch(name, steps=41, cell=cell)
        assert result.status == "ok"
        losses = figures["step loss"]
        fall[name] = losses[40] / losses[0]  # of the same batch
    # Of the last, all of whose gradients are zeros.
    assert figures["gradient zero"] == counted(figures)
    assert fall.pop("amp-fp16-noscale") == 1.0
    assert max(fall.values()) < 0.4


@dataclass
class Output:
    """As models of libraries return."""

    loss: torch.Tensor
    scores: torch.Tensor


class WithLoss(nn.Linear):
    def forward(self, inputs, labels):
        scores = super().forward(inputs)
        loss = nn.functional.cross_entropy(scores.float(), labels)
        return Output(loss=loss, scores=scores)


def test_outputs_that_are_a_dataclass_are_watched_as_any(watch, use_suite):
    def batches(_split, size, _seed):
        inputs = torch.randn(size, 8)
        labels = torch.randint(4, (size,))
        return [(inputs, labels)] * 3

    use_suite(
        lambda: WithLoss(8, 4),
        batches=batches,
        loss=lambda model, batch: model(*batch),
    )
    result, figures = watch("amp-bf16")
    assert result.status == "ok"
    for error in figures["error gradient"].values():
        assert 0 < error < 0.1


class Spectral(nn.Module):
    """A product in the frequency domain, with complex weights."""

    def __init__(self):
        super().__init__()
        ones = torch.ones(5, dtype=torch.cfloat)
        self.weight = nn.Parameter(ones)
        self.inner = nn.Linear(8, 8)

    def forward(self, inputs):
        outputs = self.inner(inputs)
        frequencies = torch.fft.rfft(outputs.float())
        filtered = torch.fft.irfft(frequencies * self.weight, n=8)
        return filtered.mean(dim=1, keepdim=True)


def test_complex_weights_have_errors_and_two_gradients_each(watch, use_suite):
    use_suite(lambda _data: Spectral(), data=Data(input_shape=(8,), target_shape=(1,)))
    result, figures = watch("amp-bf16")
    assert result.status == "ok"
    errors = figures["error gradient"]
    assert 1e-4 < errors[0] < 0.1
    numbers = counted(figures)
    assert numbers[0] == 9 * 8 + 2 * 5
