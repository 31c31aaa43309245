"""A suite's own batches, loss and optimizers: they train as a plain loop does, and what is wrong is
said by name.
"""

from collections import UserDict, namedtuple
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.data.batch import channels_last, cut, map_leaves
from bench.data.batches import SuiteBatches
from bench.spec import Quality, Suite
from bench.spec.errors import UnsupportedError, UsageError
from bench.spec.precisions import PRECISIONS
from bench.spec.techniques import Techniques
from bench.training.step import build_arm, evaluate, evaluate_by, train_epoch
from bench.worker.failures import failure
from tests.training.conftest import plain_sgd, same

CPU = torch.device("cpu")
CLIP = 0.5


def own_batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for number in range(4 if split == "train" else 2):
        inputs = torch.randn(batch_size, 4 + number % 2, 8, generator=generator)
        yield {"x": inputs, "more": {"y": inputs.sum(dim=(1, 2))}, "name": None}


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 16), nn.Linear(16, 1)

    def forward(self, inputs):
        return self.head(self.body(inputs).relu().mean(dim=1)).squeeze(1)


def own_loss(model, batch):
    off = model(batch["x"]).float() - batch["more"]["y"]
    return {"loss": off.square().mean()}


def own_optimizers(model):
    return {
        "body": torch.optim.AdamW(model.body.parameters(), 1e-2),
        "head": torch.optim.SGD(model.head.parameters(), 1e-2),
    }


SUITE = Suite(
    name="own",
    title="",
    model=Net,
    batches=own_batches,
    loss=own_loss,
    optimizer=own_optimizers,
    batch_size=8,
    clip_grad=CLIP,
)


def arm_of(suite=SUITE, precision="fp32", **techniques):
    return build_arm(
        suite, suite.data, PRECISIONS[precision], CPU, seed=0, techniques=Techniques(**techniques)
    )


def losses_of(arm):
    return [arm.step(arm, batch).item() for batch in own_batches("train", 8, 3)]


def part_of(batch, samples):
    return {"x": batch["x"][samples], "more": {"y": batch["more"]["y"][samples]}}


class Plain:
    """A loop that is written by hand, with what a suite's own step asks of its training."""

    def __init__(self, precision):
        torch.manual_seed(0)
        self.model = Net()
        self.optimizers = own_optimizers(self.model)
        is_fp16 = precision == "amp-fp16"
        self.scaler = torch.amp.GradScaler("cpu", enabled=is_fp16)
        self.autocast = partial(torch.autocast, "cpu", torch.float16, enabled=is_fp16)

    @property
    def scale(self):
        return self.scaler.get_scale()

    def losses_of(self, step):
        losses = []
        for batch in own_batches("train", 8, 3):
            loss = step(self, batch)
            if isinstance(loss, dict):
                loss = sum(loss.values())
            losses.append(loss.item())
            self.scaler.update()
            self.model.zero_grad()
        return losses

    def backward(self, loss, retain_graph=False):
        self.scaler.scale(loss).backward(retain_graph=retain_graph)

    def step(self, name=None, clip=None):
        for each in [name] if name else self.optimizers:
            if clip:
                self.scaler.unscale_(self.optimizers[each])
                nn.utils.clip_grad_norm_(getattr(self.model, each).parameters(), clip)
            self.scaler.step(self.optimizers[each])

    def update(self, loss, name=None, retain_graph=False, clip=None):
        for each in [name] if name else self.optimizers:
            self.optimizers[each].zero_grad()
        self.backward(loss, retain_graph)
        self.step(name, clip)


@pytest.mark.parametrize("parts", [1, 2])
def test_the_losses_of_a_dict_two_optimizers_clipping_and_accumulation_are_a_plain_loops(parts):
    def step(plain, batch):
        losses = []
        for samples in torch.arange(8).chunk(parts):
            loss = own_loss(plain.model, part_of(batch, samples))["loss"] / parts
            loss.backward()
            losses.append(loss.detach())
        nn.utils.clip_grad_norm_(plain.model.parameters(), CLIP)
        plain.step()
        return torch.stack(losses).sum()

    expected = Plain("fp32").losses_of(step)
    assert losses_of(arm_of(grad_accumulation=parts)) == expected


def both(training, batch):
    """Update body and head one after the other, the head twice, through one graph."""
    losses = {}
    for number, (name, clip) in enumerate((("body", 0.1), ("head", None), ("head", None))):
        with training.autocast():
            losses[f"loss {number}"] = loss = own_loss(training.model, batch)["loss"]
        training.update(loss, name, retain_graph=name == "body", clip=clip)
    return losses


