"""The recipes: their figures, and that each builds and takes a step."""

import math

import pytest
import torch

from bench.planning import suite_registry
from bench.spec.errors import UsageError
from suites._schedule import cosine
from tests.suites.conftest import suite_of, take_step

CIFAR_SGD = ("SGD", {"lr": 0.1, "momentum": 0.9, "weight_decay": 5e-4}, 128, 200)
RECIPES = {  # optimizer, its settings, batch size, epochs, million parameters
    "gpt": ("AdamW", {"lr": 1e-3, "weight_decay": 0.1, "betas": (0.9, 0.95)}, 32, 5, 0.834),
    "lstm": ("SGD", {"lr": 20.0, "momentum": 0, "weight_decay": 0}, 20, 40, 0.746),
    "digits": ("SGD", {**CIFAR_SGD[1], "nesterov": True}, 64, 15, 0.0572),
    "mlp": ("SGD", {"lr": 1e-3, "momentum": 0, "weight_decay": 0}, 512, 3, 50.3),
    "resnet18": (*CIFAR_SGD, 11.17),
    "resnet20": (*CIFAR_SGD, 0.27),
    "resnet50": (*CIFAR_SGD, 23.52),
    "intel_resnet18": ("Adam", {"lr": 1e-4, "weight_decay": 1e-4}, 256, 120, 11.18),
    "cifar10_resnet18": ("Adam", {"lr": 1e-4}, 256, 10, 11.17),
    "underflow": ("Adam", {"lr": 0.003}, 64, 15, 0.0187),
    "vit_b_16": ("AdamW", {"lr": 3e-4}, 64, 1, 85.8),
}
SMALL = {
    "mlp": {"width": "9"},
    "resnet20": {},
    "intel_resnet18": {"weights": "none", "image_size": "32"},
}


WEIGHTS = [torch.zeros(1, requires_grad=True)]


def rates(schedule, steps):
    """Return an optimizer's rate before each step, and after the last."""
    optimizer = schedule.optimizer
    values = []
    for _ in range(steps):
        values.append(optimizer.param_groups[0]["lr"])
        optimizer.step()
        schedule.step()
    return [*values, optimizer.param_groups[0]["lr"]]


def sgd():
    return torch.optim.SGD(WEIGHTS, lr=2.0)


@pytest.mark.parametrize("name", suite_registry.names())
def test_a_recipe_has_its_published_figures(name):
    kind, settings, batch_size, epochs, parameters_m = RECIPES[name]
    suite = suite_of(name)
    assert suite.name == name
    assert suite.batch_size == batch_size
    assert suite.full_epochs == epochs
    optimizer = suite.optimizer(WEIGHTS)
    assert type(optimizer).__name__ == kind
    assert optimizer.defaults | settings == optimizer.defaults
    with torch.device("meta"):
        model = suite.model(suite.data)
    count = sum(weight.numel() for weight in model.parameters())
    assert count == pytest.approx(1e6 * parameters_m, rel=0.01)


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
        stem = model.maxpool(model.conv1(image))
    assert stem.shape == (1, 64, 32, 32)


@pytest.mark.parametrize("name", SMALL)
def test_a_suite_builds_and_takes_a_step(name):
    suite = suite_of(name, **SMALL[name])
    assert take_step(suite).isfinite()


def test_the_rate_rises_for_the_warm_up_and_falls_along_a_cosine():
    values = rates(cosine(sgd(), 40, 0.1), 40)
    assert values[:5] == pytest.approx([0.4, 0.8, 1.2, 1.6, 2.0])
    assert values[4 + 18] == pytest.approx(1.0)
    assert values[-1] == pytest.approx(0.0)


def test_the_published_cifar_recipe_steps_once_an_epoch_and_initialises_as_torch_does():
    suite = suite_of("resnet50", recipe="published")
    assert suite.data.std == (0.2023, 0.1994, 0.2010)
    assert suite.data.keep_last
    schedule = suite.schedule(sgd(), 3 * suite.schedule_epochs)  # three steps an epoch
    for step, rate in enumerate(rates(schedule, 11)):
        angle = math.pi * (step // 3) / 200
        assert rate == pytest.approx(1 + math.cos(angle), abs=1e-9)
    model = suite.model(suite.data)
    largest = model.layer4[1].conv2.weight.abs().max()
    assert largest <= (512 * 9) ** -0.5  # uniform; torchvision's are normal and larger


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
