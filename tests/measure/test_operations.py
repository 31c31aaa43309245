from collections import Counter

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel

from bench.measure.operations import flops_by_module, observe, shares
from bench.results.records import Operations
from bench.training.step import training_step
from tests.training.conftest import batches, make, same

BATCH = 4


def observed(model, shape, autocast=None):
    """Observe a training step of a model, or of any function, on inputs of this shape."""
    inputs = torch.randn(BATCH, *shape)

    def step():
        with torch.autocast("cpu", autocast, enabled=autocast is not None):
            outputs = model(inputs)
        outputs.float().square().sum().backward()

    return observe(step)


@pytest.mark.parametrize(
    ("autocast", "dtypes"),
    [
        (None, "float32:100%"),
        (torch.bfloat16, "bfloat16:100%"),
        (torch.float16, "float16:100%"),
    ],
)
def test_a_net_of_linear_layers_computes_in_the_precisions_type_alone(autocast, dtypes):
    first = nn.Linear(6, 8)
    second = nn.Linear(8, 3)
    model = nn.Sequential(first, nn.ReLU(), second)
    operations = observed(model, (6,), autocast)
    assert operations.compute_dtypes == dtypes
    # Forward and the weights' gradients of both layers, the input's gradient of the second alone.
    products = 2 * first.weight.numel() + 3 * second.weight.numel()
    assert operations.flops_per_step == 2 * BATCH * products


@pytest.mark.parametrize(
    ("layer", "products"),
    [
        (nn.Conv2d(4, 8, 3, stride=2, bias=False), 16 * 9 * 4 * 8),
        (nn.ConvTranspose2d(4, 6, 3, groups=2), 81 * 9 * 4 * 3),
    ],
    ids=["strided", "transposed in groups"],
)
def test_a_convolution_multiplies_as_often_for_each_gradient_as_forward(layer, products):
    # The 1×1 before it has no gradient of its input, and makes it need one.
    before = nn.Conv2d(4, 4, 1)
    products_before = 81 * 4 * 4
    model = nn.Sequential(before, layer)
    operations = observed(model, (4, 9, 9))
    all_products = 2 * products_before + 3 * products
    assert operations.flops_per_step == 2 * BATCH * all_products


def test_attention_is_seen_fused_and_not():
    tokens = 10
    width = 16
    layer = nn.MultiheadAttention(width, 2, batch_first=True)

    def attention(need_weights):
        def forward(x):
            outputs, _weights = layer(x, x, x, need_weights=need_weights)
            return outputs

        return observed(forward, (tokens, width), torch.bfloat16)

    # Into q, k and v and out of the heads: forward and weights, and the input of the last
    # projection.
    projections = 9 * 2 * BATCH * tokens * width**2
    product = 2 * BATCH * tokens**2 * width  # q kᵀ, or scores times v, over all heads
    plain = Operations(
        compute_dtypes="bfloat16:100%",
        flops_per_step=projections + 6 * product,
    )
    fused = Operations(
        compute_dtypes="bfloat16:100%",
        # The scores are computed again in backward.
        flops_per_step=projections + 7 * product,
        attention="flash:1",
    )
    assert attention(need_weights=True) == plain
    assert attention(need_weights=False) == fused


def test_the_backend_that_attention_used_is_named():
    heads = torch.randn(BATCH, 2, 10, 8)

    def attend():
        functional.scaled_dot_product_attention(heads, heads, heads)
        with sdpa_kernel(SDPBackend.MATH):
            functional.scaled_dot_product_attention(heads, heads, heads)

    attention = observe(attend).attention
    assert set(attention.split()) == {"flash:1", "math:1"}


def test_what_the_forward_pass_does_without_gradients_or_twice_is_counted_too():
    layer = nn.Sequential(
        nn.Linear(6, 6),
        nn.ReLU(),
    )

    def teach(inputs):
        with torch.inference_mode():
            taught = layer(inputs)
        return layer(inputs) + taught.clone()

    def twice(inputs):
        return torch.utils.checkpoint.checkpoint(layer, inputs, use_reentrant=False)

    product = 2 * BATCH * 6 * 6
    for forward in (teach, twice):
        operations = observed(forward, (6,))
        assert operations.flops_per_step == 3 * product


def test_a_product_without_a_formula_is_not_passed_over():
    first = nn.Linear(6, 8)
    unknown = nn.Bilinear(8, 8, 2)

    def forward(inputs):
        hidden = first(inputs)
        return unknown(hidden, hidden)

    operations = observed(forward, (6,))
    assert operations.compute_dtypes == "float32:100% float32:?"
    assert operations.flops_per_step is None


def test_products_are_their_modules_own_forward_and_backward_below_autocast():
    class Block(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv = nn.Conv2d(4, 6, 3)
            self.out = nn.Linear(6, 5)

        def forward(self, images):
            hidden = self.conv(images).relu()
            pooled = hidden.mean(dim=(2, 3))
            with torch.autocast("cpu", enabled=False):
                return self.out(pooled.float())

    model = Block()
    images = torch.ones(3, 4, 8, 8)

    def step():
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(images)
        loss = outputs @ torch.ones(5)
        loss.sum().backward()

    conv = 2 * 3 * 6 * 6 * model.conv.weight.numel()
    linear = 2 * 3 * model.out.weight.numel()
    loss = 2 * 3 * 5
    assert flops_by_module(step) == {
        # There is no gradient of the images.
        ("conv", torch.bfloat16): 2 * conv,
        ("out", torch.float32): 3 * linear,
        # Its gradient is an outer product of vectors, which is elementwise.
        ("", torch.float32): loss,
    }


def test_nothing_but_products_counts():
    model = nn.Sequential(
        nn.BatchNorm1d(6),
        nn.ReLU(),
        nn.LayerNorm(6),
    )
    assert observed(model, (6,)) == Operations(compute_dtypes="", flops_per_step=0)


def test_shares_are_written_largest_first_and_never_round_a_part_away():
    flops = Counter({torch.float32: 2, torch.bfloat16: 98})
    assert shares(flops) == "bfloat16:98% float32:2%"
    flops = Counter({torch.float32: 1, torch.bfloat16: 999})
    assert shares(flops) == "bfloat16:>99% float32:<1%"


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_a_step_that_is_observed_is_one_step_like_any_other(precision):
    (batch,) = batches(1)
    seen = make(precision)
    observe(lambda: training_step(seen, batch))
    plain = make(precision)
    training_step(plain, batch)
    assert seen.taken.count == plain.taken.count == 1
    assert same(seen.model.state_dict(), plain.model.state_dict())
    assert seen.loss_scale == plain.loss_scale


def test_the_operations_of_a_step_that_fails_while_observed_stay_unknown():
    wide = torch.ones(1, 2)

    def fail():
        torch.mm(wide, wide)

    assert observe(fail) == Operations()