def accumulating(training, batch):
    """Add the gradients of two parts of a batch, then let one optimizer step after the other."""
    losses = []
    for part in range(2):
        with training.autocast():
            half = part_of(batch, slice(part, None, 2))
            loss = own_loss(training.model, half)["loss"] / 2
        training.backward(loss)
        losses.append(loss)
    training.step("body", clip=0.1)
    training.step("head")
    return sum(losses)


def penalising(training, batch):
    """Add a penalty on the gradient of the outputs by the inputs, computed under a loss scale."""
    inputs = batch["x"].detach().requires_grad_()
    with training.autocast():
        output = training.model(inputs)
        loss = (output.float() - batch["more"]["y"]).square().mean()
    scaled_sum = output.float().sum() * training.scale
    (scaled,) = torch.autograd.grad(scaled_sum, inputs, create_graph=True)
    gradient = scaled / training.scale
    loss = loss + gradient.float().square().mean()
    training.update(loss)
    return loss


OWN = replace(SUITE, loss=None, step=both, clip_grad=None)
STEPS = [(both, "fp32")]
for step in (accumulating, penalising):
    STEPS += [(step, "fp32"), (step, "amp-fp16")]


@pytest.mark.parametrize(("step", "precision"), STEPS)
def test_a_suites_own_step_is_a_plain_loop(step, precision):
    arm, plain = arm_of(replace(OWN, step=step), precision), Plain(precision)
    # The first scales may overflow: later epochs take their steps.
    first = plain.losses_of(step)
    for expected in (first, plain.losses_of(step), plain.losses_of(step)):
        losses = losses_of(arm)
        torch.testing.assert_close(losses, expected, rtol=0, atol=0, equal_nan=True)
    assert losses != first
    assert same(list(plain.model.parameters()), list(arm.model.parameters()))


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16", "bf16", "fp16-master"])
@pytest.mark.parametrize("suite", [SUITE, OWN], ids=["several optimizers", "own step"])
def test_every_kind_of_precision_trains(suite, precision):
    arm = arm_of(suite, precision)
    first, *_, last = (losses_of(arm) for _ in range(8))
    assert last[-1] < first[0]
    before = [weight.clone() for weight in arm.weights.trained()]
    arm.gradients(arm, next(own_batches("train", 8, 3)))
    assert same(before, arm.weights.trained())


class Filter(Net):
    """A net with a complex weight."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.ones(8, dtype=torch.complex64))

    def forward(self, inputs):
        return super().forward((inputs * self.weight).real)


@pytest.mark.parametrize("model", [Filter, lambda: Net().half()], ids=["complex", "float16"])
def test_a_model_whose_gradients_the_scaler_refuses_is_unsupported(model):
    def loss(model, batch):
        weight = next(model.parameters())
        inputs = batch["x"]
        if not weight.is_complex():
            inputs = inputs.to(weight.dtype)
        return own_loss(model, {**batch, "x": inputs})

    suite = replace(SUITE, model=model, loss=loss, optimizer=plain_sgd(0.1))
    arm = arm_of(suite, "amp-fp16")
    with pytest.raises((RuntimeError, ValueError)) as raised:
        losses_of(arm)
    ending = failure(raised.value)
    assert ending.kind == "unsupported"
    assert "GradScaler" in ending.text


def by_hand(training, batch):
    loss = own_loss(training.model, batch)["loss"]
    loss.backward()
    training.optimizers["body"].step()
    return loss


def test_a_step_that_goes_past_the_scaler_is_refused_only_where_there_is_one():
    suite = replace(OWN, step=by_hand)
    for precision in ("fp32", "amp-bf16"):
        assert min(losses_of(arm_of(suite, precision))) > 0
    with pytest.raises(UnsupportedError, match="itself, and amp-fp16 scales losses"):
        losses_of(arm_of(suite, "amp-fp16"))


@pytest.mark.parametrize("name", ["body", "head"])
def test_a_step_that_is_skipped_counts_whichever_optimizers_it_is(name):
    def step(training, batch):
        for each in ("body", "head"):
            with training.autocast():
                loss = own_loss(training.model, batch)["loss"]
            training.update(loss * (1e38 if each == name else 1e-3), each)
        return loss

    arm = arm_of(replace(OWN, step=step), "amp-fp16")
    assert train_epoch(arm, own_batches("train", 8, 3)).skipped_steps == 4


class Sized(Net):
    """A model whose arguments are its own."""

    def __init__(self, _width=16):
        super().__init__()


def test_a_model_and_an_optimizer_get_what_they_ask_for():
    def decayed(net):
        weights = [weight for name, weight in net.named_parameters() if name.endswith("weight")]
        return torch.optim.SGD(weights, lr=0.1)

    arm = arm_of(replace(SUITE, model=Sized, optimizer=decayed))
    (group,) = arm.optimizer.param_groups
    assert group["params"] == [arm.model.body.weight, arm.model.head.weight]


class Averaging(torch.optim.SGD):
    """Tests with other weights than it trains: those of zeros, in place of an average."""

    is_training = False

    def train(self):
        self.is_training = True

    def eval(self):
        self.is_training = False
        for group in self.param_groups:
            for weight in group["params"]:
                weight.zero_()

    def step(self, closure=None):
        assert self.is_training
        return super().step(closure)


def test_an_optimizer_that_tests_with_other_weights_is_told_when():
    arm = arm_of(replace(SUITE, optimizer=lambda model: Averaging(model.parameters(), lr=0.1)))
    losses_of(arm)
    batches = list(own_batches("test", 8, 3))
    loss, _ = evaluate(arm, iter(batches))
    targets = torch.cat([batch["more"]["y"] for batch in batches])
    assert loss == pytest.approx(targets.square().mean().item())
    assert arm.optimizer.is_training


class Labelled(nn.Module):
    """A model of transformers' kind: its output has the loss."""

    def __init__(self):
        super().__init__()
        self.head = nn.Linear(8, 3)

    def forward(self, inputs, labels):
        scores = self.head(inputs).float()
        loss = nn.functional.cross_entropy(scores.flatten(0, -2), labels.flatten())
        return {"loss": loss, "scores": scores}


