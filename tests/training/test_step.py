from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Data, Suite
from bench.spec.techniques import Techniques
from bench.training import amp, distributed
from bench.training.step import build_arm, evaluate, evaluate_fp32, train_epoch, training_step

CPU = torch.device("cpu")
DATA = Data(input_shape=(6,), classes=3)


def make(precision="fp32", seed=0, steps=None, clip_grad=None, **changes):
    given = {
        "name": "small",
        "title": "",
        "data": DATA,
        "model": lambda data: nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3)),
        "optimizer": lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
        "batch_size": 8,
    }
    suite = Suite(**{**given, **changes})
    return build_arm(suite, DATA, PRECISIONS[precision], CPU, seed=seed, steps=steps, clip_grad=clip_grad)


def batches(count=5):
    chance = torch.Generator().manual_seed(1)
    return [(torch.randn(8, 6, generator=chance), torch.randint(0, 3, (8,), generator=chance)) for _ in range(count)]


def weights(arm):
    return torch.cat([p.detach().flatten() for p in arm.model.parameters()])


def test_the_step_is_plain_sgd_in_fp32():
    arm, data = make(), batches()
    for inputs, targets in data:
        training_step(arm, inputs, targets)
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for inputs, targets in data:
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(inputs), targets).backward()
        optimizer.step()
    assert torch.equal(weights(arm), torch.cat([p.detach().flatten() for p in model.parameters()]))


@pytest.mark.parametrize("precision", ["amp-fp16", "amp-bf16"])
def test_every_precision_starts_from_the_same_weights_and_trains_fp32_ones(precision):
    plain, mixed = make(), make(precision)
    initial = weights(plain)
    assert torch.equal(initial, weights(mixed))
    for inputs, targets in batches():
        losses = training_step(plain, inputs, targets), training_step(mixed, inputs, targets)
        assert losses[1].item() == pytest.approx(losses[0].item(), rel=0.02)
    assert weights(mixed).dtype == torch.float32
    assert not torch.equal(weights(plain), weights(mixed))
    moved = (weights(plain) - initial).norm()
    assert (weights(plain) - weights(mixed)).norm() < 0.1 * moved


def test_another_seed_starts_from_other_weights():
    assert not torch.equal(weights(make(seed=0)), weights(make(seed=1)))


def test_the_model_computes_in_the_precisions_type():
    seen = []

    class Spy(nn.Linear):
        def forward(self, inputs):
            outputs = super().forward(inputs)
            seen.append(outputs.dtype)
            return outputs

    for name in ("fp32", "amp-bf16", "amp-fp16"):
        training_step(make(name, model=lambda data: Spy(6, 3)), *batches(1)[0])
    assert seen == [torch.float32, torch.bfloat16, torch.float16]


def test_a_step_with_infinite_gradients_is_skipped_and_counted():
    arm = make("amp-fp16")
    before = weights(arm)
    inputs, targets = batches(1)[0]
    epoch = train_epoch(arm, iter([(inputs * 1e30, targets), (inputs * 1e30, targets)]))
    assert epoch.skipped_steps == 2
    assert torch.equal(weights(arm), before)
    assert train_epoch(make(), iter(batches())).skipped_steps == 0


def test_an_epoch_trains_on_every_batch_and_steps_the_schedule():
    arm = make(schedule=torch.optim.lr_scheduler.CosineAnnealingLR, steps=5)
    epoch = train_epoch(arm, iter(batches(5)))
    assert epoch.samples == 40
    assert arm.taken.count == 5
    assert arm.optimizer.param_groups[0]["lr"] == pytest.approx(0)
    assert 0 < epoch.wait_seconds < epoch.seconds
    assert epoch.loss == pytest.approx(1.1, abs=0.3)  # about ln 3 for random labels


def test_evaluation_weighs_batches_by_their_size_and_leaves_training_mode_and_weights_alone():
    arm = make(model=lambda data: nn.Sequential(nn.Dropout(0.5), nn.Linear(6, 3)))
    before = weights(arm)
    (inputs, targets), _ = batches(2)
    loss, accuracy = evaluate(arm, iter([(inputs[:2], targets[:2]), (inputs[2:], targets[2:])]))
    with torch.no_grad():
        outputs = arm.model[1](inputs)
    assert loss == pytest.approx(float(nn.functional.cross_entropy(outputs, targets)), rel=1e-5)
    assert accuracy == pytest.approx(100 * float((outputs.argmax(1) == targets).float().mean()))
    assert arm.model.training
    assert torch.equal(weights(arm), before)


