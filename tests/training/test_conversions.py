"""Linear layers in 8 bits, with torch's float8 products of the CPU: what is converted, what ran,
how exact it is.
"""

import pytest
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from bench.measure.operations import observe
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import PRECISIONS
from bench.training.conversions import convert
from bench.training.step import training_step
from tests.libraries import WITHOUT_TORCHAO
from tests.training.conftest import batches, make, wide

if WITHOUT_TORCHAO:
    pytest.skip(WITHOUT_TORCHAO, allow_module_level=True)
CONVERTED = [name for name, precision in PRECISIONS.items() if precision.conversion]
(BATCH,) = batches(1, size=32)
SQNR_DB = 20.0
"""The ratio that torchao's own tests ask of a converted layer's output and gradients."""


@pytest.mark.parametrize("name", CONVERTED)
def test_a_converted_layers_output_and_gradients_have_the_exactness_that_torchao_asks_for(name):
    from torchao.float8.float8_utils import compute_error

    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 128))
    inputs = torch.randn(96, 64, requires_grad=True)

    def passes():
        with torch.autocast("cpu", torch.bfloat16):
            outputs = model(inputs).float()
        weighted = outputs * torch.arange(128)
        gradients = torch.autograd.grad(weighted.sum(), [inputs, *model.parameters()])
        return outputs, *gradients

    exact = passes()
    convert(model, PRECISIONS[name])
    ratios_db = list(map(compute_error, exact, passes()))
    assert min(ratios_db) > SQNR_DB
    assert ratios_db[0] < 40  # or nothing was rounded


class Doubled(nn.Linear):
    """A user's own layer, which does more than a linear one and takes more than a tensor."""

    def forward(self, inputs, mask=None):
        return 2 * super().forward(inputs)


def test_layers_that_the_hardware_could_not_multiply_and_the_users_own_are_kept_and_said_to_be():
    def model(_data):
        return nn.Sequential(
            nn.Flatten(),
            nn.Linear(192, 32),
            Doubled(32, 32),
            nn.Linear(32, 3),
        )

    arm = make("fp8-tensorwise", model=model)
    assert arm.conversion.converted_layers == ("1",)
    assert arm.conversion.kept_layers == {
        "2": "a Doubled, which may do more than a linear layer",
        "3": "32 to 3, not multiples of 16",
    }
    assert training_step(arm, BATCH).isfinite()
    assert make("amp-bf16", model=model).conversion is None


def test_a_model_of_which_no_layer_fits_is_unsupported_and_not_its_autocast_by_another_name():
    model = nn.Sequential(nn.Linear(64, 10), nn.Conv2d(16, 16, 1))
    with pytest.raises(UnsupportedError, match=r"none of .*\(0: 64 to 10, not multiples of 16\)"):
        convert(model, PRECISIONS["fp8-rowwise"])


@pytest.mark.parametrize(
    ("name", "computed"),
    [
        ("fp8-tensorwise", "float8_e5m2:66% float8_e4m3fn:33% bfloat16:<1%"),
        ("fp8-rowwise", "float8_e4m3fn:>99% bfloat16:<1%"),
    ],
)
def test_what_ran_has_the_types_that_products_really_saw(name, computed):
    arm = make(name, model=wide)
    operations = observe(lambda: training_step(arm, BATCH))
    # Forward and both gradients of each layer: torchao computes that of the first layer's input,
    # too.
    weights = 192 * 64 + 64 * 32 + 32 * 3
    assert operations.flops_per_step == 2 * 32 * 3 * weights
    assert operations.compute_dtypes == computed


def test_a_layer_in_two_places_is_converted_in_both():
    layer = nn.Linear(128, 128)
    model = nn.Sequential(layer, nn.Sequential(nn.ReLU(), layer))
    convert(model, PRECISIONS["fp8-rowwise"])
    first, (_, second) = model
    assert first is second
    assert type(first) is not nn.Linear
    assert first.weight is layer.weight


@pytest.mark.parametrize("name", CONVERTED)
def test_batches_whose_gradients_torch_would_not_multiply_on_a_gpu_are_refused_and_no_others(name):
    def train(rows):
        with FakeTensorMode():
            model = nn.Sequential(nn.Linear(64, 32, device="cuda"))
            convert(model, PRECISIONS[name])
            model(torch.empty(rows, 64, device="cuda", dtype=torch.bfloat16))

    train(48)
    with pytest.raises(
        UnsupportedError, match=f"^{name} needs samples, or tokens, in multiples of 16 in a batch"
    ):
        train(513)
