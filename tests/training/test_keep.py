"""Modules that a precision keeps in fp32."""

import copy
import math
import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.phases.layers.next_step import snippet
from bench.spec.errors import UsageError
from bench.spec.precisions import keeping, parse_precision
from bench.spec.suite import Data
from bench.spec.techniques import techniques
from bench.training.step import leave_gradients, training_step
from tests.training.conftest import make, plain_sgd, train

BATCH = (torch.randn(8, 16, generator=torch.Generator().manual_seed(0)), torch.arange(8) % 4)


class Net(nn.Module):
    """A body of two blocks and a head."""

    def __init__(self) -> None:
        super().__init__()
        blocks = [nn.Sequential(nn.Linear(16, 16), nn.LayerNorm(16)) for _ in range(2)]
        self.body = nn.Sequential(*blocks)
        self.head = nn.Linear(16, 4)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu())


class TiedNet(Net):
    """The same, with a linear layer that has another one's weight."""

    def __init__(self) -> None:
        super().__init__()
        self.body[1][0].weight = self.body[0][0].weight


def build(precision, model=Net, **options):
    data = Data(input_shape=(16,), classes=4)
    return make(precision, model=model, optimizer=plain_sgd(0.1), data=data, **options)


def losses(precision, **options):
    return train(build(precision, **options), [BATCH] * 3)


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16"])
def test_with_all_modules_kept_losses_are_those_of_fp32(precision):
    assert losses(f"{precision}:keep=*") == losses("fp32") != losses(precision)


def test_kept_modules_get_and_give_fp32_and_the_others_are_narrow():
    arm = build("amp-bf16:keep=body.*.1+head")
    names = {module: name for name, module in arm.model.named_modules()}
    seen = {}

    def keep_type(module, _inputs, output):
        seen[names[module]] = output.dtype

    for module in names:
        module.register_forward_hook(keep_type)
    with arm.autocast():
        arm.model(BATCH[0])
    for name in ("body.0.1", "body.1.1", "head"):
        assert seen[name] == torch.float32
    for name in ("body.0.0", "body.1.0"):
        assert seen[name] == torch.bfloat16


def test_a_copy_of_the_model_keeps_its_own_modules():
    arm = build("amp-bf16:keep=head")
    twin = copy.deepcopy(arm.model)
    nn.utils.vector_to_parameters(torch.zeros(2000), twin.parameters())
    with arm.autocast():
        assert not twin(BATCH[0]).any()
        assert arm.model(BATCH[0]).any()


@pytest.mark.parametrize(
    ("pattern", "says"),
    [
        ("haed", "no module of the model is called 'haed'. Did you mean 'head'?"),
        ("bod", "is called 'bod'."),
    ],
)
def test_a_pattern_without_a_match_is_refused_with_the_nearest_name(pattern, says):
    with pytest.raises(UsageError, match=re.escape(says)):
        build(f"amp-bf16:keep={pattern}")


def test_a_weight_that_a_kept_module_shares_is_cast_for_the_other():
    kept = losses("amp-bf16:keep=body.0.0", model=TiedNet)
    assert all(map(math.isfinite, kept))
    assert kept != losses("amp-bf16", model=TiedNet)


@pytest.mark.parametrize(
    "names",
    [
        ("checkpointing",),
        ("grad-accumulation=2",),
        pytest.param(("compile",), marks=pytest.mark.slow),
    ],
)
def test_techniques_treat_a_kept_module_as_any(names):
    arm = build("amp-bf16:keep=body.0.1+head", techniques=techniques(names), model=Nested)
    assert torch.isfinite(training_step(arm, BATCH))


class Nested(Net):
    """Its blocks hold layers within a container, which checkpointing wraps."""

    def __init__(self) -> None:
        super().__init__()
        first, second = self.body
        inner = nn.Sequential(*first)
        self.body = nn.Sequential(
            nn.Sequential(inner, nn.GELU()),
            nn.Sequential(second, nn.GELU()),
        )

    def forward(self, inputs):
        return self.head(self.body(inputs.flatten(1)).relu())


@pytest.mark.parametrize("patterns", ["head", "body.*.1", "body", "body.0.0+head"])
def test_the_code_for_a_loop_of_ones_own_gives_the_same_gradients(patterns):
    arm = build(keeping("amp-bf16", patterns))
    leave_gradients(arm, BATCH)
    other = build("amp-bf16")
    exec(snippet(patterns), {"model": other.model, "device": SimpleNamespace(type="cpu")})
    leave_gradients(other, BATCH)
    for ours, theirs in zip(arm.model.parameters(), other.model.parameters(), strict=True):
        assert torch.equal(ours.grad, theirs.grad)


def test_the_option_has_one_spelling():
    assert parse_precision("amp-bf16:keep= head + body.*").name == "amp-bf16:keep=body.*+head"
    assert keeping("amp-fp16:init_scale=1024", "head") == "amp-fp16:init_scale=1024,keep=head"


@pytest.mark.parametrize("word", ["tf32:keep=head", "bf16:keep=head", "amp-bf16:keep="])
def test_nothing_is_kept_where_nothing_is_narrow_or_named(word):
    with pytest.raises(UsageError):
        parse_precision(word)
