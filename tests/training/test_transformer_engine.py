"""Transformer Engine's layers, by a made-up package that has its API: what is replaced, kept, run and refused."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import nn

from bench.measure.operations import observe
from bench.phases.arms import TrainingRunner
from bench.results.records import Operations
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import PRECISIONS, parse_precision
from bench.spec.techniques import Techniques
from bench.training.checkpoint import Checkpoint, read_checkpoint
from bench.training.conversions import convert
from bench.training.step import evaluate, evaluate_fp32, training_step
from tests.training.conftest import batch, make, plain_sgd, wide
from tests.training.made_up_te import DelayedScaling, Float8CurrentScaling, Library, MXFP8BlockScaling

ARMS = ("te-bf16", "te-fp8", "te-fp8:scaling=current", "te-mxfp8")
PRODUCTS = 2 * 32 * (192 * 64 + 64 * 32)
"""FLOPs of the two layers that fit, forward."""


@pytest.fixture
def library(monkeypatch):
    return Library().install(monkeypatch)


@pytest.mark.parametrize("name", ARMS)
def test_layers_that_fit_and_norms_are_replaced_with_their_weights(library, name):
    torch.manual_seed(0)
    model = wide()
    weights, state = dict(model.named_parameters()), torch.get_rng_state()
    conversion = convert(model, parse_precision(name))
    assert conversion.converted_layers == ("1", "4")
    assert conversion.kept_layers == {"5": "32 to 3, not multiples of 32"}
    kinds = [type(layer) for layer in model]
    assert [issubclass(kind, library.te.Linear) for kind in kinds] == [False, True, False, False, True, False]
    assert issubclass(kinds[3], library.te.LayerNorm)
    after = dict(model.named_parameters())
    assert after.keys() == weights.keys()
    assert all(after[name] is weight for name, weight in weights.items())
    assert torch.equal(state, torch.get_rng_state())


def test_layers_and_weights_that_are_shared_stay_shared(library):
    layer, norm = nn.Linear(32, 32), nn.LayerNorm(32)
    other = nn.Linear(32, 32)
    other.weight = layer.weight
    model = nn.Sequential(layer, norm, nn.Sequential(layer, other, norm))
    convert(model, PRECISIONS["te-fp8"])
    assert (model[0], model[1]) == (model[2][0], model[2][2])
    assert model[2][1].weight is model[0].weight
    assert len(list(model.parameters())) == 5


def test_all_convert_the_same_layers_so_that_what_differs_is_the_type(library):
    def model():
        return nn.Sequential(nn.Linear(32, 64), nn.Linear(64, 48), nn.Linear(48, 48), nn.Linear(48, 40))

    converted = {name: convert(model(), parse_precision(name)).converted_layers for name in ARMS}
    assert set(converted.values()) == {("0",)}


def test_norms_without_weights_are_left_to_torch(library):
    model = nn.Sequential(nn.Linear(32, 32), nn.LayerNorm(32, elementwise_affine=False), nn.LayerNorm(32, bias=False))
    convert(model, PRECISIONS["te-bf16"])
    assert [type(layer) for layer in model[1:]] == [nn.LayerNorm, nn.LayerNorm]


@pytest.mark.parametrize(
    ("name", "computed", "recipe"),
    [
        ("te-bf16", "bfloat16:100%", None),
        ("te-fp8", "float8_e5m2:66% float8_e4m3fn:33% bfloat16:<1%", DelayedScaling()),
        ("te-fp8:scaling=current", "float8_e5m2:66% float8_e4m3fn:33% bfloat16:<1%", Float8CurrentScaling()),
        ("te-mxfp8", "float8_e4m3fn:>99% bfloat16:<1%", MXFP8BlockScaling()),
    ],
)
def test_products_past_torchs_dispatcher_are_counted_with_the_types_that_they_saw(library, name, computed, recipe):
    arm = make(name, model=wide)
    multiply = library.extension.generic_gemm
    operations = observe(lambda: training_step(arm, batch()))
    # Forward and both gradients; the layer at the end, which is torch's, too.
    assert operations == Operations(compute_dtypes=computed, flops_per_step=3 * (PRODUCTS + 2 * 32 * 32 * 3))
    assert library.entered == ([] if recipe is None else [recipe])
    assert library.recipe is None
    assert library.extension.generic_gemm is multiply
    runner = TrainingRunner(name, arm, itertools.repeat(batch()))
    assert set(runner.compute_dtypes().split()) & set(computed.split())
    assert arm.precision.missed(runner.compute_dtypes()) == ""


@pytest.mark.parametrize("name", ARMS)
def test_training_learns_nearly_as_amp_bf16_and_evaluation_in_fp32_is_torchs(library, name):
    losses = {}
    for each in ("amp-bf16", name):
        arm = make(each, model=wide, optimizer=plain_sgd(0.05))
        losses[each] = [training_step(arm, batch()).item() for _ in range(6)]
    assert losses[name] == pytest.approx(losses["amp-bf16"], rel=0.05)
    assert losses[name] != losses["amp-bf16"]
    assert losses[name][-1] < losses[name][0]
    twin = make("fp32", model=wide)
    twin.weights.load_state_dict(arm.weights.state_dict())
    exact = evaluate(twin, iter([batch()]))[0]
    assert evaluate_fp32(arm, iter([batch()]))[0] == pytest.approx(exact, rel=1e-6)
    assert evaluate(arm, iter([batch()]))[0] != exact


def test_a_checkpoint_goes_on_although_delayed_scaling_would_pickle_its_history(library, tmp_path):
    straight, begun, resumed = (make("te-fp8", model=wide, optimizer=plain_sgd(0.05)) for _ in range(3))
    expected = [training_step(straight, batch()).item() for _ in range(4)]
    assert [training_step(begun, batch()).item() for _ in range(2)] == expected[:2]
    Checkpoint.of(begun, "config", []).write(tmp_path / "one.pt")
    read_checkpoint(tmp_path / "one.pt").restore(resumed)
    assert [training_step(resumed, batch()).item() for _ in range(2)] == expected[2:]


@pytest.mark.parametrize(
    ("name", "probe"),
    [("te-bf16", "is_bf16_available"), ("te-fp8", "is_fp8_available"), ("te-mxfp8", "is_mxfp8_available")],
)
def test_what_the_librarys_own_probe_refuses_is_unsupported_with_its_reason(library, name, probe):
    library.unavailable[probe] = "not on 12.0+ architectures yet."
    with pytest.raises(UnsupportedError, match=rf"^{name}: Transformer Engine says: not on 12.0\+ architectures yet.$"):
        make(name, model=wide)
    for other in {"te-bf16", "te-fp8", "te-mxfp8"} - {name}:
        make(other, model=wide)


def test_a_package_that_does_not_load_is_unsupported_with_the_reason(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformer_engine", None)
    with pytest.raises(UnsupportedError, match=r"^te-fp8: transformer_engine does not load: "):
        make("te-fp8", model=wide)


@pytest.mark.parametrize(("name", "size", "multiple"), [("te-fp8", 24, 16), ("te-mxfp8", 16, 32)])
def test_batches_whose_products_would_not_fit_are_refused(library, name, size, multiple):
    arm = make(name, model=wide)
    with pytest.raises(UnsupportedError, match=f"multiples of {multiple} in a batch, not {size}"):
        training_step(arm, batch(size))
    assert library.recipe is None
    assert not torch.is_autocast_enabled("cpu")
    training_step(make("te-bf16", model=wide), batch(size))


@pytest.mark.parametrize("name", ARMS)
@pytest.mark.parametrize("size", [24, 1])
def test_what_is_left_of_the_test_data_and_single_samples_are_evaluated_together_with_zeros(library, name, size):
    arm = make(name, model=wide, optimizer=plain_sgd(0.05))
    training_step(arm, batch())
    assert evaluate(arm, iter([batch(), batch(size)]))[0] > 0
    assert evaluate_fp32(arm, iter([batch(size)]))[0] > 0
    inputs = torch.randn(size, 3, 64)  # (samples, tokens, features)
    more = torch.cat([inputs, torch.zeros(32 - size, 3, 64)])
    with torch.inference_mode(), arm.autocast():
        outputs, among_zeros = (arm.model[4](each) for each in (inputs, more))
    assert outputs.shape == (size, 3, 32)
    assert torch.equal(outputs, among_zeros[:size])


@pytest.mark.parametrize("technique", ["compile", "cuda_graphs", "checkpointing"])
def test_techniques_that_transformer_engine_has_of_its_own_are_refused(library, monkeypatch, technique):
    monkeypatch.setattr("bench.training.step.require_supported", lambda *_: None)
    with pytest.raises(UnsupportedError, match=f"te-bf16 is not offered with {technique.replace('_', '-')}"):
        make("te-bf16", Techniques(**{technique: True}), model=wide)


def test_gradients_that_are_accumulated_have_a_region_for_each_part(library):
    arm = make("te-fp8", Techniques(grad_accumulation=2), model=wide)
    training_step(arm, batch())
    assert library.entered == [DelayedScaling()] * 2
