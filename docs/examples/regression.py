"""A regression with a figure of merit of its own, on which parity is judged as on accuracy.

python run_bench.py --suite docs/examples/regression.py --seeds 0,1,2,3,4
"""

import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

from bench.spec import Quality, Suite


def batches(split, batch_size, seed):
    draw = torch.Generator().manual_seed(1 if split == "test" else 0)
    inputs = torch.rand(1024 if split == "train" else 512, 8, generator=draw)
    targets = 20 + 10 * (inputs @ torch.linspace(-1, 1, 8)).sin()
    return DataLoader(TensorDataset(inputs, targets), batch_size, shuffle=split == "train")


def evaluate(model, batches):
    errors = torch.cat([model(inputs).float().squeeze(1) - targets for inputs, targets in batches])
    return {"rmse": errors.square().mean().sqrt(), "largest error": errors.abs().max()}


def suite():
    return Suite(
        name="regression",
        title="a temperature by eight sensors",
        model=lambda: nn.Sequential(
            nn.Linear(8, 128), nn.SiLU(), nn.Linear(128, 128), nn.SiLU(), nn.Linear(128, 1)
        ),
        batches=batches,
        loss=lambda model, batch: (model(batch[0]).float().squeeze(1) - batch[1]).square().mean(),
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=3e-3),
        evaluate=evaluate,
        quality=Quality(name="rmse", unit="°C", better="less", margin=0.1),
        batch_size=64,
        epochs=10,
    )
