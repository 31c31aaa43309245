import pytest
import torch
from torch import nn

from bench.data import Shard
from bench.measure.memory import tensor_bytes
from bench.spec.errors import UsageError
from bench.spec.precisions import parse_precision
from bench.spec.suite import Data, Suite
from bench.training.amp import Weights
from bench.training.checkpoint import Checkpoint
from bench.training.lightning import open_lightning
from bench.training.step import build_arm, evaluate, evaluate_fp32, train_epoch, training_step

CPU = torch.device("cpu")
DATA = Data(input_shape=(1, 6, 6), classes=3)


def layers(_data=None):
    return nn.Sequential(
        nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.LayerNorm(64), nn.Linear(64, 3)
    )


def sgd(parameters):
    return torch.optim.SGD(parameters, lr=0.05, momentum=0.9)


def make(name, seed=0, optimizer=sgd, model=layers, **more):
    suite = Suite(name="small", title="", data=DATA, model=model, optimizer=optimizer, batch_size=8)
    how = parse_precision(name) if isinstance(name, str) else name
    return build_arm(suite, DATA, how, CPU, seed=seed, **more)


def batches(count=4):
    chance = torch.Generator().manual_seed(1)
    shape = (8, 1, 6, 6)
    return [(torch.randn(shape, generator=chance), torch.randint(0, 3, (8,), generator=chance)) for _ in range(count)]


def train(arm, data):
    return [training_step(arm, *batch).item() for batch in data]


def same(one, other):
    return all(torch.equal(*pair) for pair in zip(one, other, strict=True))


@pytest.mark.parametrize(("name", "scale"), [("fp16-master:scale=128", 128), ("fp16-master", 2**16)])
def test_a_step_with_a_master_copy_is_the_eight_steps_of_the_paper(name, scale):
    arm, (batch,) = make(name), batches(1)
    conv, norm, linear = (arm.model[index] for index in (0, 1, 5))
    seen = {}

    def output_gradient(module, _inputs, outputs):
        outputs.register_hook(lambda gradient: seen.update({module: gradient.dtype}))
        seen["forward", module] = outputs.dtype

    for module in (conv, linear):
        module.register_forward_hook(output_gradient)
    arm.loss.register_forward_hook(lambda _module, inputs, loss: seen.update(loss=(inputs[0].dtype, loss.dtype)))
    conv.weight.register_hook(lambda gradient: seen.update(raw=gradient.clone()))
    scaled = {}
    master = arm.weights.trained()[0]
    unscale = arm.scaler._unscale_grads_

    def unscaling(*arguments):
        scaled["before"] = master.grad.clone()
        found = unscale(*arguments)
        scaled["after"] = master.grad.clone()
        return found

    arm.scaler._unscale_grads_ = unscaling
    before = master.detach().clone()
    assert torch.equal(conv.weight, before.half())  # 1: an fp16 copy of fp32 weights
    training_step(arm, *batch)
    assert seen["forward", conv] == seen["forward", linear] == torch.float16  # 2: forward in fp16
    assert seen["loss"] == (torch.float32, torch.float32)  # 3: loss in fp32
    assert seen[conv] == seen[linear] == seen["raw"].dtype == torch.float16  # 5: backward in fp16
    assert scaled["before"].dtype == torch.float32  # 6: gradients to fp32
    assert torch.equal(scaled["before"], seen["raw"].float())
    assert torch.equal(scaled["after"], scaled["before"] / scale)  # 4 and 7: times the scale, and divided by it
    plain = make("fp32")
    training_step(plain, *batch)
    assert torch.allclose(scaled["after"], plain.model[0].weight.grad, rtol=0.05, atol=1e-3)
    assert torch.equal(master, before - 0.05 * scaled["after"])  # 8: the master is updated
    assert torch.equal(conv.weight, master.half())
    assert {norm.weight.dtype, norm.running_var.dtype} == {torch.float32}
    assert conv.weight.grad is None  # what was widened is not kept twice


