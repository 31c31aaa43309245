"""Every technique trains as the plain step does."""

import copy
from unittest import mock

import pytest
import torch
from torch import nn

from bench.spec.errors import UnsupportedError
from bench.spec.suite import Data
from bench.spec.techniques import PLAIN, Techniques, parse_techniques, refusal
from bench.spec.techniques import techniques as named
from bench.training.step import evaluate, train_epoch, training_step
from bench.training.techniques import fused
from tests.training import conftest
from tests.training.conftest import batches, layers, momentum, norms, plain_sgd, same, state

FLAT = Data(input_shape=(192,), classes=3)
(BATCH,) = batches(1)


def make(techniques=PLAIN, precision="fp32", **given):
    return conftest.make(precision, techniques, **{"model": norms, **given})


def noisy(data):
    """Blocks with batch norm, and one with dropout, behind a batch norm of its own."""
    model = norms(data)
    model[2].append(nn.Dropout(0.5))
    return model


def train(techniques, precision, model):
    """Return the losses and what was learned, batch norm's statistics and counters included."""
    arm = make(techniques, precision, model=model)
    torch.manual_seed(5)
    losses = conftest.train(arm, batches())
    return torch.tensor(losses), state(arm)


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16", "amp-fp16", "fp16-master"])
@pytest.mark.parametrize(
    "techniques", [Techniques(set_to_none=False), Techniques(checkpointing=True)]
)
def test_zeroing_and_checkpointing_change_no_bit(precision, techniques):
    plain = train(PLAIN, precision, noisy)
    assert same(plain, train(techniques, precision, noisy))


@pytest.mark.parametrize("set_to_none", [True, False])
@pytest.mark.parametrize("precision", ["fp32", "fp16-master"])
def test_without_set_to_none_gradients_are_zeroed_where_they_are(precision, set_to_none):
    arm = make(Techniques(set_to_none=set_to_none), precision)
    weight, *_ = arm.weights.trained()
    training_step(arm, BATCH)
    held = weight.grad
    training_step(arm, BATCH)
    assert (weight.grad is held) != set_to_none


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "fp16-master"])
@pytest.mark.parametrize(
    ("techniques", "model"),
    [
        (Techniques(channels_last=True), norms),
        (Techniques(fused_optimizer=True), norms),
        (Techniques(grad_accumulation=4), layers),  # no layer that looks across samples
    ],
)
def test_layout_fused_steps_and_accumulation_change_roundings_alone(precision, techniques, model):
    plain = train(PLAIN, precision, model)
    tolerance = 1e-5 if precision == "fp32" else 1e-2
    changed = train(techniques, precision, model)
    torch.testing.assert_close(changed, plain, rtol=tolerance, atol=tolerance)


def keep_inputs(module):
    """Return a list that takes the inputs of a module from now on."""
    kept = []
    module.register_forward_pre_hook(lambda _module, inputs: kept.extend(inputs))
    return kept


@pytest.mark.parametrize("wanted", [False, True])
def test_channels_last_reaches_weights_and_inputs_also_in_evaluation(wanted):
    arm = make(Techniques(channels_last=wanted))
    conv, *_ = arm.model
    inputs = keep_inputs(conv)
    training_step(arm, BATCH)
    evaluate(arm, iter([BATCH]))
    assert len(inputs) == 2
    for tensor in (conv.weight, *inputs):
        assert tensor.is_contiguous(memory_format=torch.channels_last) is wanted


def test_a_batch_in_parts_runs_forward_once_for_each_and_steps_once():
    arm = make(Techniques(grad_accumulation=4), model=layers)
    parts = keep_inputs(arm.model)
    training_step(arm, BATCH)
    assert list(map(len, parts)) == [2, 2, 2, 2]
    assert arm.taken.count == 1


def test_a_checkpointed_block_runs_again_in_backward_and_not_when_evaluated():
    arm = make(Techniques(checkpointing=True))
    _, _, block, *_ = arm.model
    runs = keep_inputs(block[-1])
    training_step(arm, BATCH)
    evaluate(arm, iter([BATCH]))
    assert len(runs) == 2 + 1


def test_a_copy_of_a_checkpointed_model_runs_its_own_layers():
    arm = make(Techniques(checkpointing=True))
    copied = copy.deepcopy(arm.model)
    for weight in copied.parameters():
        nn.init.zeros_(weight)
    inputs, _ = BATCH
    assert not copied(inputs).any()


