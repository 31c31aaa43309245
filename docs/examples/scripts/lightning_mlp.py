"""A training script with Lightning's Trainer, to be measured as it is (docs/scripts.md).

python run_bench.py script --arm fp32="--precision 32-true" \\
    --arm amp-bf16="--precision bf16-mixed" -- docs/examples/scripts/lightning_mlp.py
"""

import argparse

import lightning.pytorch as pl
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset


class Classifier(pl.LightningModule):
    def __init__(self, width):
        super().__init__()
        layers = [
            nn.Linear(784, width),
            nn.ReLU(),
            nn.Linear(width, width),
            nn.ReLU(),
            nn.Linear(width, 10),
        ]
        self.model = nn.Sequential(*layers)

    def training_step(self, batch, _index):
        images, labels = batch
        return nn.functional.cross_entropy(self.model(images), labels)

    def configure_optimizers(self):
        return torch.optim.Adam(self.parameters(), lr=1e-3)


parser = argparse.ArgumentParser()
parser.add_argument("--precision", default="32-true")
parser.add_argument("--devices", type=int, default=1)
parser.add_argument("--width", type=int, default=2048)
options = parser.parse_args()

pl.seed_everything(0)
data = TensorDataset(torch.randn(8192, 784), torch.randint(10, (8192,)))
off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False}
trainer = pl.Trainer(max_epochs=100, precision=options.precision, devices=options.devices, **off)
trainer.fit(Classifier(options.width), DataLoader(data, batch_size=256, shuffle=True))