@pytest.mark.parametrize(("name", "kept"), [("fp16-master", True), ("fp16", False)])
def test_a_master_keeps_updates_that_16_bits_would_lose(name, kept):
    def ones(_data):
        model = nn.Sequential(nn.Flatten(), nn.Linear(36, 3, bias=False))
        nn.init.ones_(model[1].weight)
        return model

    arm = make(name, model=ones, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0001))
    (weight,) = arm.weights.trained()
    for _ in range(10):
        weight.grad = -torch.ones_like(weight)
        arm.optimizer.step()
    assert weight[0, 0].item() == pytest.approx(1.001 if kept else 1.0, rel=1e-6)
    assert arm.model[1].weight[0, 0].item() == (float(torch.tensor(1.001).half()) if kept else 1.0)


def test_with_fp32_everywhere_and_a_scale_of_one_it_is_plain_sgd_bit_for_bit():
    class Copies(Weights):
        """A master of every weight though its type is the master's own."""

        def __init__(self, model):
            super().__init__(model, parse_precision("fp32"))
            self._masters = {weight: nn.Parameter(weight.detach().clone()) for weight in model.parameters()}
            for weight in self._masters:
                weight.register_post_accumulate_grad_hook(self._widen_gradient)

    data, results = batches(), []
    for copies in (False, True):
        torch.manual_seed(0)
        model = layers()
        weights = Copies(model) if copies else Weights(model, parse_precision("fp32"))
        optimizer = sgd(weights.trained())
        weights.follow(optimizer)
        scaler = torch.amp.GradScaler("cpu", init_scale=1.0)
        for inputs, targets in data:
            optimizer.zero_grad()
            scaler.scale(nn.functional.cross_entropy(model(inputs), targets)).backward()
            scaler.step(optimizer)
            scaler.update()
        results.append(list(model.state_dict().values()))
    assert same(*results)
    arm = make("fp32")
    train(arm, data)
    assert same(arm.model.state_dict().values(), results[0])


@pytest.mark.parametrize(("name", "after"), [("fp16-master", 2**15), ("fp16-master:scale=128", 128)])
def test_an_overflow_skips_the_step_and_halves_a_dynamic_scale(name, after):
    arm, (inputs, targets) = make(name), batches(1)[0]
    before = [weight.detach().clone() for weight in (*arm.weights.trained(), *arm.model.parameters())]
    epoch = train_epoch(arm, iter([(inputs * 1e30, targets)]))
    assert epoch.skipped_steps == 1
    assert same(before, (*arm.weights.trained(), *arm.model.parameters()))
    assert arm.scaler.get_scale() == after


@pytest.mark.parametrize(("name", "dtype"), [("fp16", torch.float16), ("bf16", torch.bfloat16)])
def test_without_a_master_everything_but_the_loss_is_in_16_bits(name, dtype):
    arm, seen = make(name), []
    arm.loss.register_forward_hook(lambda _module, inputs, loss: seen.extend([inputs[0].dtype, loss.dtype]))
    train(arm, batches(2))
    state = [value for value in arm.model.state_dict().values() if value.is_floating_point()]
    moments = [moment["momentum_buffer"] for moment in arm.optimizer.state.values()]
    assert {value.dtype for value in (*state, *arm.model.parameters(), *moments)} == {dtype}
    assert set(seen) == {torch.float32}
    assert same(arm.weights.trained(), arm.model.parameters())
    assert arm.taken.count == 2


@pytest.mark.parametrize("name", ["amp-fp16-noscale", "fp16-master", "fp16", "bf16"])
def test_each_trains_nearly_as_fp32_does(name):
    losses, plain = train(make(name), batches()), train(make("fp32"), batches())
    assert losses == pytest.approx(plain, rel=0.05)
    assert losses != plain


@pytest.mark.parametrize("name", ["fp16-master", "fp16", "bf16"])
def test_evaluating_in_fp32_uses_the_masters_and_leaves_training_as_it_was(name):
    arm, undisturbed = make(name), make(name)
    data = batches(6)
    train(arm, data[:3])
    train(undisturbed, data[:3])
    seen = []
    arm.model[0].register_forward_hook(lambda module, _inputs, outputs: seen.append((outputs.dtype, module.weight[:])))
    found = evaluate_fp32(arm, iter(data))
    ((dtype, weight), *_) = seen
    assert dtype == torch.float32
    assert torch.equal(weight, arm.weights.trained()[0].float())
    plain = make("fp32", seed=3)
    plain.weights.load_state_dict(arm.weights.state_dict())
    assert found == evaluate(plain, iter(data))
    assert train(arm, data[3:]) == train(undisturbed, data[3:])
    assert same(arm.weights.trained(), undisturbed.weights.trained())