def adamw(parameters):
    return torch.optim.AdamW(parameters, lr=0.01, weight_decay=0.1, betas=(0.8, 0.9))


@pytest.mark.parametrize("optimizer", [momentum, plain_sgd(0.1), adamw])
def test_a_fused_optimizer_skips_and_counts_steps_that_overflow_as_the_plain_one_does(optimizer):
    inputs, targets = BATCH
    overflow = (inputs * 1e30, targets)
    learned = []
    for technique in (PLAIN, Techniques(fused_optimizer=True)):
        arm = make(technique, "amp-fp16", model=layers, optimizer=optimizer)
        (group,) = arm.optimizer.param_groups
        assert bool(group["fused"]) == technique.fused_optimizer
        epoch = train_epoch(arm, iter([overflow, BATCH, BATCH, overflow, BATCH]))
        assert epoch.skipped_steps == 2
        assert arm.taken.count == 3
        assert arm.loss_scale == 2.0**14
        learned.append(state(arm))
    torch.testing.assert_close(*learned, rtol=1e-5, atol=1e-6)


def test_a_groups_own_settings_are_kept_by_the_fused_optimizer():
    weight, bias = nn.Linear(2, 2).parameters()
    groups = [{"params": weight, "lr": 0.5}, {"params": bias, "weight_decay": 0.2}]
    optimizer = fused(torch.optim.AdamW(groups, lr=0.1))
    first, second = optimizer.param_groups
    assert first["lr"] == 0.5
    assert first["weight_decay"] == 0.01
    assert second["lr"] == 0.1
    assert second["weight_decay"] == 0.2


class Own(torch.optim.SGD):
    """An optimizer of a user's own."""

    def __init__(self, parameters):
        super().__init__(parameters)


@pytest.mark.parametrize(
    ("techniques", "given", "reason"),
    [
        (Techniques(channels_last=True), {"data": FLAT}, "small is not trained on images"),
        (Techniques(fused_optimizer=True), {"optimizer": Own}, "which Own lacks"),
        (Techniques(checkpointing=True), {"model": lambda data: nn.Flatten()}, "Flatten has none"),
        (
            Techniques(checkpointing=True, compile=True),
            {},
            "keep batch norm from counting a batch twice",
        ),
    ],
)
def test_techniques_that_a_suite_or_device_cannot_have_are_refused(
    monkeypatch, techniques, given, reason
):
    monkeypatch.setattr("bench.training.techniques.load_compiler", lambda kind: None)
    with pytest.raises(UnsupportedError, match=reason):
        make(techniques, **given)


@pytest.mark.parametrize(
    ("names", "kind", "phase", "reason"),
    [
        ("non-blocking", "cpu", "train", "non-blocking copies go to a GPU"),
        ("channels-last,cuda-graphs", "cpu", "speed", "cuda-graphs needs a CUDA device"),
        ("sync-bn", "cpu", "speed", "torch's SyncBatchNorm, which needs GPUs"),
        ("compile", "cpu", "numerics", "numerics looks"),
        ("cuda-graphs,checkpointing", "cuda", "speed", "random generator"),
        ("compile=max-autotune,cuda-graphs", "cuda", "memory", "its own CUDA graphs"),
        ("non-blocking,cuda-graphs", "cuda", "speed", None),
        ("sync-bn", "cuda", "speed", None),
        ("channels-last,compile=max-autotune,checkpointing", "cpu", "memory", None),
    ],
)
def test_what_a_device_or_phase_cannot_do_is_known_from_the_names(names, kind, phase, reason):
    ranks = 2 if names == "sync-bn" else 1
    answer = refusal(tuple(names.split(",")), kind, phase, ranks)
    if reason is None:
        assert answer is None
    else:
        assert reason in answer


@pytest.mark.parametrize(
    ("name", "modes"),
    [
        ("compile", [None]),
        ("compile=max-autotune", ["max-autotune"]),
        ("channels-last", []),
    ],
)
def test_torchs_compiler_is_given_the_mode(monkeypatch, name, modes):
    compiler = mock.Mock()
    monkeypatch.setattr("bench.training.techniques.load_compiler", lambda kind: None)
    monkeypatch.setattr(torch, "compile", compiler)
    make(named(parse_techniques(name)))
    assert [call.kwargs["mode"] for call in compiler.mock_calls] == modes
