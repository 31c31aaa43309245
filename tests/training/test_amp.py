"""Changes that a precision makes: fp32 switches, autocast, loss scaling, and the type of the
weights.
"""

from functools import partial
from operator import attrgetter
from unittest import mock

import pytest
import torch
from torch import nn

from bench.devices import capabilities
from bench.devices.backend import backend_of
from bench.measure.memory import tensor_bytes
from bench.spec.precisions import PRECISIONS, parse_precision
from bench.training import amp
from bench.training.step import train_epoch, training_step
from tests.training.conftest import CPU, batches, make, norms, same, train, weights

GPU = torch.device("cuda", 0)
NEWER = hasattr(torch.backends, "fp32_precision")


def switches():
    return [attrgetter(part)(torch.backends).fp32_precision for part in capabilities.PARTS]


UNTOUCHED = switches() if NEWER else []
"""torch's switches before any test, as it comes."""
newer = pytest.mark.skipif(not NEWER, reason="torch has fp32_precision from 2.9 on")


@pytest.fixture(autouse=True)
def fp32_afterwards():
    yield
    amp.apply(PRECISIONS["fp32"])


@newer
@pytest.mark.parametrize(
    ("name", "setting"), [("tf32", "tf32"), ("fp32", "ieee"), ("amp-bf16", "ieee")]
)
def test_fp32_turns_tf32_off_everywhere_and_tf32_turns_it_on(name, setting):
    amp.apply(PRECISIONS[name])
    for part in (torch.backends, torch.backends.cudnn, torch.backends.mkldnn):
        assert part.fp32_precision == setting
    assert set(switches()) == {setting}
    read = amp.read_back(PRECISIONS[name], CPU)
    for operation in ("matmul", "conv", "rnn"):
        assert getattr(read, f"fp32_{operation}") == setting


@newer
@pytest.mark.parametrize("before", ["tf32", "fp32"])
def test_default_is_the_state_in_which_torch_comes(before):
    amp.apply(PRECISIONS[before])
    amp.apply(PRECISIONS["default"])
    assert switches() == UNTOUCHED
    assert backend_of(GPU).fp32_switches() == ("ieee", "tf32", "tf32")
    assert backend_of(CPU).fp32_switches() == ("ieee", "ieee", "ieee")


@newer
def test_each_devices_own_switches_are_read_back_and_not_what_was_asked():
    amp.apply(PRECISIONS["fp32"])
    torch.backends.mkldnn.matmul.fp32_precision = "bf16"
    torch.backends.cuda.matmul.fp32_precision = "tf32"
    torch.backends.fp32_precision = "tf32"  # as a model may; it has no effect (pytorch#179445)
    assert amp.read_back(PRECISIONS["fp32"], CPU).fp32_matmul == "bf16"
    assert backend_of(GPU).fp32_switches() == ("tf32", "ieee", "ieee")


@pytest.mark.parametrize(
    ("name", "in_matmul", "in_cudnn"),
    [
        ("tf32", "tf32", "tf32"),
        ("default", "ieee", "tf32"),
        ("fp32", "ieee", "ieee"),
    ],
)
def test_the_older_interface_is_used_where_there_is_no_newer_one(
    monkeypatch, name, in_matmul, in_cudnn
):
    backends = mock.Mock(spec=["cuda", "cudnn"])
    monkeypatch.setattr(capabilities, "_backends", backends)
    amp.apply(PRECISIONS[name])
    assert backends.cuda.matmul.allow_tf32 is (in_matmul == "tf32")
    assert backends.cudnn.allow_tf32 is (in_cudnn == "tf32")
    assert backend_of(CPU).fp32_switches() == (in_matmul, in_cudnn, in_cudnn)


def test_only_fp16_precisions_scale_their_loss_with_torchs_own_defaults_unless_others_are_named():
    usual = torch.amp.GradScaler("cpu").state_dict()
    for name, precision in PRECISIONS.items():
        scaler = amp.grad_scaler(precision, CPU)
        expected = usual if name in ("amp-fp16", "fp16-master") else {}
        assert scaler.state_dict() == expected
    named = parse_precision("amp-fp16:growth_interval=5")
    scaler = amp.grad_scaler(named, CPU)
    assert scaler.get_growth_interval() == 5


@pytest.mark.parametrize(
    ("name", "caches"),
    [
        ("amp-bf16", True),
        ("amp-bf16:cache=off", False),
    ],
)
def test_autocast_caches_its_copies_of_weights_unless_told_not_to(name, caches):
    with amp.autocast(parse_precision(name), CPU):
        assert torch.is_autocast_cache_enabled() is caches


