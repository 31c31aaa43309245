"""An own DataLoader over a folder of files, with a collate function; a batch is inputs and targets.

python run_bench.py --suite docs/examples/folder_loader.py --set folder=TEXTS --quick
"""

from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.utils.data import DataLoader

from bench.spec import Suite


def collate(length, files):
    rows = [list(file.read_bytes()[:length].ljust(length, b"\0")) for file in files]
    return torch.tensor(rows), torch.tensor([len(file.name) % 2 for file in files])


def suite(folder="docs", length=256):
    def batches(split, batch_size, seed):
        files = sorted(Path(folder).glob("*.md"))
        tested = files[::4]
        if split == "test":
            return DataLoader(tested, batch_size, collate_fn=partial(collate, length))
        trained = [file for file in files if file not in tested]
        return DataLoader(trained, batch_size, shuffle=True, collate_fn=partial(collate, length))

    return Suite(
        name="folder_loader",
        title="whether a file's name has an even length",
        model=lambda: nn.Sequential(nn.Embedding(256, 64), nn.Flatten(), nn.Linear(64 * length, 2)),
        batches=batches,
        loss=nn.CrossEntropyLoss,
        optimizer=lambda parameters: torch.optim.AdamW(parameters, lr=1e-3),
        batch_size=4,
    )
