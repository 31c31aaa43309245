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
    narrow,
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
        outputs = narrow(net(batch[0]))
        targets = torch.full_like(outputs, 0.1)
        return nn.functional.mse_loss((outputs + 200) - 200, targets.float())

    net = mlp()
    model = Narrowing(net, summed, narrowing(net, (16,), BF16).batches, BF16)
    assert search(model).answer == "loss"


def test_errors_are_those_of_fp32_where_everything_is_kept_and_the_model_is_left_as_it_was():
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = narrowing(net, (16,), BF16)
    assert model.agreed(model.candidates) == 0
    assert model.agreed(()) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


class Casts(nn.Sequential):
    def forward(self, values):
        return super().forward(values.float())


def test_a_model_that_casts_to_float32_itself_is_searched():
    model = Casts(nn.Linear(16, 16), nn.BatchNorm1d(16), nn.Linear(16, 10))
    assert search(narrowing(model, (16,), BF16)).answer == "fine"


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


class Multiplies(nn.Linear):
    """A product that autocast does not know."""

    def forward(self, inputs):
        return Unaware.apply(inputs, self.weight)


class Fills(nn.Linear):
    """Fills in a number that float16 does not hold."""

    def forward(self, inputs):
        return super().forward(inputs.masked_fill(inputs > 1, -1e9).clamp(-10, 10))


@pytest.mark.parametrize(
    ("fragile", "sentence"),
    [
        (Fills, "cannot be converted to type c10::Half"),
        (Multiplies, "lacks torch.amp's custom_fwd and custom_bwd"),
    ],
)
def test_a_module_that_raises_in_the_narrow_type_is_kept_with_what_it_raised(fragile, sentence):
    def loss(model, batch):
        return model(batch).float().square().mean()

    model = nn.Sequential(nn.Linear(16, 16), fragile(16, 16), nn.Linear(16, 4))
    batches = [torch.randn(8, 16), torch.randn(8, 16)]
    findings = search(Narrowing(model, loss, batches, torch.float16))
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
