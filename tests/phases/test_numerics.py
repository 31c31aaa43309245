"""The numerics phase on small suites: what it sends, and what it says when numbers cease to be
finite.
"""

import math
from collections import Counter
from dataclasses import asdict, dataclass, replace

import pandas as pd
import pytest
import torch
from torch import nn

from bench.phases.numerics import measure as numerics
from bench.phases.numerics import report as report_tables
from bench.report.reading.load import KEY
from bench.results.records import Numeric
from bench.spec.suite import Data
from bench.spec.trial import SuiteRef
from tests.arms import arms
from tests.phases import planted
from tests.phases.conftest import of_kind, result_of
from tests.report.tables.lines import lines


def watch(trial, device, *, steps=8, **changes):
    messages = []
    numerics.run(replace(trial, phase="numerics", **changes), device, messages.append, steps)
    return of_kind(Numeric, messages), result_of(messages)


def values(rows, kind, name):
    """Return a figure of the whole model by step."""
    by_step = {}
    for row in rows:
        if row.kind == kind and row.name == name and not row.layer:
            by_step[row.step] = row.value
    return by_step


def counted(rows):
    """Return how many gradients were counted, by step."""
    numbers = Counter()
    for row in rows:
        if row.kind == "gradient":
            numbers[row.step] += row.value
    return numbers


def test_every_step_is_told_and_gradients_of_the_first_and_the_last_five(tiny_trial, cpu):
    rows, result = watch(tiny_trial, cpu, steps=20, arms=arms("amp-fp16"))
    losses = values(rows, "step", "loss")
    detail = f"loss {losses[0]:#.4g} in the first step, {losses[19]:#.4g} in the last of 20"
    assert (result.status, result.detail) == ("ok", detail)
    assert result.switches.loss_scaling
    assert list(losses) == list(range(20))
    assert set(values(rows, "step", "loss_scale").values()) == {65536.0}
    assert set(values(rows, "step", "skipped").values()) == {0.0}
    size = 192 * 16 + 16 + 16 * 2 + 2
    assert counted(rows) == dict.fromkeys((0, 15, 16, 17, 18, 19), size)
    assert {row.layer for row in rows if row.kind == "activation"} == {"0", "1", "2", "3"}


def test_errors_are_those_of_the_precision_and_the_training_is_left_as_it_is(
    tiny_trial, cpu, monkeypatch
):
    plain, _ = watch(tiny_trial, cpu)
    rows, _ = watch(tiny_trial, cpu, arms=arms("amp-bf16"))
    fp32 = values(plain, "error", "gradient")
    bf16 = values(rows, "error", "gradient")
    assert list(fp32) == list(bf16) == [0, 7]
    assert all(value < 1e-6 for value in fp32.values())
    assert all(1e-4 < value < 0.1 for value in bf16.values())
    monkeypatch.setattr(numerics._Observation, "_errors", lambda *_: None)
    alone, _ = watch(tiny_trial, cpu)
    assert values(alone, "step", "loss") == values(plain, "step", "loss")


def framed(rows, name):
    of_cell = dict.fromkeys((*KEY, "where"), "")
    of_cell |= {"batch_size": 4.0, "seed": 0.0, "precision": name}
    return pd.DataFrame(map(asdict, rows)).assign(**of_cell)


@pytest.mark.parametrize(
    ("name", "are_lost"), [("fp32", False), ("fp16-master", False), ("bf16", True)]
)
def test_updates_that_rounding_loses_are_in_the_table_and_in_the_sentence(
    tiny_trial, cpu, use_suite, name, are_lost
):
    use_suite(
        lambda data: nn.Sequential(nn.Flatten(), nn.Linear(192, data.classes)),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-5),
    )
    rows, result = watch(tiny_trial, cpu, arms=arms(name))
    steps, _ = report_tables.numerics(framed(rows, name))
    (line,) = lines(steps)
    assert list(values(rows, "step", "lost_updates")) == [0, 3, 4, 5, 6, 7]
    lost_pct = float(line["updates lost (%)"])
    assert lost_pct > 90 if are_lost else lost_pct < 10
    assert ("updates were lost to rounding" in result.detail) == are_lost


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("fp32", ["60.0", "30.0", "30.0"]),
        ("amp-fp16", ["60.0", "30.0", "30.0"]),
        ("amp-fp16-noscale", ["90.0", "0.00", "0.00"]),
    ],
)
def test_gradients_of_outputs_are_counted_unscaled_as_they_were_planted(
    tiny_trial, cpu, use_suite, name, shown
):
    suite = planted.suite()
    use_suite(suite.model, data=suite.data, loss=suite.loss, optimizer=suite.optimizer)
    rows, _ = watch(tiny_trial, cpu, arms=arms(name))
    _, table = report_tables.numerics(framed(rows, name))
    _, line = lines(table)
    assert line["gradients of"] == "layers' outputs"
    headers = ("zero (%)", "in fp16: zero (%)", "S brings into range (%)")
    assert [line[header] for header in headers] == shown


