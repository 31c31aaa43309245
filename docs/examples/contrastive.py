"""Contrastive learning: two views of each image, and a loss over all pairs of a batch

Source: SimCLR, Chen et al., 2020.

python run_bench.py --suite docs/examples/contrastive.py --quick
"""

import torch
from torch.nn.functional import cross_entropy, normalize
from torchvision.models import resnet18

from bench.spec import Suite


def batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(8 if split == "train" else 2):
        images = torch.rand(batch_size, 3, 32, 32, generator=generator)
        yield {
            "views": (
                images,
                images.flip(-1) + 0.1 * torch.randn(images.shape, generator=generator),
            )
        }


def loss(model, batch):
    first, second = (normalize(model(view).float(), dim=1) for view in batch["views"])
    return cross_entropy(first @ second.T / 0.1, torch.arange(len(first), device=first.device))


def suite():
    return Suite(
        name="contrastive",
        title="SimCLR with ResNet-18 on random images of 32 × 32",
        model=lambda: resnet18(num_classes=64),
        batches=batches,
        loss=loss,
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.05, momentum=0.9),
        batch_size=16,
    )
