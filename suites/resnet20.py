"""ResNet-20 of He et al. on CIFAR-10: 0.27 M parameters, which a laptop can train."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.spec import Data
from suites._cifar import cifar_recipe

if TYPE_CHECKING:
    from torch import nn


def model(data: Data) -> nn.Module:
    """Return the model for the data's number of classes."""
    from torch import nn
    from torchvision.models.resnet import BasicBlock

    layers: list[nn.Module] = [
        nn.Conv2d(3, 16, 3, padding=1, bias=False),
        nn.BatchNorm2d(16),
        nn.ReLU(),
    ]
    width = 16
    for planes in (16, 32, 64):
        stride = 1 if planes == width else 2
        for _ in range(3):
            shortcut = None
            if planes != width:
                shortcut = nn.Sequential(
                    nn.Conv2d(width, planes, 1, stride, bias=False), nn.BatchNorm2d(planes)
                )
            layers.append(BasicBlock(width, planes, stride, shortcut))
            width, stride = planes, 1
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, data.classes or 10)]
    return nn.Sequential(*layers)


suite = cifar_recipe(
    name="resnet20",
    title="ResNet-20 (He et al.), 0.27 M parameters, on CIFAR-10",
    model=model,
    cpu_batch_sizes=(64, 128, 256),
    source=(
        "He et al., Deep Residual Learning (CVPR 2016), section 4.2; 1×1 convolutions as shortcuts"
    ),
)
