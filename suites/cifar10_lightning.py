"""ResNet-18 on CIFAR-10, trained by Lightning's Trainer and by the plain loop."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Parameter, Suite, require
from suites._cifar import cifar_data, cifar_stem
from suites._schedule import require_rate

if TYPE_CHECKING:
    from torch import nn, optim


def suite(
    *,
    trainer: str = "both",
    devices: int = 1,
    lr: float = 1e-4,
    weight_decay: float = 0.0,
    crop_padding: int = 4,
    flip: bool = True,
    batch_size: int = 256,
) -> Suite:
    """Return the recipe: Adam at a constant rate, batch 256, 10 epochs.

    Args:
        trainer: plain, lightning, or both.
        devices: devices that Lightning trains on: the placement's and the GPUs that follow it. With both
            trainers, the plain loop and Lightning are also measured on one device.
        lr: learning rate of Adam.
        weight_decay: of Adam, as an L2 penalty.
        crop_padding: pixels of padding around an image before it is cropped; 0 is off.
        flip: whether images are mirrored at random.
        batch_size: samples in a batch, over all devices.
    """
    require_rate(lr, weight_decay)
    require(trainer in ("both", "plain", "lightning"), "trainer", "both, plain or lightning", trainer)

    def model(data: Data) -> nn.Module:
        from torchvision.models import resnet18

        return cifar_stem(resnet18(num_classes=data.classes))

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.Adam(parameters, lr=lr, weight_decay=weight_decay)

    variants: list[dict[str, Parameter]] = [{"trainer": "plain"}, {"trainer": "lightning"}]
    if devices > 1:
        variants = [{**variant, "devices": 1} for variant in variants] + [{"trainer": "lightning"}]
    return Suite(
        name="cifar10_lightning",
        title="ResNet-18, CIFAR stem, on CIFAR-10, by Lightning's Trainer and by the plain loop",
        data=cifar_data(crop_padding=crop_padding, flip=flip),
        model=model,
        optimizer=optimizer,
        batch_size=batch_size,
        batch_sizes=(64, 128, 256, 512),
        cpu_batch_sizes=(16, 32, 64),
        epochs=10,
        full_epochs=10,
        source="PyTorch Lightning's post on mixed precision (2020); Adam, which it does not name, is chosen here",
        trainer="lightning" if trainer == "lightning" else "plain",
        devices=devices if trainer == "lightning" else 1,
        variants=tuple(variants) if trainer == "both" else (),
    )
