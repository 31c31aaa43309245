"""A suite's own batches, loss and optimizers: they train as a plain loop does, and what is wrong is
said by name.
"""

import copy
from collections import UserDict, namedtuple
from dataclasses import dataclass, replace
from functools import partial
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.data.batch import channels_last, cut
from bench.data.batches import SuiteBatches
from bench.spec import Quality, Suite
from bench.spec.errors import UnsupportedError, UsageError
from bench.spec.techniques import Techniques
from bench.training.step import TokenLoss, evaluate, evaluate_by, pair_loss, train_epoch
from bench.worker.failures import failure
from tests.training.conftest import CPU, arm_of, plain_sgd, same

CLIP = 0.5
SGD = plain_sgd(0.1)


def own_batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    lengths = (4, 5, 4, 5) if split == "train" else (4, 5)
    for length in lengths:
        inputs = torch.randn(batch_size, length, 8, generator=generator)
        targets = inputs.sum(dim=(1, 2))
        yield {"x": inputs, "more": {"y": targets}, "name": None}


class Net(nn.Module):
    def __init__(self, width=16):  # no data: its arguments are its own
        super().__init__()
        self.body = nn.Linear(8, width)
        self.head = nn.Linear(width, 1)

    def forward(self, inputs):
        hidden = self.body(inputs).relu()
        return self.head(hidden.mean(dim=1)).squeeze(1)


def own_loss(model, batch):
    error = model(batch["x"]).float() - batch["more"]["y"]
    return {"loss": error.square().mean()}


