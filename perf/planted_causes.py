"""A small suite with a planted cause, which explain names.

    python run_bench.py explain --suite perf/planted_causes.py --set cause=expanded

The causes are ``expanded``, ``spectrum``, ``loader``, ``video`` and ``weights``, which devices that
train together (``--gpus cpu+cpu --batch-sizes 4``) spend their time exchanging; ``none`` has none.
"""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor, nn, optim
from torch.nn.functional import cross_entropy

from bench.spec import Suite

# What the planted loader takes for each batch in addition.
WAIT_S = 0.1
# Vectors of a sample, and their size.
COUNT, WIDTH = 64, 256
CLASSES = 8


class Expanded(nn.Module):
    """A table for all samples, made as large as the batch."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, WIDTH, WIDTH) / WIDTH**0.5)

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.matmul(inputs, self.table.expand(len(inputs), -1, -1))


class Spectrum(nn.Module):
    """A Fourier transform, which is computed in fp32."""

    def forward(self, inputs: Tensor) -> Tensor:
        return torch.fft.ifft(torch.fft.fft(inputs.float())).real


class Mean(nn.Module):
    """The mean of a sample's vectors."""

    def forward(self, inputs: Tensor) -> Tensor:
        return inputs.mean(1)


class Rows(nn.Embedding):
    """A table of many rows, of which a batch needs few."""

    def __init__(self) -> None:
        super().__init__(16_384, WIDTH)

    def forward(self, inputs: Tensor) -> Tensor:
        return super().forward(inputs[:, 0].abs().long())


def with_part(part: nn.Module) -> nn.Module:
    """Return two products with a part between them."""
    first, second = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
    return nn.Sequential(first, part, second, Mean(), nn.Linear(WIDTH, CLASSES))


def with_weights() -> nn.Module:
    """Return a model with far more weights than work."""
    return nn.Sequential(Rows(), Mean(), nn.Linear(WIDTH, CLASSES))


def with_video() -> nn.Module:
    """Return three-dimensional convolutions."""
    first, second = nn.Conv3d(3, 16, 3, padding=1), nn.Conv3d(16, 16, 3, padding=1)
    pool = (nn.AdaptiveAvgPool3d(1), nn.Flatten())
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), *pool, nn.Linear(16, CLASSES))


MODELS = {
    "expanded": lambda: with_part(Expanded()),
    "spectrum": lambda: with_part(Spectrum()),
    "video": with_video,
    "weights": with_weights,
}


def suite(cause: str = "none") -> Suite:
    """Return a suite with a cause by its name."""
    shape = (3, 8, 32, 32) if cause == "video" else (COUNT, WIDTH)

    def batches(_split: str, batch_size: int, seed: int) -> Iterator[tuple[Tensor, Tensor]]:
        generator = torch.Generator().manual_seed(seed)
        inputs = torch.randn(batch_size, *shape, generator=generator)
        targets = torch.randint(0, CLASSES, (batch_size,), generator=generator)
        for _ in range(8):
            if cause == "loader":
                time.sleep(WAIT_S)
            yield inputs, targets

    return Suite(
        name="planted",
        title=f"planted: {cause}",
        model=MODELS.get(cause, lambda: with_part(nn.ReLU())),
        optimizer=optimizer,
        batches=batches,
        loss=loss,
        batch_size=64,
    )


def optimizer(parameters: Any) -> optim.Optimizer:
    return optim.SGD(parameters, lr=0.01)


def loss(model: nn.Module, batch: tuple[Tensor, Tensor]) -> Tensor:
    inputs, targets = batch
    return cross_entropy(model(inputs).float(), targets)
