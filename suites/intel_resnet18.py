"""ResNet-18 with ImageNet weights on the Intel Image Classification folder: 6 kinds of scenes."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite
from suites._schedule import cosine, require_share

if TYPE_CHECKING:
    from torch import nn, optim
    from torch.optim import lr_scheduler


def suite(
    *,
    lr: float = 1e-4,
    weight_decay: float = 1e-4,
    warmup: float = 0.1,
    image_size: int = 256,
    flip: bool = True,
    validation_share: float = 0.2,
    weights: str = "imagenet",
    batch_size: int = 256,
) -> Suite:
    """Return the recipe: Adam, cosine after a tenth of warm-up, 120 epochs, batch 256.

    Args:
        lr: peak learning rate of Adam.
        weight_decay: of Adam, as an L2 penalty.
        warmup: share of the run in which the rate rises.
        image_size: height and width to which images are resized, whatever their proportions.
        flip: whether images are mirrored at random.
        validation_share: share of each class that is held out of training; the test set if there is
            no test folder.
        weights: initial weights: imagenet, none, or the path of a state dict.
        batch_size: samples in a batch.
    """
    require_share(warmup)

    def model(data: Data) -> nn.Module:
        from torchvision.models import resnet18

        from bench.training.pretrained import pretrained

        return pretrained(resnet18, weights, data)

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.Adam(parameters, lr=lr, weight_decay=weight_decay)

    def schedule(optimizer: optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
        return cosine(optimizer, steps, warmup)

    return Suite(
        name="intel_resnet18",
        title=(
            f"ResNet-18, initial weights {weights}, {image_size}×{image_size}, on --data "
            "folder:INTEL"
        ),
        data=Data(
            input_shape=(3, image_size, image_size),
            classes=6,
            # Of ImageNet, whose weights were trained on images normalised like this.
            mean=(0.485, 0.456, 0.406),
            std=(0.229, 0.224, 0.225),
            flip=flip,
            validation_share=validation_share,
        ),
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        batch_size=batch_size,
        batch_sizes=(32, 64, 128, 256),
        cpu_batch_sizes=(4, 8, 16),
        epochs=5,
        full_epochs=120,
        source="recipe of hoya012/automatic-mixed-precision-tutorials-pytorch",
    )