@pytest.fixture
def breaking(use_suite):
    """Return a function that makes a suite whose second layer returns wrong values from pass 3."""

    def use(broken_output=1.0, broken_gradient=1.0):
        class Break(torch.autograd.Function):
            @staticmethod
            def forward(context, inputs, output):
                return inputs * output

            @staticmethod
            def backward(context, gradient):
                return gradient * broken_gradient, None

        class Second(nn.Linear):
            passes = 0

            def forward(self, inputs):
                self.passes += self.weight.dtype == torch.float32
                outputs = super().forward(inputs)
                # The first pass is the comparison's with float64, on a copy.
                return Break.apply(outputs, broken_output) if self.passes > 3 else outputs

        use_suite(
            lambda data: nn.Sequential(nn.Linear(4, 4), Second(4, 4), nn.Linear(4, 2)),
            data=Data(input_shape=(4,), classes=2, steps_per_epoch=2),
        )

    return use


@pytest.mark.parametrize(
    ("broken", "text"),
    [
        ("broken_output", "the loss became nan at step 3, first in the output of layer 1"),
        ("broken_gradient", "gradients became infinite or NaN at step 3, first in layer 1"),
    ],
)
def test_what_is_not_finite_is_found_with_its_step_and_the_layer_that_it_was_met_in_first(
    tiny_trial, cpu, breaking, broken, text
):
    breaking(**{broken: math.inf})
    rows, result = watch(tiny_trial, cpu)
    assert (result.status, result.detail) == ("nonfinite", text)
    assert list(values(rows, "step", "loss")) == [0, 1, 2, 3]
    assert values(rows, "gradient", "nonfinite")[3] > 0


def test_with_loss_scaling_such_a_step_is_skipped_and_training_goes_on(tiny_trial, cpu, breaking):
    breaking(broken_gradient=math.inf)
    rows, result = watch(tiny_trial, cpu, steps=6, arms=arms("amp-fp16"))
    assert result.status == "ok"
    assert [*values(rows, "step", "skipped").values()] == [0, 0, 0, 1, 1, 1]
    scales = values(rows, "step", "loss_scale")
    assert [scales[step] for step in (3, 4, 5)] == [65536.0, 32768.0, 16384.0]


def test_underflow_stalls_without_loss_scaling_and_with_nothing_else(tiny_trial, cpu):
    cell = replace(tiny_trial.cell, suite=SuiteRef(name="underflow"), batch_size=64)
    fall, zero = {}, {}
    for name in ("fp32", "amp-fp16", "amp-bf16", "amp-fp16-noscale"):
        rows, result = watch(tiny_trial, cpu, steps=41, cell=cell, arms=arms(name))
        assert result.status == "ok"
        loss = values(rows, "step", "loss")
        fall[name] = loss[40] / loss[0]  # of the same batch
        zero[name] = values(rows, "gradient", "zero").get(0, 0)
    assert fall["amp-fp16-noscale"] == 1.0
    assert all(fall[name] < 0.4 for name in ("fp32", "amp-fp16", "amp-bf16"))
    assert zero["fp32"] == 0
    assert zero["amp-fp16-noscale"] == 64 * 256 + 256 + 256 * 8 + 8


class Spectral(nn.Module):
    """A product in the frequency domain, with complex weights."""

    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(8, 8)
        self.weight = nn.Parameter(torch.ones(5, dtype=torch.cfloat))

    def forward(self, inputs):
        frequencies = torch.fft.rfft(self.inner(inputs).float())
        outputs = torch.fft.irfft(frequencies * self.weight, n=8)
        return outputs.mean(dim=1, keepdim=True)


@dataclass
class Output:
    """As models of libraries return."""

    loss: torch.Tensor
    scores: torch.Tensor


class WithLoss(nn.Linear):
    def forward(self, inputs, labels):
        scores = super().forward(inputs)
        return Output(loss=nn.functional.cross_entropy(scores.float(), labels), scores=scores)


def test_outputs_that_are_a_dataclass_are_watched_as_any(tiny_trial, cpu, use_suite):
    use_suite(
        lambda: WithLoss(8, 4),
        batches=lambda split, size, seed: [(torch.randn(size, 8), torch.randint(4, (size,)))] * 3,
        loss=lambda model, batch: model(*batch),
    )
    rows, result = watch(tiny_trial, cpu, arms=arms("amp-bf16"))
    assert result.status == "ok"
    assert all(0 < error < 0.1 for error in values(rows, "error", "gradient").values())


def test_complex_weights_have_errors_and_two_gradients_each(tiny_trial, cpu, use_suite):
    use_suite(lambda _data: Spectral(), data=Data(input_shape=(8,), target_shape=(1,)))
    rows, result = watch(tiny_trial, cpu, arms=arms("amp-bf16"))
    assert result.status == "ok"
    assert 1e-4 < values(rows, "error", "gradient")[0] < 0.1
    assert counted(rows)[0] == 8 * 8 + 8 + 2 * 5
