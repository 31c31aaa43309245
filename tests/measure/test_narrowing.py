"""The search for modules that a narrow precision harms, on models whose fragile parts are known."""

import pytest
import torch
from torch import nn

from bench.measure.narrowing import Narrowing, Recipe, search
from perf.layers import BF16, FP16, PLANTS, PURE, SPECIAL, UNSCALED, conv, loss, mlp, narrowing, planted, special


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(0)


@pytest.mark.parametrize("recipe", [BF16, FP16, PURE])
def test_nothing_is_found_in_a_healthy_model(recipe):
    findings = search(narrowing(conv(), (1, 12, 12), recipe))
    assert (findings.answer, findings.kept) == ("fine", ())
    assert 0 < findings.error < findings.limit


@pytest.mark.parametrize("kind", ["long sum", "rotary positions", "overflow"])
def test_a_fragile_part_is_found_alone(kind):
    build, recipes = PLANTS[kind]
    model = planted([build(0.8)], torch.Generator().manual_seed(1))
    part = next(name for name, _ in model.named_modules() if name.endswith(".part"))
    findings = search(narrowing(model, (16,), recipes[-1]))
    assert (findings.answer, findings.kept) == ("concentrated", (part,))
    assert findings.error_kept <= findings.limit < findings.error


@pytest.mark.parametrize("kind", SPECIAL)
def test_own_operations_repeated_calls_and_tied_weights(kind):
    assert search(narrowing(special(kind, 0.6), (16,), BF16)).kept == (SPECIAL[kind][1],)


def test_without_scaling_gradients_that_vanish_everywhere_ask_for_scaling():
    net = mlp()
    batches = narrowing(net, (16,), UNSCALED).batches
    small = Narrowing(net, lambda model, batch: loss(model, batch) * 2.0**-20, batches, UNSCALED)
    assert search(small).answer == "everything"


def test_a_loss_that_is_narrow_itself_is_named():
    def summed(net, batch):
        outputs = net(batch[0])
        narrow = torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else outputs.dtype
        return nn.functional.mse_loss((outputs.to(narrow) + 200) - 200, torch.zeros_like(outputs).float() + 0.1)

    net = mlp()
    assert search(Narrowing(net, summed, narrowing(net, (16,), BF16).batches, BF16)).answer == "loss"


def test_errors_are_those_of_fp32_where_everything_is_kept_and_the_model_is_left_as_it_was():
    net = mlp()
    before = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    model = narrowing(net, (16,), BF16)
    assert model.agreed(model.candidates) == 0
    assert model.agreed(()) > 0
    assert all(torch.equal(tensor, before[name]) for name, tensor in net.state_dict().items())


def test_a_sign_that_flips_on_one_batch_is_no_harm_and_an_infinity_on_one_is():
    model = narrowing(mlp(), (16,), Recipe(dtype=torch.float16, weights=False, scaled=False))
    model.error = lambda _kept, number, **_options: (0.9, 0.01)[number]
    assert model.agreed(()) == 0.01
    model.error = lambda _kept, number, **_options: (float("inf"), 0.01)[number]
    assert model.agreed(()) == float("inf")