def test_regression_has_a_loss_and_no_accuracy():
    data = Data(input_shape=(6,), target_shape=(3,))
    suite = Suite(
        name="regression",
        title="",
        data=data,
        model=lambda data: nn.Linear(6, 3),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1),
        batch_size=4,
    )
    arm = build_arm(suite, data, PRECISIONS["fp32"], CPU, seed=0)
    assert isinstance(arm.loss, nn.MSELoss)
    loss, accuracy = evaluate(arm, iter([(torch.zeros(4, 6), torch.zeros(4, 3))]))
    assert loss > 0
    assert accuracy is None


def step_taken(precision, clip_grad):
    """Return how far one step of plain SGD at rate 1 moves the weights."""
    arm = make(precision, clip_grad=clip_grad, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
    before = weights(arm)
    training_step(arm, *batches(1)[0])
    return float((weights(arm) - before).norm())


@pytest.mark.parametrize("precision", ["fp32", "amp-fp16", "amp-bf16"])
def test_clipping_limits_the_norm_of_the_gradients_themselves_not_of_the_scaled_ones(precision):
    free = step_taken(precision, None)
    assert free > 0.1
    assert step_taken(precision, 0.05) == pytest.approx(0.05, rel=1e-3)
    assert step_taken(precision, 100.0) == pytest.approx(free)


def test_a_step_with_infinite_gradients_is_skipped_also_when_clipping():
    arm = make("amp-fp16", clip_grad=1.0)
    before = weights(arm)
    inputs, targets = batches(1)[0]
    assert train_epoch(arm, iter([(inputs * 1e30, targets)])).skipped_steps == 1
    assert torch.equal(weights(arm), before)
    assert arm.scaler.get_scale() == 2.0**15


def test_evaluation_in_fp32_is_that_of_an_fp32_arm_and_leaves_the_arm_as_it_was():
    plain, mixed = make("fp32"), make("amp-bf16")
    found = evaluate_fp32(mixed, iter(batches()))
    assert found == evaluate(plain, iter(batches()))
    assert found != evaluate(mixed, iter(batches()))
    assert mixed.precision.name == "amp-bf16"
    assert mixed.model.training


def test_evaluation_in_fp32_switches_tf32_off_and_back_on():
    arm, seen = make("tf32"), []
    arm.model.register_forward_pre_hook(lambda *_: seen.append(amp.read_back(arm.precision, CPU).fp32_matmul))
    amp.apply(arm.precision)
    try:
        evaluate(arm, iter(batches(1)))
        evaluate_fp32(arm, iter(batches(1)))
        evaluate(arm, iter(batches(1)))
    finally:
        amp.apply(PRECISIONS["fp32"])
    assert seen == ["tf32", "ieee", "tf32"]


def test_a_batch_that_has_no_equal_parts_is_not_trained_on_wrongly():
    arm = replace(make(), techniques=Techniques(grad_accumulation=3))
    before = weights(arm)
    with pytest.raises(ValueError, match="a batch of 8 cannot be cut into 3 equal parts"):
        training_step(arm, *batches(1)[0])
    assert torch.equal(weights(arm), before)


def test_the_wait_for_data_includes_that_for_word_that_there_are_no_more(monkeypatch):
    now_s = 0

    def slow(given):
        nonlocal now_s
        for pair in given:
            now_s += 2
            yield pair
        now_s += 5

    monkeypatch.setattr("bench.training.step.time", SimpleNamespace(perf_counter_ns=lambda: now_s * 10**9))
    monkeypatch.setattr("bench.training.distributed.time", SimpleNamespace(perf_counter_ns=lambda: now_s * 10**9))
    epoch = train_epoch(make(), slow(batches(3)))
    assert epoch.wait_seconds == epoch.seconds == 3 * 2 + 5


def test_each_part_of_a_batch_has_a_dropout_of_its_own_and_all_have_the_same_weights(monkeypatch):
    monkeypatch.setattr(distributed, "ranks", lambda: 2)
    monkeypatch.setattr(distributed, "parallel", lambda model, device, techniques: model)
    found = []
    for rank in (0, 1, 1):
        monkeypatch.setattr(distributed, "rank", lambda rank=rank: rank)
        arm = make(seed=3, model=lambda data: nn.Sequential(nn.Dropout(0.5), nn.Linear(64, 3)))
        found.append((weights(arm), arm.model[0](torch.ones(64)) > 0))
    first, second, again = found
    assert torch.equal(first[0], second[0])
    assert not torch.equal(first[1], second[1])
    assert torch.equal(second[1], again[1])  # of one seed it repeats
