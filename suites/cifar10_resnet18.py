"""ResNet-18 on CIFAR-10 with Adam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite
from suites._cifar import cifar_data, cifar_stem

if TYPE_CHECKING:
    from torch import nn, optim


def suite(
    *,
    lr: float = 1e-4,
    weight_decay: float = 0.0,
    crop_padding: int = 4,
    flip: bool = True,
    batch_size: int = 256,
) -> Suite:
    """Return the recipe: Adam at a constant rate, batch 256, 10 epochs.

    Args:
        lr: learning rate of Adam.
        weight_decay: of Adam, as an L2 penalty.
        crop_padding: pixels of padding around an image before it is cropped; 0 is off.
        flip: whether images are mirrored at random.
        batch_size: samples in a batch, over all devices.
    """

    def model(data: Data) -> nn.Module:
        from torchvision.models import resnet18

        return cifar_stem(resnet18(num_classes=data.classes))

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.Adam(parameters, lr=lr, weight_decay=weight_decay)

    return Suite(
        name="cifar10_resnet18",
        title="ResNet-18, CIFAR stem, on CIFAR-10, with Adam",
        data=cifar_data(crop_padding=crop_padding, flip=flip),
        model=model,
        optimizer=optimizer,
        batch_size=batch_size,
        batch_sizes=(64, 128, 256, 512),
        cpu_batch_sizes=(16, 32, 64),
        epochs=10,
        full_epochs=10,
        source=(
            "PyTorch Lightning's post on mixed precision (2020); Adam, which it does not name, is "
            "chosen here"
        ),
    )
