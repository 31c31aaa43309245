"""A suite whose gradients of outputs are known: 60 % zeros, 30 % zero in float16 alone."""

import torch

from bench.spec import Data, Suite


class Plant(torch.autograd.Function):
    """The sum of (B, 10) outputs, whose gradient is a pattern instead of ones."""

    @staticmethod
    def forward(context, outputs):
        context.dtype, context.rows = outputs.dtype, len(outputs)
        return outputs.float().sum()

    @staticmethod
    def backward(context, gradient):
        pattern = torch.tensor([0.0] * 6 + [2.0**-30] * 3 + [2.0**-10], device=gradient.device)
        return (pattern * gradient).to(context.dtype).expand(context.rows, 10)


def suite():
    return Suite(
        name="planted",
        title="planted gradients",
        data=Data(input_shape=(10,), classes=10, steps_per_epoch=2),
        model=lambda: torch.nn.Sequential(torch.nn.Linear(10, 10)),
        loss=lambda model, batch: Plant.apply(model(batch[0])),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.0),
        batch_size=4,
    )
