"""ResNet-18 with a CIFAR stem on CIFAR-10."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.spec import Data, Suite
from suites._cifar import cifar_stem, cifar_suite

if TYPE_CHECKING:
    from torch import nn


def suite(
    *,
    lr: float = 0.1,
    momentum: float = 0.9,
    weight_decay: float = 5e-4,
    warmup: float = 0.0,
    crop_padding: int = 4,
    flip: bool = True,
    batch_size: int = 128,
) -> Suite:
    """Return the recipe: SGD with momentum, cosine over the run, random crop and flip, batch 128.

    Args:
        lr: peak learning rate of SGD.
        momentum: of SGD.
        weight_decay: of SGD.
        warmup: share of the run that the rate rises for.
        crop_padding: pixels around an image out of which it is cropped; 0 is off.
        flip: whether images are mirrored at random.
        batch_size: samples in a batch.
    """

    def model(data: Data) -> nn.Module:
        from torchvision.models import resnet18

        return cifar_stem(resnet18(num_classes=data.classes))

    return cifar_suite(
        name="resnet18",
        title="ResNet-18, CIFAR stem, 11.2 M parameters, on CIFAR-10",
        model=model,
        lr=lr,
        momentum=momentum,
        weight_decay=weight_decay,
        warmup=warmup,
        crop_padding=crop_padding,
        flip=flip,
        batch_size=batch_size,
        cpu_batch_sizes=(16, 32, 64),
        source="He et al., Deep Residual Learning (CVPR 2016); recipe of suvojit-0x55aa/mixed-precision-pytorch",
    )
