"""ResNet-50 with a CIFAR stem on CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.spec import Data
from suites._cifar import cifar_recipe, cifar_stem

if TYPE_CHECKING:
    from torch import nn


def model(data: Data) -> nn.Module:
    """Return the model for the data's number of classes."""
    from torchvision.models import resnet50

    return cifar_stem(resnet50(num_classes=data.classes))


suite = cifar_recipe(
    name="resnet50",
    title="ResNet-50, CIFAR stem, 23.5 M parameters, on CIFAR-10",
    model=model,
    cpu_batch_sizes=(8, 16, 32),
    source=(
        "He et al., Deep Residual Learning (CVPR 2016); recipe of "
        "suvojit-0x55aa/mixed-precision-pytorch"
    ),
)