def own_optimizers(net):  # the name of its argument does not tell that it takes the model
    return {
        "body": torch.optim.AdamW(net.body.parameters(), 1e-2),
        "head": torch.optim.SGD(net.head.parameters(), 1e-2),
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


def losses_of(arm):
    losses = []
    for batch in own_batches("train", 8, 3):
        loss = arm.step(arm, batch)
        losses.append(loss.item())
    return losses


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
            losses.append(loss.item())
            self.scaler.update()
            self.model.zero_grad()
        return losses

    def backward(self, loss, **options):
        self.scaler.scale(loss).backward(**options)

    def step(self):
        for optimizer in self.optimizers.values():
            self.scaler.step(optimizer)

    def update(self, loss, name, clip, **options):
        self.optimizers[name].zero_grad()
        self.backward(loss, **options)
        part = getattr(self.model, name)
        nn.utils.clip_grad_norm_(part.parameters(), clip)
        self.scaler.step(self.optimizers[name])


@pytest.mark.parametrize("parts", [1, 2])
def test_the_losses_of_a_dict_two_optimizers_clipping_and_accumulation_are_a_plain_loops(parts):
    def step(plain, batch):
        total = 0
        inputs = batch["x"].chunk(parts)
        targets = batch["more"]["y"].chunk(parts)
        for x, y in zip(inputs, targets, strict=True):
            losses = own_loss(plain.model, {"x": x, "more": {"y": y}})
            loss = losses["loss"] / parts
            loss.backward()
            total += loss.detach()
        nn.utils.clip_grad_norm_(plain.model.parameters(), CLIP)
        plain.step()
        return total

    arm = arm_of(SUITE, techniques=Techniques(grad_accumulation=parts))
    assert losses_of(arm) == Plain("fp32").losses_of(step)


def alternating(training, batch):
    """Update body and head in turn, through one graph; both twice."""
    total = 0
    for _ in range(2):
        with training.autocast():
            loss = own_loss(training.model, batch)["loss"]
        training.update(loss, "body", clip=0.1, retain_graph=True)
        training.update(loss, "head", clip=1.0)
        total += loss
    return total


def penalising(training, batch):
    """Add the gradients of a loss and of a penalty, on those of the outputs by the inputs."""
    inputs = batch["x"].detach().requires_grad_()
    with training.autocast():
        outputs = training.model(inputs)
    outputs = outputs.float()
    scaled_sum = outputs.sum() * training.scale
    (scaled,) = torch.autograd.grad(scaled_sum, inputs, create_graph=True)
    gradient = scaled.float() / training.scale
    error = outputs - batch["more"]["y"]
    loss = error.square().mean()
    penalty = gradient.square().mean()
    training.backward(loss, retain_graph=True)
    training.backward(penalty)
    training.step()
    return loss + penalty


OWN = replace(SUITE, loss=None, step=alternating, clip_grad=None)


@pytest.mark.parametrize(
    ("step", "precision"),
    [
        (alternating, "fp32"),
        (penalising, "fp32"),
        (penalising, "amp-fp16"),
    ],
)
def test_a_suites_own_step_is_a_plain_loop(step, precision):
    plain = Plain(precision)
    arm = arm_of(replace(OWN, step=step), precision)
    first = plain.losses_of(step)
    torch.testing.assert_close(losses_of(arm), first, rtol=0, atol=0, equal_nan=True)
    # The first scales may overflow: later epochs take their steps.
    for _ in range(2):
        expected = plain.losses_of(step)
        assert losses_of(arm) == expected
    assert expected != first
    assert same(list(plain.model.parameters()), list(arm.model.parameters()))


@pytest.mark.parametrize("precision", ["amp-bf16", "amp-fp16", "bf16", "fp16-master"])
@pytest.mark.parametrize("suite", [SUITE, OWN], ids=["several optimizers", "own step"])
def test_every_kind_of_precision_trains(suite, precision):
    arm = arm_of(suite, precision)
    batch, *_ = own_batches("train", 8, 3)
    first, *_, last = [arm.step(arm, batch) for _ in range(31)]
    assert last < first
    trained = list(arm.weights.trained())
    before = copy.deepcopy(trained)
    arm.gradients(arm, batch)
    assert same(before, trained)


@pytest.mark.parametrize("dtype", [torch.complex64, torch.float16])
def test_a_model_whose_gradients_the_scaler_refuses_is_unsupported(dtype):
    def loss(model, batch):
        return model.weight.abs().sum().float()

    def model():
        return nn.Linear(1, 1, dtype=dtype)

    arm = arm_of(replace(SUITE, model=model, loss=loss, optimizer=SGD), "amp-fp16")
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
        arm = arm_of(suite, precision)
        losses_of(arm)
    arm = arm_of(suite, "amp-fp16")
    with pytest.raises(UnsupportedError, match="itself, and amp-fp16 scales losses"):
        losses_of(arm)


@pytest.mark.parametrize("name", ["body", "head"])
def test_a_step_that_is_skipped_counts_whichever_optimizers_it_is(name):
    def step(training, batch):
        for each in ("body", "head"):
            loss = own_loss(training.model, batch)["loss"]
            factor = 1e38 if each == name else 1e-3
            training.update(loss * factor, each)
        return loss

    arm = arm_of(replace(OWN, step=step), "amp-fp16")
    epoch = train_epoch(arm, own_batches("train", 8, 3))
    assert epoch.skipped_steps == 4


class Averaging(torch.optim.SGD):
    """Swaps an average of the weights in for tests, as torch's own optimizers never do."""

    is_training = False

    def train(self):
        self.is_training = True

    def eval(self):
        self.is_training = False


def test_an_optimizer_that_tests_with_other_weights_is_told_when():
    modes = []

    def loss(model, batch):
        modes.append(arm.optimizer.is_training)
        return own_loss(model, batch)

    def averaging(model):
        return Averaging(model.parameters(), lr=0.1)

    arm = arm_of(replace(SUITE, loss=loss, optimizer=averaging))
    losses_of(arm)
    evaluate(arm, own_batches("test", 8, 3))
    losses_of(arm)
    train, test = [True] * 4, [False] * 2
    assert modes == [*train, *test, *train]


CLASSES = torch.arange(6) % 2


def test_a_loss_of_ones_own_with_a_cross_entropy_of_classes_has_an_accuracy():
    def model():
        return nn.Linear(8, 2)

    def loss(model, batch):
        return nn.functional.cross_entropy(model(batch), CLASSES)

    arm = arm_of(replace(SUITE, model=model, loss=loss, optimizer=SGD))
    inputs = torch.randn(6, 8)
    _, accuracy = evaluate(arm, iter([inputs]))
    guesses = arm.model(inputs).argmax(dim=1)
    right = guesses == CLASSES
    assert accuracy == pytest.approx(100 * right.sum() / 6)


def test_an_accuracy_is_of_all_samples_or_there_is_none():
    def model():
        return nn.Linear(8, 2)

    def loss(model, batch):
        scores = model(batch).flatten(0, -2)
        classes = torch.zeros(len(scores), dtype=torch.int64)
        return nn.functional.cross_entropy(scores, classes)

    arm = arm_of(replace(SUITE, model=model, loss=loss, optimizer=SGD))
    samples = torch.randn(6, 8)
    sequences = torch.randn(6, 5, 8)  # each with several classes
    _, accuracy = evaluate(arm, iter([samples, sequences]))
    assert accuracy is None


class Binary(nn.Module):
    def forward(self, scores, classes):
        targets = classes.float()
        return nn.functional.binary_cross_entropy_with_logits(scores.reshape(-1), targets)


class Weighted(nn.Module):
    def forward(self, outputs, targets):
        values, weights = targets
        return (weights * (outputs - values).square()).mean()


WEIGHTED = (torch.zeros(6, 1), torch.ones(6, 1))


@pytest.mark.parametrize(
    ("layers", "loss", "targets"),
    [
        ([], Binary, CLASSES),
        ([nn.Flatten(0)], Binary, CLASSES),
        ([], Weighted, WEIGHTED),
    ],
    ids=["one score", "no dimension of scores", "several tensors"],
)
def test_targets_that_are_no_classes_have_a_loss_and_no_accuracy(layers, loss, targets):
    def model():
        return nn.Sequential(nn.Linear(8, 1), *layers)

    arm = arm_of(replace(SUITE, model=model, loss=loss, optimizer=SGD))
    inputs = torch.randn(6, 8)
    outputs = arm.model(inputs)
    expected = arm.criterion(outputs, targets).item()
    mean_loss, accuracy = evaluate(arm, iter([(inputs, targets)]))
    assert mean_loss == pytest.approx(expected)
    assert accuracy is None


MAE = Quality(name="mae", better="less", margin=0.1)


@pytest.mark.parametrize(
    "output",
    [
        lambda error: {"mae": error},
        lambda error: SimpleNamespace(compute=lambda: {"mae": error}),
        lambda error: error.item(),
    ],
    ids=["dict", "with compute", "number"],
)
def test_a_suites_own_evaluation_has_figures(output):
    def evaluate(model, batches):
        assert torch.is_autocast_enabled("cpu")
        assert not model.training
        (batch,) = batches
        return output(batch.mean())

    suite = replace(SUITE, evaluate=evaluate, quality=MAE)
    arm = arm_of(suite, "amp-bf16")
    batch = torch.tensor([0.25, 0.75])
    assert evaluate_by(suite, arm, iter([batch])) == {"mae": 0.5}
    assert arm.model.training


@pytest.mark.parametrize(
    ("output", "message"),
    [
        ([1.0], "figure 'mae' is a list, not one number"),
        ({"f1": 1.0}, "no figure 'mae', which Suite.quality names: {'f1'"),
    ],
)
def test_what_evaluate_returned_is_named(output, message):
    suite = replace(SUITE, evaluate=lambda model, batches: output, quality=MAE)
    with pytest.raises(UsageError, match=message):
        evaluate_by(suite, arm_of(suite), iter(()))


def scores_of(model, batch):
    return model(batch["x"])


def update_by_scores(training, batch):
    training.update(scores_of(training.model, batch))


def return_scores(training, batch):
    return {"adversary": scores_of(training.model, batch)}


FOREIGN = torch.optim.SGD([nn.Parameter(torch.zeros(1))], lr=0.1)


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"loss": scores_of}, r"has shape \(8,\)"),
        ({"loss": lambda model, batch: {"los": 1.0}}, "'loss', is a NoneType"),
        ({"loss": None}, r"not inputs and targets: give the suite a loss\(model, batch\)"),
        ({"model": lambda: None}, "returned a NoneType, which is no torch module"),
        ({"optimizer": lambda model: [FOREIGN]}, "has no parameter of the model"),
        ({"optimizer": lambda model: None}, "returned a NoneType, which is no optimizer"),
        ({"step": lambda training, batch: training.update(None, "tail")}, "tail"),
        ({"step": update_by_scores}, "update has shape"),
        ({"step": return_scores}, "'adversary' that step returned"),
        ({"step": lambda training, batch: 0.5}, "step returned is a float"),
    ],
)
def test_what_is_wrong_is_named(wrong, message):
    suite = replace(SUITE, **wrong)
    with pytest.raises((UsageError, LookupError), match=message):
        losses_of(arm_of(suite))


