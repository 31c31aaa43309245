"""ViT-B/16 at 224×224, torchvision's model."""

from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite

if TYPE_CHECKING:
    from torch import nn, optim


def suite(
    *,
    lr: float = 3e-4,
    weight_decay: float = 0.05,
    image_size: int = 224,
    flip: bool = True,
    weights: str = "none",
    batch_size: int = 64,
) -> Suite:
    """Return the recipe: AdamW at a constant rate, one epoch.

    Args:
        lr: learning rate of AdamW.
        weight_decay: of AdamW.
        image_size: height and width to which images are resized.
        flip: whether images are mirrored at random.
        weights: initial weights: none, imagenet (for images of 224), or the path of a state dict.
        batch_size: samples in a batch.
    """

    def model(data: Data) -> nn.Module:
        from torchvision.models import vit_b_16

        from bench.training.pretrained import pretrained

        @functools.wraps(vit_b_16)
        def build(num_classes: int) -> nn.Module:
            built: nn.Module = vit_b_16(num_classes=num_classes, image_size=image_size)
            return built

        return pretrained(build, weights, data)

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.AdamW(parameters, lr=lr, weight_decay=weight_decay)

    return Suite(
        name="vit_b_16",
        title=f"ViT-B/16, {image_size}×{image_size}, 86 M parameters",
        data=Data(input_shape=(3, image_size, image_size), classes=10, source="cifar10", flip=flip),
        model=model,
        optimizer=optimizer,
        batch_size=batch_size,
        batch_sizes=(32, 64, 128, 256),
        cpu_batch_sizes=(2, 4),
        epochs=1,
        full_epochs=1,
        source=(
            "Dosovitskiy et al., An Image is Worth 16x16 Words (ICLR 2021); torchvision's "
            "implementation"
        ),
    )
