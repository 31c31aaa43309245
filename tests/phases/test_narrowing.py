"""The search for modules that a narrow precision harms, on models whose fragile parts are known."""

import pytest
import torch
from torch import nn

from bench.phases.layers.narrowing import Narrowing, search
from perf.layers import (
    BF16,
    PLANTS,
    SPECIAL,
    mlp,
    narrowing,
    planted,
    special,
)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("kind", ["long sum", "rotary positions", "overflow"])
def test_a_fragile_part_is_found_alone(kind):
    build, dtypes = PLANTS[kind]
    model = planted([build(0.8)], torch.Generator().manual_seed(1))
    part = next(name for name, _ in model.named_modules() if name.endswith(".part"))
    findings = search(narrowing(model, (16,), dtypes[-1]))
    assert (findings.answer, findings.kept) == ("concentrated", (part,))
    assert findings.error_kept <= findings.limit < findings.error


@pytest.mark.parametrize("kind", SPECIAL)
def test_own_operations_repeated_calls_and_tied_weights(kind):
    assert search(narrowing(special(kind, 0.6), (16,), BF16)).kept == (SPECIAL[kind][1],)


def test_a_loss_that_is_narrow_itself_is_named():
    def summed(net, batch):
        outputs = net(batch[0])
        narrow = (
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else outputs.dtype
        )
        return nn.functional.mse_loss(
            (outputs.to(narrow) + 200) - 200, torch.zeros_like(outputs).float() + 0.1
        )

    net = mlp()
    assert (
        search(Narrowing(net, summed, narrowing(net, (16,), BF16).batches, BF16)).answer == "loss"
    )


def test_errors_are_those_of_fp32_where_everything_is_kept_and_the_model_is_left_as_it_was():
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = narrowing(net, (16,), BF16)
    assert model.agreed(model.candidates) == 0
    assert model.agreed(()) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_model_that_casts_to_float32_itself_is_searched():
    class Casts(nn.Module):
        def __init__(self):
            super().__init__()
            self.bias_before_norm, self.norm, self.head = (
                nn.Linear(16, 16),
                nn.BatchNorm1d(16),
                nn.Linear(16, 10),
            )

        def forward(self, values):
            return self.head(self.norm(self.bias_before_norm(values.float())))

    assert search(narrowing(Casts(), (16,), BF16)).answer == "fine"


class Unaware(torch.autograd.Function):
    """Multiplies by a weight, and its gradient by the input as it was: two types in autocast."""

    @staticmethod
    def forward(ctx, inputs, weight):
        ctx.save_for_backward(inputs, weight)
        return inputs @ weight.to(inputs.dtype)

    @staticmethod
    def backward(ctx, gradient):
        inputs, weight = ctx.saved_tensors
        return gradient @ weight.T, inputs.T @ gradient


class Unnarrowed(nn.Module):
    """A product that autocast does not know, or a number that float16 does not hold."""

    def __init__(self, *, fills):
        super().__init__()
        self.weight, self.fills = nn.Parameter(torch.randn(16, 16)), fills

    def forward(self, inputs):
        if self.fills:
            return inputs.masked_fill(inputs > 1, -1e9).clamp(-10, 10) @ self.weight
        return Unaware.apply(inputs, self.weight)


@pytest.mark.parametrize(
    ("fills", "sentence"),
    [
        (True, "cannot be converted to type c10::Half"),
        (False, "lacks torch.amp's custom_fwd and custom_bwd"),
    ],
)
def test_a_module_that_raises_in_the_narrow_type_is_kept_with_what_it_raised(fills, sentence):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(16, 16), Unnarrowed(fills=fills), nn.Linear(16, 4))
    batches = [torch.randn(8, 16) for _ in range(2)]
    narrowing = Narrowing(
        model, lambda model, batch: model(batch).float().square().mean(), batches, torch.float16
    )
    findings = search(narrowing)
    assert findings.kept == ("1",)
    assert sentence in findings.raised


def test_what_a_loss_raises_whatever_is_kept_is_raised():
    def loss(model, batch):
        if torch.is_autocast_enabled("cpu"):
            raise RuntimeError("unsafe to autocast")
        return model(batch).mean()

    narrowing = Narrowing(nn.Linear(16, 4), loss, [torch.randn(8, 16)], torch.float16)
    with pytest.raises(RuntimeError, match="unsafe to autocast"):
        search(narrowing)
