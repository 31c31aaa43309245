"""The multi-layer perceptron of PyTorch's recipe for automatic mixed precision."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite

if TYPE_CHECKING:
    from torch import nn, optim


def suite(
    width: int = 4096, depth: int = 3, lr: float = 1e-3, batches: int = 50, batch_size: int = 512
) -> Suite:
    """Return the recipe.

    Args:
        width: features in and out of every layer; multiples of 8 suit tensor cores, 4097 shows the
            cost of other sizes.
        depth: linear layers, with a ReLU between each two.
        lr: learning rate of SGD.
        batches: batches in an epoch.
        batch_size: samples in a batch.
    """

    def model(data: Data) -> nn.Module:
        from torch import nn

        layers: list[nn.Module] = [nn.Linear(data.input_shape[0], width)]
        for _ in range(depth - 1):
            layers += [nn.ReLU(), nn.Linear(width, width)]
        return nn.Sequential(*layers)

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.SGD(parameters, lr=lr)

    return Suite(
        name="mlp",
        title=f"MLP of {depth} linear layers of {width}, mean square error, SGD",
        data=Data(input_shape=(width,), target_shape=(width,), steps_per_epoch=batches),
        model=model,
        optimizer=optimizer,
        batch_size=batch_size,
        batch_sizes=(128, 256, 512, 513),
        cpu_batch_sizes=(128,),
        cpu_parameters={"width": 1024, "batch_size": 128},
        epochs=3,
        full_epochs=3,
        source="PyTorch tutorials, 'Automatic Mixed Precision' recipe",
    )