@pytest.mark.parametrize(
    ("shape", "is_judged"), [((6,), True), ((6, 5), False)], ids=["classes", "tokens"]
)
def test_a_loss_of_ones_own_with_a_cross_entropy_of_classes_has_an_accuracy(shape, is_judged):
    def loss(model, batch):
        return model(*batch)

    arm = arm_of(replace(SUITE, model=Labelled, loss=loss, optimizer=plain_sgd(0.1)))
    batches = [(torch.randn(*shape, 8), torch.randint(3, shape)) for _ in range(2)]
    _, accuracy = evaluate(arm, iter(batches))
    if not is_judged:
        assert accuracy is None
        return
    inputs, labels = map(torch.cat, zip(*batches, strict=True))
    right = arm.model.head(inputs).argmax(-1) == labels
    assert accuracy == pytest.approx(100 * right.float().mean().item())


class Binary(nn.Module):
    def forward(self, scores, target):
        target = target.float()
        return nn.functional.binary_cross_entropy_with_logits(scores.reshape(-1), target)


class Weighted(nn.Module):
    def forward(self, outputs, target):
        values, weights = target
        return (weights * (outputs - values).square()).mean()


CLASSES = torch.arange(6) % 2


@pytest.mark.parametrize(
    ("layers", "loss", "targets"),
    [
        ([], Binary, CLASSES),
        ([nn.Flatten(0)], Binary, CLASSES),
        ([], Weighted, (torch.zeros(6, 1), torch.ones(6, 1))),
    ],
    ids=["one score", "no dimension of scores", "several tensors"],
)
def test_targets_that_are_no_classes_have_a_loss_and_no_accuracy(layers, loss, targets):
    def model():
        return nn.Sequential(nn.Linear(8, 1), *layers)

    arm = arm_of(replace(SUITE, model=model, loss=loss, optimizer=plain_sgd(0.1)))
    inputs = torch.randn(6, 8)
    expected = loss()(arm.model(inputs), targets).item()
    assert evaluate(arm, iter([(inputs, targets)])) == (pytest.approx(expected), None)


@pytest.mark.parametrize(
    "evaluate",
    [
        lambda model, batches: {"mae": own_error(model, batches)},
        lambda model, batches: SimpleNamespace(compute=lambda: {"mae": own_error(model, batches)}),
        lambda model, batches: own_error(model, batches).item(),
    ],
    ids=["dict", "with compute", "number"],
)
def test_a_suites_own_evaluation_has_figures(evaluate):
    suite = replace(
        SUITE, evaluate=evaluate, quality=Quality(name="mae", better="less", margin=0.1)
    )
    arm = arm_of(suite, "amp-bf16")
    figures = evaluate_by(suite, arm, own_batches("test", 8, 0))
    with torch.autocast("cpu", torch.bfloat16), torch.no_grad():
        assert figures == {"mae": float(own_error(arm.model, own_batches("test", 8, 0)))}
    assert arm.model.training


