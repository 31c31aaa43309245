"""A small suite with a planted cause, which explain names.

    python run_bench.py explain --suite perf/planted_causes.py --set cause=expanded

The causes are ``expanded``, ``spectrum``, ``loader``, ``video`` and ``weights``, which devices that
train together (``--gpus cpu+cpu --batch-sizes 4``) spend their time exchanging; ``none`` has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

from bench.spec import Suite

# What the planted loader takes for each batch in addition.
WAIT_S = 0.1


def suite(cause: str = "none") -> Suite:
    """Return a suite with a cause by its name."""
    import torch
    from torch import Tensor, nn, optim
    from torch.nn.functional import cross_entropy

    class Expanded(nn.Module):
        """A table for all samples, made as large as the batch."""

        def __init__(self) -> None:
            super().__init__()
            self.table = nn.Parameter(torch.randn(1, 256, 256) / 16)

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.matmul(inputs, self.table.expand(len(inputs), -1, -1))

    class Spectrum(nn.Module):
        """A Fourier transform, which is computed in fp32."""

        def forward(self, inputs: Tensor) -> Tensor:
            return torch.fft.ifft(torch.fft.fft(inputs.float())).real

    class Mean(nn.Module):
        def forward(self, inputs: Tensor) -> Tensor:
            return inputs.mean(1)

    class Rows(nn.Embedding):
        """A table of many rows, of which a batch needs few."""

        def __init__(self) -> None:
            super().__init__(16_384, 256)

        def forward(self, inputs: Tensor) -> Tensor:
            return super().forward(inputs[:, 0].abs().long())

    class Net(nn.Sequential):
        """Two products with a part between them."""

        def __init__(self, part: nn.Module) -> None:
            super().__init__(
                nn.Linear(256, 256), part, nn.Linear(256, 256), Mean(), nn.Linear(256, 8)
            )

    class Video(nn.Sequential):
        """Three-dimensional convolutions."""

        def __init__(self) -> None:
            layers = (
                nn.Conv3d(3, 16, 3, padding=1),
                nn.ReLU(),
                nn.Conv3d(16, 16, 3, padding=1),
                nn.ReLU(),
            )
            super().__init__(*layers, nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 8))

    parts = {"expanded": Expanded, "spectrum": Spectrum}
    shape = (3, 8, 32, 32) if cause == "video" else (64, 256)

    def model() -> nn.Module:
        if cause == "video":
            return Video()
        if cause == "weights":
            return nn.Sequential(Rows(), Mean(), nn.Linear(256, 8))
        return Net(parts.get(cause, nn.ReLU)())

    def optimizer(parameters: Any) -> optim.Optimizer:
        return optim.SGD(parameters, lr=0.01)

    def batches(_split: str, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(batch_size, *shape, generator=generator)
        targets = torch.randint(0, 8, (batch_size,), generator=generator)
        for _ in range(8):
            if cause == "loader":
                time.sleep(WAIT_S)
            yield inputs, targets

    def loss(net: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
        return cross_entropy(net(batch[0]).float(), batch[1])

    return Suite(
        name="planted",
        title=f"planted: {cause}",
        model=model,
        optimizer=optimizer,
        batches=batches,
        loss=loss,
        batch_size=64,
    )