def keep_outputs(module):
    """Return a list that takes what a module returns from now on."""
    kept = []
    module.register_forward_hook(lambda _module, _inputs, outputs: kept.append(outputs))
    return kept


def test_a_step_with_a_master_copy_is_the_eight_steps_of_the_paper():
    arm = make("fp16-master:scale=128", model=norms)
    (batch,) = batches(1)
    conv, norm, *_ = arm.model
    outputs = keep_outputs(conv)
    losses = keep_outputs(arm.criterion)
    gradients = []
    conv.weight.register_hook(lambda gradient: gradients.append(gradient.clone()))
    master, *_ = arm.weights.trained()
    before = master.detach().clone()
    assert torch.equal(conv.weight, before.half())  # 1: an fp16 copy of fp32 weights
    training_step(arm, batch)
    (output,) = outputs
    assert output.dtype == torch.float16  # 2: forward in fp16
    (loss,) = losses
    assert loss.dtype == torch.float32  # 3: loss in fp32
    (gradient,) = gradients
    assert gradient.dtype == torch.float16  # 5: backward in fp16
    # 4, 6 and 7: times the scale, to fp32, and divided by the scale.
    unscaled = gradient.float() / 128
    plain = make("fp32", model=norms)
    training_step(plain, batch)
    expected = plain.model[0].weight.grad
    torch.testing.assert_close(unscaled, expected, rtol=0.05, atol=1e-3)
    # 8: the fp32 master is updated.
    moved = before.sub(unscaled, alpha=0.1)
    assert torch.equal(master, moved)
    assert torch.equal(conv.weight, master.half())
    assert norm.weight.dtype == torch.float32
    assert norm.running_var.dtype == torch.float32
    assert conv.weight.grad is None  # what was widened is not kept twice


@pytest.mark.parametrize(
    ("name", "clip_grad", "after"),
    [
        ("fp16-master", None, 2**15),
        ("amp-fp16", 1.0, 2**15),
        ("amp-fp16:init_scale=128", None, 64),
        ("amp-fp16:scale=128", None, 128),
    ],
)
def test_an_overflow_skips_the_step_and_halves_a_scale_that_is_not_static(name, clip_grad, after):
    arm = make(name, model=norms, clip_grad=clip_grad)
    (batch,) = batches(1)
    inputs, targets = batch
    trained = [*arm.weights.trained(), *arm.model.parameters()]
    before = [weight.detach().clone() for weight in trained]
    overflow = (inputs * 1e30, targets)
    epoch = train_epoch(arm, iter([overflow]))
    assert epoch.skipped_steps == 1
    assert same(before, trained)
    epoch = train_epoch(arm, iter([batch]))
    assert epoch.skipped_steps == 0
    assert not same(before, trained)
    assert arm.loss_scale == after


@pytest.mark.parametrize(
    ("name", "dtype"),
    [
        ("fp16", torch.float16),
        ("bf16", torch.bfloat16),
    ],
)
def test_without_a_master_everything_but_the_loss_is_in_16_bits(name, dtype):
    arm = make(name, model=norms)
    losses = keep_outputs(arm.criterion)
    train(arm, batches(1))
    (loss,) = losses
    assert loss.dtype == torch.float32
    for moment in arm.optimizer.state.values():
        assert moment["momentum_buffer"].dtype == dtype
    for key, value in arm.model.state_dict().items():
        is_counter = key.endswith("num_batches_tracked")
        assert value.dtype == (torch.int64 if is_counter else dtype)


def tied(_data):
    """A model that uses a weight twice, with a bias that is frozen."""
    first = nn.Linear(192, 192, bias=False)
    second = nn.Linear(192, 192)
    second.weight = first.weight
    second.bias.requires_grad_(False)
    return nn.Sequential(nn.Flatten(), first, second)


def test_a_weight_that_is_used_twice_has_one_master_and_a_frozen_one_stays():
    arm = make("fp16-master", model=tied)
    weight, bias = arm.weights.trained()
    weight_before = weight.clone()
    bias_before = bias.clone()
    train(arm, batches(2))
    assert not torch.equal(weight, weight_before)
    assert torch.equal(bias, bias_before)
    *_, last = arm.model
    assert torch.equal(last.weight, weight.half())


def test_masters_count_as_parameters_in_memory():
    arm = make("fp16-master")
    step = partial(train, arm, batches(1))
    step()
    counted = tensor_bytes(step, CPU, modules=[arm.model], optimizers=[arm.optimizer])
    count = weights(arm).numel()
    assert counted["parameter_bytes"] == (2 + 4) * count
    assert counted["gradient_bytes"] == 4 * count
