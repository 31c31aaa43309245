"""Small models, batches of random numbers, and the arms that train them."""

from types import SimpleNamespace

import torch
from torch import nn

from bench.spec.precisions import parse_precision
from bench.spec.suite import Data, Suite
from bench.spec.techniques import PLAIN
from bench.spec.trial import Trial
from bench.training.arms import Context, TrainingRunner
from bench.training.step import build_arm, training_step

CPU = torch.device("cpu")
IMAGES = Data(input_shape=(3, 8, 8), classes=3)


def momentum(parameters):
    return torch.optim.SGD(parameters, lr=0.1, momentum=0.9)


def plain_sgd(lr):
    return lambda parameters: torch.optim.SGD(parameters, lr=lr)


def layers(data):
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.Tanh(),
        nn.Linear(8, 3),
    )


def norms(data):
    """A model with batch norm, within blocks and outside."""
    blocks = []
    for _ in range(2):
        conv = nn.Conv2d(4, 4, 3, padding=1)
        block = nn.Sequential(conv, nn.BatchNorm2d(4), nn.ReLU())
        blocks.append(block)
    return nn.Sequential(
        nn.Conv2d(3, 4, 3),
        nn.BatchNorm2d(4),
        *blocks,
        nn.Flatten(),
        nn.Linear(144, 3),
    )


def make_suite(model=layers, optimizer=momentum, data=IMAGES, **fields):
    return Suite(
        name="small", title="", data=data, model=model, optimizer=optimizer, batch_size=8, **fields
    )


def arm_of(suite, precision="fp32", *, device=CPU, seed=0, **options):
    parsed = parse_precision(precision)
    return build_arm(suite, suite.data, parsed, device, seed=seed, **options)


def make(
    precision="fp32",
    techniques=PLAIN,
    *,
    device=CPU,
    seed=0,
    steps=None,
    clip_grad=None,
    **fields,
):
    """Build an arm of a small suite with these fields."""
    return arm_of(
        make_suite(**fields),
        precision,
        device=device,
        seed=seed,
        steps=steps,
        clip_grad=clip_grad,
        techniques=techniques,
    )


def batches(count=4, size=8):
    rng = torch.Generator().manual_seed(1)
    drawn = []
    for _ in range(count):
        inputs = torch.randn(size, 3, 8, 8, generator=rng)
        targets = torch.randint(3, (size,), generator=rng)
        drawn.append((inputs, targets))
    return drawn


def wide(_data=None):
    """A model of which libraries convert two layers; the last does not fit their kernels."""
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(192, 64),
        nn.GELU(),
        nn.LayerNorm(64),
        nn.Linear(64, 32, bias=False),
        nn.Linear(32, 3),
    )


def compiled_s(arm, data, size):
    """Let an arm compile for batches of a size; return the seconds."""
    runner = TrainingRunner("", arm, iter(()))
    trial = Trial(cell=SimpleNamespace(batch_size=size), phase="speed", arms=())
    suite = make_suite(data=data)
    context = Context(
        trial=trial, suite=suite, data=data, device=arm.device, techniques=arm.techniques
    )
    runner.compile(context, lambda _message: None)
    return runner.compile_s


def train(arm, data):
    """Train on batches; return the losses."""
    return [training_step(arm, batch).item() for batch in data]


def weights(arm):
    return nn.utils.parameters_to_vector(arm.model.parameters()).detach()


def state(arm):
    """Return all that was learned, batch norm's statistics and counters included."""
    values = [value.double().flatten() for value in arm.model.state_dict().values()]
    return torch.cat(values)


def same(first, other):
    """Return whether the tensors of two sequences, or of two dicts, have the same bits."""
    try:
        torch.testing.assert_close(first, other, rtol=0, atol=0)
    except AssertionError:
        return False
    return True
