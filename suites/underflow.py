"""A control in which float16 needs loss scaling: without it, every gradient is rounded to zero.

Two layers memorise the classes of a few batches. The loss is multiplied by a weight of 2^-22, like
a small term of a larger loss. Adam divides gradients by their size, and its epsilon has the same
weight, so the weight changes nothing in fp32: powers of two only move exponents. The same holds for
bfloat16, whose exponents have fp32's range, but not for float16. The mean over 64 samples reduces
the gradient of an output to 2^-6 or less, and the weight to 2^-28 or less. float16 rounds values of
2^-25 or less to zero when the last layer's backward pass begins. Without loss scaling
(amp-fp16-noscale) no weight ever moves, and the loss stays constant. GradScaler's first scale,
2^16, brings the largest gradients back to about 2^-12, and amp-fp16 learns as fp32 does.

At a shift of 16 to 18 some gradients survive and others do not, as is usual for underflow in
practice.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from bench.spec import Data, Suite

if TYPE_CHECKING:
    from torch import nn, optim


def suite(
    shift: int = 22, width: int = 256, lr: float = 0.003, batches: int = 4, batch_size: int = 64
) -> Suite:
    """Return the control.

    Args:
        shift: the loss is multiplied by 2^-shift; 0 is a loss that float16 can hold.
        width: features of the hidden layer.
        lr: learning rate of Adam.
        batches: batches in an epoch, the same in each.
        batch_size: samples in a batch.
    """

    def model(data: Data) -> nn.Module:
        from torch import nn

        return nn.Sequential(
            nn.Linear(data.input_shape[0], width), nn.ReLU(), nn.Linear(width, data.classes or 1)
        )

    def optimizer(parameters: Iterable[nn.Parameter]) -> optim.Optimizer:
        from torch import optim

        return optim.Adam(parameters, lr=lr, eps=1e-8 * 2.0**-shift)

    def loss() -> nn.Module:
        from torch import Tensor, nn

        class Weighted(nn.CrossEntropyLoss):
            def forward(self, input: Tensor, target: Tensor) -> Tensor:
                return super().forward(input, target) * 2.0**-shift

        return Weighted()

    return Suite(
        name="underflow",
        title=f"two layers, a loss of weight 2^-{shift}: float16 needs loss scaling here",
        data=Data(input_shape=(64,), classes=8, steps_per_epoch=batches),
        model=model,
        optimizer=optimizer,
        loss=loss,
        batch_size=batch_size,
        batch_sizes=(64,),
        epochs=15,
        full_epochs=15,
        source="a control of this project's own",
    )