class LossOfLogits(nn.CrossEntropyLoss):
    def forward(self, input, target):
        return super().forward(input["logits"], target)


def test_a_suites_own_loss_takes_what_its_model_returns_and_torchs_a_tensor():
    batch = (torch.zeros(2, 3), torch.zeros(2, dtype=torch.long))

    def model(inputs):
        return {"logits": inputs}

    assert pair_loss(LossOfLogits())(model, batch) > 0
    for criterion in (nn.CrossEntropyLoss(), TokenLoss()):
        with pytest.raises(UsageError, match="returned a dict, not a tensor"):
            pair_loss(criterion)(model, batch)


def batches_of(open_split):
    suite = replace(SUITE, batches=open_split)
    return SuiteBatches(suite, batch_size=8, device=CPU, seed=1)


def test_batches_that_end_too_early_are_refused():
    def one_batch(split, batch_size, seed):
        yield {"x": torch.zeros(batch_size)}

    with pytest.raises(UsageError, match="ended after 1 of the 2 batches"):
        list(batches_of(one_batch).train(1))


def test_each_precision_reads_the_same_batches_in_the_same_order_and_each_epoch_others():
    def shuffled(split, batch_size, seed):
        return torch.utils.data.DataLoader(torch.arange(32), batch_size=batch_size, shuffle=True)

    def epoch(number):
        batches = list(batches_of(shuffled).train(number))
        return torch.cat(batches).tolist()

    first = epoch(1)
    assert epoch(1) == first
    assert epoch(2) != first