@pytest.mark.parametrize("name", ["fp16-master", "fp16", "bf16"])
def test_a_checkpoint_holds_the_masters_so_that_training_goes_on_with_the_same_bits(tmp_path, name):
    from bench.training.checkpoint import read_checkpoint

    arm, data = make(name), batches(6)
    train(arm, data[:3])
    Checkpoint.of(arm, "abc", []).write(tmp_path / "a.pt")
    other = make(name, seed=5)
    read_checkpoint(tmp_path / "a.pt").restore(other)
    assert train(arm, data[3:]) == train(other, data[3:])
    assert same(arm.weights.trained(), other.weights.trained())


def test_a_master_goes_on_from_an_fp32_checkpoint_and_back_without_loss(tmp_path):
    plain, mixed, back = make("fp32"), make("fp16-master", seed=5), make("fp32", seed=6)
    train(plain, batches(2))
    Checkpoint.of(plain, "abc", []).restore(mixed)
    assert same(plain.model.parameters(), mixed.weights.trained())
    Checkpoint.of(mixed, "abc", []).restore(back)
    assert same(plain.model.parameters(), back.model.parameters())


@pytest.mark.parametrize("name", ["fp16-master", "fp16-master:scale=4096"])
def test_clipping_limits_the_norm_of_the_masters_gradients(name):
    def moved(clip_grad):
        arm = make(name, clip_grad=clip_grad, optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1.0))
        before = torch.cat([weight.detach().flatten() for weight in arm.weights.trained()])
        train(arm, batches(1))
        return float((torch.cat([weight.detach().flatten() for weight in arm.weights.trained()]) - before).norm())

    assert moved(None) > 0.1
    assert moved(0.05) == pytest.approx(0.05, rel=1e-3)


def test_a_weight_that_is_used_twice_has_one_master_and_a_frozen_one_stays():
    class Twice(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two = nn.Linear(36, 36, bias=False), nn.Linear(36, 36)
            self.two.weight = self.one.weight
            self.two.bias.requires_grad_(False)

        def forward(self, inputs):
            return self.two(self.one(inputs.flatten(1)))

    arm = make("fp16-master", model=lambda _data: Twice())
    masters = [weight.detach().clone() for weight in arm.weights.trained()]
    assert len(masters) == 2
    train(arm, batches(2))
    weight, bias = arm.weights.trained()
    assert not torch.equal(weight, masters[0])
    assert torch.equal(bias, masters[1])
    assert torch.equal(arm.model.two.weight, weight.half())
    assert set(arm.weights.state_dict()) == {"one.weight", "two.weight", "two.bias"}
    assert torch.equal(arm.weights.state_dict()["two.weight"], weight)


def test_whole_numbers_stay_what_they_are():
    class Words(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed = nn.Embedding(10, 3)

        def forward(self, words):
            return self.embed(words).mean(1)

    arm = make("bf16", model=lambda _data: Words())
    loss = training_step(arm, torch.arange(8).reshape(2, 4), torch.tensor([0, 1]))
    assert torch.isfinite(loss)
    assert loss.dtype == torch.float32


def test_masters_count_as_parameters_in_memory():
    found = []
    for name in ("fp16", "fp16-master"):
        arm, data = make(name), batches(1)
        train(arm, data)
        step = lambda arm=arm, data=data: train(arm, data)  # noqa: E731
        found.append(tensor_bytes(step, CPU, modules=[arm.model, arm.loss], optimizer=arm.optimizer))
    plain, master = found
    held = sum(4 * p.numel() for index in (0, 4, 5) for p in layers()[index].parameters())
    norm = 2 * 4 * 4  # batch norm's weight, bias, mean and variance are 2 bytes wider
    assert master.parameter_bytes - plain.parameter_bytes == held + norm
    assert master.gradient_bytes == 2 * plain.gradient_bytes


def test_several_processes_do_not_train_a_master():
    with pytest.raises(UsageError, match="fp16-master trains on one device only"):
        open_lightning(make("fp16-master"), 1, Shard(rank=0, ranks=2))
