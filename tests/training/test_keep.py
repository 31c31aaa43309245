"""Modules that a precision keeps in fp32."""

import copy
import math
from collections import OrderedDict

import pytest
import torch
from torch import nn

from bench.phases.layers.next_step import snippet
from bench.spec.errors import UsageError
from bench.spec.precisions import keeping, parse_precision
from bench.spec.suite import Data
from bench.spec.techniques import techniques
from bench.training.step import leave_gradients, training_step
from tests.training.conftest import CPU, make, plain_sgd, same, train

INPUTS = torch.randn(8, 16, generator=torch.Generator().manual_seed(0))
BATCH = (INPUTS, torch.arange(8) % 4)


def net(_data):
    """A body of two blocks, the second's linear layer in a container of its own, and a head."""
    inner = nn.Sequential(nn.Linear(16, 16))
    body = nn.Sequential(
        nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)),
        nn.Sequential(inner, nn.LayerNorm(16)),
    )
    parts = OrderedDict(body=body, activation=nn.ReLU(), head=nn.Linear(16, 4))
    return nn.Sequential(parts)


def build(precision, model=net, **options):
    data = Data(input_shape=(16,), classes=4)
    optimizer = plain_sgd(0.1)
    return make(precision, model=model, optimizer=optimizer, data=data, **options)


def losses(precision, **options):
    return train(build(precision, **options), [BATCH] * 3)


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16"])
def test_with_all_modules_kept_losses_are_those_of_fp32(precision):
    fp32 = losses("fp32")
    assert losses(f"{precision}:keep=*") == fp32
    assert losses(precision) != fp32


def test_kept_modules_give_fp32_and_the_others_are_narrow():
    arm = build("amp-bf16:keep=body.*.1+head")
    types = {}

    def keep_type(module, _inputs, output):
        types[module] = output.dtype

    for module in arm.model.modules():
        module.register_forward_hook(keep_type)
    with arm.autocast():
        arm.model(INPUTS)
    (linear, norm), (inner, inner_norm) = arm.model.body
    for narrow in (linear, inner):
        assert types[narrow] == torch.bfloat16
    for kept in (norm, inner_norm, arm.model.head):
        assert types[kept] == torch.float32


def test_a_copy_of_the_model_keeps_its_own_modules():
    arm = build("amp-bf16:keep=head")
    twin = copy.deepcopy(arm.model)
    for weight in twin.head.parameters():
        nn.init.zeros_(weight)
    with arm.autocast():
        assert not twin(INPUTS).any()


def test_a_pattern_without_a_match_is_refused_with_the_nearest_name():
    message = r"no module of the model is called 'haed'\. Did you mean 'head'\?"
    with pytest.raises(UsageError, match=message):
        build("amp-bf16:keep=haed")


def test_a_weight_that_a_kept_module_shares_is_cast_for_the_other():
    def tied(data):
        model = net(data)
        (first, _), ((second,), _) = model.body
        second.weight = first.weight
        return model

    kept = losses("amp-bf16:keep=body.0.0", model=tied)
    assert all(map(math.isfinite, kept))
    assert kept != losses("amp-bf16", model=tied)


@pytest.mark.parametrize(
    "name",
    [
        "checkpointing",
        "grad-accumulation=2",
        pytest.param("compile", marks=pytest.mark.slow),
    ],
)
def test_techniques_treat_a_kept_module_as_any(name):
    arm = build("amp-bf16:keep=body.0.1+head", techniques=techniques([name]))
    assert torch.isfinite(training_step(arm, BATCH))


def gradients(arm):
    return [weight.grad for weight in arm.model.parameters()]


@pytest.mark.parametrize("patterns", ["head", "body.*.1", "body", "body.0.0+head"])
def test_the_code_for_a_loop_of_ones_own_gives_the_same_gradients(patterns):
    arm = build(keeping("amp-bf16", patterns))
    leave_gradients(arm, BATCH)
    other = build("amp-bf16")
    exec(snippet(patterns), {"model": other.model, "device": CPU})
    leave_gradients(other, BATCH)
    assert same(gradients(arm), gradients(other))


def test_the_option_has_one_spelling():
    assert parse_precision("amp-bf16:keep= head + body.*").name == "amp-bf16:keep=body.*+head"
    assert keeping("amp-fp16:init_scale=1024", "head") == "amp-fp16:init_scale=1024,keep=head"


@pytest.mark.parametrize("word", ["tf32:keep=head", "bf16:keep=head", "amp-bf16:keep="])
def test_nothing_is_kept_where_nothing_is_narrow_or_named(word):
    with pytest.raises(UsageError):
        parse_precision(word)
