"""Shared by the CIFAR-10 suites: data, optimizer, schedule and the small-image stem."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.spec import Data, Suite, require
from suites._schedule import cosine, require_share

if TYPE_CHECKING:
    from torch import nn, optim
    from torch.optim import lr_scheduler


def cifar_stem(resnet: nn.Module) -> nn.Module:
    """Give a torchvision ResNet the stem for 32×32 images: 3×3, stride 1, no max-pool."""
    from torch import nn

    resnet.conv1 = nn.Conv2d(3, 64, kernel_size=3, stride=1, padding=1, bias=False)
    resnet.maxpool = nn.Identity()
    return resnet


# Of the published recipe.
EPOCHS = 200


def default_initialisation(model: nn.Module) -> nn.Module:
    """Draw the weights anew as PyTorch's layers do; torchvision's ResNets have their own way."""
    for module in model.modules():
        reset = getattr(module, "reset_parameters", None)
        if callable(reset):
            reset()
    return model


def cifar_data(*, crop_padding: int, flip: bool) -> Data:
    """Return CIFAR-10 as a suite's data."""
    return Data(
        input_shape=(3, 32, 32), classes=10, source="cifar10", crop_padding=crop_padding, flip=flip
    )


def cifar_recipe(
    *,
    name: str,
    title: str,
    model: Callable[[Data], nn.Module],
    cpu_batch_sizes: tuple[int, ...],
    source: str,
) -> Callable[..., Suite]:
    """Return a suite function around ``model``."""

    def suite(
        *,
        recipe: str = "default",
        lr: float = 0.1,
        momentum: float = 0.9,
        weight_decay: float = 5e-4,
        warmup: float = 0.0,
        crop_padding: int = 4,
        flip: bool = True,
        batch_size: int = 128,
    ) -> Suite:
        """Return the recipe: SGD with momentum, cosine, crop and flip, batch 128, 200 epochs.

        Args:
            recipe: default, or published: that of suvojit-0x55aa/mixed-precision-pytorch to the
                letter, with its pixels' standard deviations, a cosine over 200 epochs however many
                are trained, stepped once an epoch, PyTorch's default initial weights, and the small
                last batch of an epoch.
            lr: peak learning rate of SGD.
            momentum: of SGD.
            weight_decay: of SGD.
            warmup: share of the run in which the rate rises.
            crop_padding: pixels of padding around an image before it is cropped; 0 is off.
            flip: whether images are mirrored at random.
            batch_size: samples in a batch.
        """
        require(recipe in ("default", "published"), "recipe", "default or published", recipe)
        published = recipe == "published"
        require(not (published and warmup), "warmup", "0 in the published recipe", warmup)
        require_share(warmup)

        def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
            from torch import optim

            return optim.SGD(parameters, lr=lr, momentum=momentum, weight_decay=weight_decay)

        def schedule(optimizer: optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
            return cosine(optimizer, steps, warmup, stairs=EPOCHS if published else 0)

        def published_model(data: Data) -> nn.Module:
            return default_initialisation(model(data))

        suite = Suite(
            name=name,
            title=title,
            data=cifar_data(crop_padding=crop_padding, flip=flip),
            model=model,
            optimizer=optimizer,
            schedule=schedule,
            batch_size=batch_size,
            batch_sizes=(64, 128, 256, 512, 1024),
            cpu_batch_sizes=cpu_batch_sizes,
            epochs=5,
            full_epochs=EPOCHS,
            source=source,
        )
        if not published:
            return suite
        # The means of the images' own deviations, as in many repositories; the pixels' are larger.
        data = replace(suite.data, std=(0.2023, 0.1994, 0.2010), keep_last=True)
        return replace(suite, data=data, model=published_model, schedule_epochs=EPOCHS)

    return suite