@dataclass
class Record:
    image: torch.Tensor
    weight: float


Pair = namedtuple("Pair", ["first", "second"])


def test_any_nesting_is_opened_cut_and_arranged():
    numbers = torch.arange(4)
    record = Record(image=torch.zeros(4, 2, 4, 4), weight=0.5)
    pair = Pair(numbers, None)
    words = UserDict(ids=numbers)
    batch = channels_last([record, pair, words])
    (part,) = cut(batch, [slice(2, 4)], 4, "a test")
    record, pair, words = part
    assert record.weight == 0.5
    assert len(record.image) == 2
    assert record.image.is_contiguous(memory_format=torch.channels_last)
    assert pair.first.tolist() == [2, 3]
    assert type(words) is UserDict
    assert words["ids"].tolist() == [2, 3]


@pytest.mark.parametrize(
    ("part", "kind"),
    [
        (torch.zeros(3, 2), r"tensor of shape \(3, 2\)"),
        ("a word", "str"),
    ],
)
def test_what_cannot_be_cut_is_refused(part, kind):
    batch = {"x": torch.zeros(4), "table": part}
    message = f"a test cannot cut a {kind} of the batch, which has 4 samples"
    with pytest.raises(UsageError, match=message):
        cut(batch, [slice(0, 2)], 4, "a test")
