"""The recipes: their figures, and that each builds and takes a step."""

import math

import pytest
import torch
from torch import nn

from bench.planning import suite_registry
from bench.spec.errors import UsageError
from suites._schedule import cosine
from tests.suites.conftest import suite_of, take_step

SGD = {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}
RECIPES = {
    "gpt": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}, 32, 5),
    "lstm": ("SGD", {"lr": 20.0, "momentum": 0, "weight_decay": 0}, 20, 40),
    "digits": ("SGD", {**SGD, "nesterov": True}, 64, 15),
    "mlp": ("SGD", {"lr": 1e-3, "momentum": 0, "weight_decay": 0}, 512, 3),
    "resnet18": ("SGD", SGD, 128, 200),
    "resnet20": ("SGD", SGD, 128, 200),
    "resnet50": ("SGD", SGD, 128, 200),
    "intel_resnet18": ("Adam", {"lr": 1e-4, "weight_decay": 1e-4}, 256, 120),
    "cifar10_resnet18": ("Adam", {"lr": 1e-4}, 256, 10),
    "underflow": ("Adam", {"lr": 0.003}, 64, 15),
    "vit_b_16": ("AdamW", {"lr": 3e-4}, 64, 1),
}
"""The optimizer, its settings, the batch size and the epochs."""
PARAMETERS_M = {
    "gpt": 0.834,
    "lstm": 0.746,
    "digits": 0.0572,
    "mlp": 50.3,
    "resnet18": 11.17,
    "resnet20": 0.27,
    "resnet50": 23.52,
    "intel_resnet18": 11.18,
    "cifar10_resnet18": 11.17,
    "underflow": 0.0187,
    "vit_b_16": 85.8,
}
SMALL = {
    "mlp": {"width": "9"},
    "resnet20": {},
    "intel_resnet18": {"weights": "none", "image_size": "32"},
}


WEIGHTS = [torch.zeros(1, requires_grad=True)]


def rates(schedule, steps):
    """Return an optimizer's rate before each step, and after the last."""
    values = schedule.get_last_lr()
    for _ in range(steps):
        schedule.optimizer.step()
        schedule.step()
        values += schedule.get_last_lr()
    return values


def sgd():
    return torch.optim.SGD(WEIGHTS, lr=2.0)


@pytest.mark.parametrize("name", suite_registry.names())
def test_a_recipe_has_its_published_figures(name):
    kind, settings, batch_size, epochs = RECIPES[name]
    suite = suite_of(name)
    assert suite.name == name
    assert suite.batch_size == batch_size
    assert suite.full_epochs == epochs
    optimizer = suite.optimizer(WEIGHTS)
    assert type(optimizer).__name__ == kind
    assert optimizer.defaults | settings == optimizer.defaults
    with torch.device("meta"):
        model = suite.model(suite.data)
    parameters = nn.utils.parameters_to_vector(model.parameters())
    assert len(parameters) == pytest.approx(1e6 * PARAMETERS_M[name], rel=0.01)


@pytest.mark.parametrize("name", suite_registry.names())
def test_every_setting_of_a_recipe_can_be_set(name):
    suite = suite_of(name, lr="0.7", batch_size="6")
    assert suite.optimizer(WEIGHTS).defaults["lr"] == 0.7
    assert suite.batch_size == 6


def test_cifar_resnets_keep_the_resolution_in_their_stem():
    suite = suite_of("resnet18")
    with torch.device("meta"):
        model = suite.model(suite.data)
        image = torch.empty(1, 3, 32, 32)
        convolved = model.conv1(image)
        stem = model.maxpool(convolved)
    assert stem.shape == (1, 64, 32, 32)


@pytest.mark.parametrize("name", SMALL)
def test_a_suite_builds_and_takes_a_step(name):
    suite = suite_of(name, **SMALL[name])
    assert take_step(suite).isfinite()


def test_the_rate_rises_for_the_warm_up_and_falls_along_a_cosine():
    schedule = cosine(sgd(), 40, 0.1)
    values = rates(schedule, 40)
    assert values[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    _, half_way, end = values[4::18]
    assert half_way == pytest.approx(1.0)
    assert end == pytest.approx(0.0)


def test_the_published_cifar_recipe_steps_once_an_epoch_and_initialises_as_torch_does():
    suite = suite_of("resnet50", recipe="published")
    assert suite.data.std == (0.2023, 0.1994, 0.2010)
    assert suite.data.keep_last
    schedule = suite.schedule(sgd(), 3 * suite.schedule_epochs)  # three steps an epoch
    values = rates(schedule, 5)
    second = 1 + math.cos(math.pi / 200)
    assert values == pytest.approx([2.0, 2.0, 2.0, second, second, second], abs=1e-9)
    model = suite.model(suite.data)
    weight = model.layer4[1].conv2.weight
    assert weight.abs().max() <= (512 * 9) ** -0.5  # uniform; torchvision's are normal and larger


@pytest.mark.parametrize(
    ("name", "setting", "sentence"),
    [
        ("resnet20", {"warmup": "1.5"}, "warmup must be a share"),
        ("resnet50", {"recipe": "theirs"}, "recipe must be default or published"),
        ("mlp", {"lr": "1e30"}, r"lr must be a number of at most 1e\+18"),
        ("intel_resnet18", {"validation_share": "1"}, "Data.validation_share must be a share"),
    ],
)
def test_a_setting_that_cannot_be_is_refused(name, setting, sentence):
    with pytest.raises(UsageError, match=sentence):
        suite_registry.refer(name, setting)
