"""A small convolutional network on the package's handwritten digits: accuracy, no download."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite
from suites._schedule import cosine

if TYPE_CHECKING:
    from torch import nn, optim
    from torch.optim import lr_scheduler


def suite(width: int = 32, lr: float = 0.1, batch_size: int = 64) -> Suite:
    """Return the recipe: three convolutions, SGD with Nesterov momentum, warm-up and cosine.

    Args:
        width: channels of the first convolution; the others have twice as many.
        lr: peak learning rate of SGD.
        batch_size: samples in a batch.
    """

    def model(data: Data) -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = []
        wide = 2 * width
        for inputs, outputs, stride in ((3, width, 1), (width, wide, 2), (wide, wide, 1)):
            convolution = nn.Conv2d(inputs, outputs, 3, stride, padding=1, bias=False)
            layers += [convolution, nn.BatchNorm2d(outputs), nn.ReLU()]
        layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(wide, data.classes or 10)]
        return nn.Sequential(*layers)

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.SGD(parameters, lr=lr, momentum=0.9, weight_decay=5e-4, nesterov=True)

    def schedule(optimizer: optim.Optimizer, steps: int) -> lr_scheduler.LRScheduler:
        return cosine(optimizer, steps, 0.2)

    return Suite(
        name="digits",
        title="Small convolutional network on 1,797 handwritten digits of 8 × 8 pixels",
        data=Data(
            input_shape=(3, 8, 8),
            classes=10,
            source="digits",
            mean=(0.2873, 0.2873, 0.2873),
            std=(0.3539, 0.3539, 0.3539),
        ),
        model=model,
        optimizer=optimizer,
        schedule=schedule,
        batch_size=batch_size,
        epochs=15,
        full_epochs=15,
        seeds=(0, 1, 2, 3, 4),
        source=(
            "Data: Alpaydin and Kaynak, Optical Recognition of Handwritten Digits (UCI, CC BY 4.0)"
        ),
    )