def own_error(model, batches):
    errors = []
    for batch in batches:
        off = model(batch["x"]).float() - batch["more"]["y"]
        errors.append(off.abs().mean())
    return sum(errors) / len(errors)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([1.0], "figure 'mae' is a list, not one number"),
        ({"f1": 1.0}, "no figure 'mae', which Suite.quality names: {'f1'"),
        ({"mae": torch.ones(3)}, "figure 'mae' is a Tensor, not one number"),
    ],
)
def test_what_evaluate_returned_is_named(output, message):
    quality = Quality(name="mae", better="less", margin=0.1)
    suite = replace(SUITE, evaluate=lambda model, batches: output, quality=quality)
    with pytest.raises(UsageError, match=message):
        evaluate_by(suite, arm_of(suite), iter(()))


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": lambda model, batch: model(batch["x"])}, r"has shape \(8,\)"),
        ({"loss": lambda model, batch: {"los": model(batch["x"]).sum()}}, "'loss', is a NoneType"),
        ({"loss": lambda model, batch: model(batch["x"]).sum().item()}, "'loss', is a float"),
        ({"loss": None}, r"not inputs and targets: give the suite a loss\(model, batch\)"),
        (
            {"optimizer": lambda model: [torch.optim.SGD([nn.Parameter(torch.zeros(1))], 0.1)]},
            "has no parameter of the model",
        ),
        ({"optimizer": lambda model: None}, "returned a NoneType, which is no optimizer"),
        ({"step": lambda training, batch: training.update(None, "tail")}, "tail"),
        (
            {"step": lambda training, batch: training.update(training.model(batch["x"]), "head")},
            "update has shape",
        ),
        (
            {"step": lambda training, batch: {"adversary": training.model(batch["x"])}},
            "'adversary' that step returned",
        ),
        ({"step": lambda training, batch: 0.5}, "step returned is a float"),
    ],
)
def test_what_is_wrong_is_named(wrong, message):
    with pytest.raises((UsageError, LookupError), match=message):
        losses_of(arm_of(replace(SUITE, **wrong)))


def test_batches_that_end_too_early_are_refused():
    def one_batch(split, batch_size, seed):
        yield {"x": torch.zeros(batch_size)}

    opened = replace(SUITE, batches=one_batch)
    with pytest.raises(UsageError, match="ended after 1 of the 2 batches"):
        list(SuiteBatches(opened, batch_size=4, device=CPU, seed=0).train(1))


def test_each_precision_reads_the_same_batches_in_the_same_order_and_each_epoch_others():
    def shuffled(split, batch_size, seed):
        data = torch.utils.data.TensorDataset(torch.arange(32.0))
        return torch.utils.data.DataLoader(data, batch_size=batch_size, shuffle=True)

    batches = SuiteBatches(replace(SUITE, batches=shuffled), batch_size=8, device=CPU, seed=1)

    def epoch(number):
        return str(list(batches.train(number)))

    first = epoch(1)
    assert epoch(1) == first
    assert epoch(2) != first


@dataclass
class Record:
    image: torch.Tensor
    weight: float


Pair = namedtuple("Pair", ["first", "second"])
IMAGES = torch.arange(64.0).reshape(4, 1, 4, 4)
NESTED = {
    "record": Record(image=IMAGES, weight=0.5),
    "pair": Pair(torch.arange(4), [torch.zeros(4, 2), None]),
}


def test_any_nesting_is_opened_cut_and_arranged():
    first, second = cut(NESTED, [slice(0, 2), slice(2, 4)], 4, "a test")
    assert isinstance(second["record"], Record)
    assert second["record"].weight == 0.5
    assert second["pair"].first.tolist() == [2, 3]
    images = [first["record"].image, second["record"].image]
    assert torch.equal(torch.cat(images), IMAGES)
    arranged = channels_last({"image": torch.zeros(2, 3, 4, 4)})
    assert arranged["image"].is_contiguous(memory_format=torch.channels_last)
    words = map_leaves(lambda leaf: leaf + 1, UserDict(ids=torch.zeros(2)))
    assert type(words) is UserDict
    assert words["ids"].tolist() == [1.0, 1.0]


@pytest.mark.parametrize(
    ("part", "kind"), [(torch.zeros(3, 2), r"tensor of shape \(3, 2\)"), ("a word", "str")]
)
def test_what_cannot_be_cut_is_refused(part, kind):
    with pytest.raises(
        UsageError, match=f"a test cannot cut a {kind} of the batch, which has 4 samples"
    ):
        cut({"x": torch.zeros(4), "table": part}, [slice(0, 2)], 4, "a test")
