from collections import Counter
from dataclasses import replace

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.measure.operations import flops_by_module, observe, shares
from bench.results.records import Operations
from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Data, Suite
from bench.training.step import build_arm, training_step

CPU = torch.device("cpu")
BATCH = 4


class Layer(nn.Module):
    """A layer's output through ``forward``, which may be anything."""

    def __init__(self, layer, forward):
        super().__init__()
        self.layer, self.function = layer, forward

    def forward(self, inputs):
        return self.function(self.layer, inputs)


def make(model, shape, precision="fp32"):
    """Return an arm of one regression suite, and a step of it."""
    torch.manual_seed(0)
    inputs = torch.randn(BATCH, *shape)
    with torch.no_grad():
        targets = torch.zeros_like(model(inputs))
    suite = Suite(
        name="small",
        title="",
        data=Data(input_shape=shape, target_shape=tuple(targets.shape[1:])),
        model=lambda data: model,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=BATCH,
    )
    arm = build_arm(suite, suite.data, PRECISIONS[precision], CPU, seed=0)
    return arm, lambda: training_step(arm, (inputs, targets))


def observed(model, shape, precision="fp32"):
    return observe(make(model, shape, precision)[1])


def two_layers():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))


@pytest.mark.parametrize(
    ("precision", "dtypes"),
    [("fp32", "float32:100%"), ("amp-bf16", "bfloat16:100%"), ("amp-fp16", "float16:100%")],
)
def test_a_net_of_linear_layers_computes_in_the_precisions_type_alone(precision, dtypes):
    # Forward and the weights' gradients of both layers, the input's gradient of the second alone.
    by_hand = 2 * BATCH * (2 * 6 * 8 + 3 * 8 * 3)
    assert observed(two_layers(), (6,), precision) == Operations(
        compute_dtypes=dtypes, flops_per_step=by_hand
    )


@pytest.mark.parametrize(
    ("layer", "forward"),
    [
        (nn.Conv2d(4, 8, 3, stride=2, bias=False), 2 * 16 * 9 * 4 * 8),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 2 * 81 * 9 * 4 * 3),
    ],
    ids=["strided", "transposed in groups"],
)
def test_a_convolution_multiplies_as_often_for_each_gradient_as_forward(layer, forward):
    # The 1×1 before it has no gradient of its input, and makes it need one.
    before = 2 * 81 * 4 * 4
    both = observed(nn.Sequential(nn.Conv2d(4, 4, 1), layer), (4, 9, 9))
    assert both.flops_per_step == BATCH * (2 * before + 3 * forward)


@pytest.mark.parametrize(("precision", "dtype"), [("fp32", "float32"), ("amp-bf16", "bfloat16")])
def test_attention_is_seen_fused_and_not(precision, dtype):
    tokens, width = 10, 16

    def attend(need_weights):
        layer = nn.MultiheadAttention(width, 2, batch_first=True)
        model = Layer(layer, lambda layer, x: layer(x, x, x, need_weights=need_weights)[0])
        return observed(model, (tokens, width), precision)

    # Into q, k and v and out of the heads: forward and weights, and the input of the last
    # projection.
    projections = 2 * BATCH * tokens * width**2 * (2 * 3 + 3)
    product = 2 * BATCH * tokens**2 * width  # q kᵀ, or scores times v, over all heads
    plain = Operations(
        compute_dtypes=f"{dtype}:100%",
        flops_per_step=projections + product * (2 + 4),
    )
    assert attend(need_weights=True) == plain
    # Fused attention computes the scores again in backward.
    flops = plain.flops_per_step + product
    assert attend(need_weights=False) == replace(plain, flops_per_step=flops, attention="flash:1")


def test_the_backend_that_attention_used_is_named():
    def attend(layer, inputs):
        heads = layer(inputs)
        out = functional.scaled_dot_product_attention(heads, heads, heads)
        with sdpa_kernel(SDPBackend.MATH):
            return functional.scaled_dot_product_attention(out, out, out)

    model = Layer(nn.Linear(8, 8), attend)
    attention = observed(model, (2, 10, 8)).attention  # two heads
    assert set(attention.split()) == {"flash:1", "math:1"}


def test_what_the_forward_pass_does_without_gradients_or_twice_is_counted_too():
    def teach(layer, inputs):
        with torch.inference_mode():
            taught = layer(inputs)
        return layer(inputs) + taught.clone()

    def twice(layer, inputs):
        return torch.utils.checkpoint.checkpoint(layer, inputs, use_reentrant=False)

    for function in (teach, twice):
        layer = nn.Sequential(nn.Linear(6, 6), nn.ReLU())
        assert observed(Layer(layer, function), (6,)).flops_per_step == 3 * 2 * BATCH * 36


def test_a_product_without_a_formula_is_not_passed_over():
    unknown = Layer(nn.Bilinear(8, 8, 2), lambda layer, inputs: layer(inputs, inputs))
    result = observed(nn.Sequential(nn.Linear(6, 8), unknown), (6,))
    assert result == Operations(compute_dtypes="float32:100% float32:?", flops_per_step=None)


def test_products_are_their_modules_own_forward_and_backward_below_autocast():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.out = nn.Conv2d(4, 6, 3), nn.Linear(6, 5)

        def forward(self, images):
            hidden = self.conv(images).relu().mean(dim=(2, 3))
            with torch.autocast("cpu", enabled=False):
                return self.out(hidden.float())

    model = Block()

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(torch.ones(3, 4, 8, 8))
        (outputs @ torch.ones(5)).sum().backward()

    conv = 2 * 3 * 6 * 6 * 6 * 4 * 3 * 3
    linear = 2 * 3 * 6 * 5
    loss = 2 * 3 * 5
    assert flops_by_module(step) == {
        # There is no gradient of the images.
        ("conv", torch.bfloat16): 2 * conv,
        ("out", torch.float32): 3 * linear,
        # Its gradient is an outer product of vectors, which is elementwise.
        ("", torch.float32): loss,
    }


def test_nothing_but_products_counts():
    model = nn.Sequential(nn.BatchNorm1d(6), nn.ReLU(), nn.LayerNorm(6))
    assert observed(model, (6,)) == Operations(compute_dtypes="", flops_per_step=0)


def test_shares_are_written_largest_first_and_never_round_a_part_away():
    bf16, fp32 = torch.bfloat16, torch.float32
    assert shares(Counter({fp32: 2, bf16: 98})) == "bfloat16:98% float32:2%"
    assert shares(Counter({fp32: 1, bf16: 999})) == "bfloat16:>99% float32:<1%"


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_a_step_that_is_observed_is_one_step_like_any_other(precision):
    seen, observed_step = make(two_layers(), (6,), precision)
    plain, step = make(two_layers(), (6,), precision)
    observe(observed_step)
    step()
    assert seen.taken.count == plain.taken.count == 1
    torch.testing.assert_close(seen.model.state_dict(), plain.model.state_dict(), rtol=0, atol=0)
    assert not torch.equal(seen.model[0].weight, two_layers()[0].weight)
    assert seen.scaler.get_scale() == plain.scaler.get_scale()


def test_the_operations_of_a_step_that_fails_while_observed_stay_unknown():
    assert observe(lambda: torch.mm(torch.ones(1, 2), torch.ones(1, 2))) == Operations()
