"""ResNet-18 with a CIFAR stem on CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.spec import Data
from suites._cifar import cifar_recipe, cifar_stem

if TYPE_CHECKING:
    from torch import nn


def model(data: Data) -> nn.Module:
    """Return the model for the data's number of classes."""
    from torchvision.models import resnet18

    return cifar_stem(resnet18(num_classes=data.classes))


suite = cifar_recipe(
    name="resnet18",
    title="ResNet-18, CIFAR stem, 11.2 M parameters, on CIFAR-10",
    model=model,
    cpu_batch_sizes=(16, 32, 64),
    source=(
        "He et al., Deep Residual Learning (CVPR 2016); recipe of "
        "suvojit-0x55aa/mixed-precision-pytorch"
    ),
)
