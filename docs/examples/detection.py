"""Detection with torchvision: a batch is a list of images and a list of dicts of boxes.

python run_bench.py --suite docs/examples/detection.py --quick
"""

import torch
from torchvision.models.detection import fasterrcnn_mobilenet_v3_large_320_fpn

from bench.spec import Suite


def batches(split, batch_size, seed):
    generator = torch.Generator().manual_seed(seed)
    for _ in range(3 if split == "train" else 1):
        images = [
            torch.rand(3, 96 + 32 * (place % 2), 128, generator=generator)
            for place in range(batch_size)
        ]
        corners = 48 * torch.rand(batch_size, 2, 2, generator=generator)
        boxes = torch.cat([corners, corners + 40], dim=2)
        yield {
            "images": images,
            "targets": [{"boxes": each, "labels": torch.tensor([1, 2])} for each in boxes],
        }


def loss(model, batch):
    model.train()  # when it evaluates, it returns boxes and no losses
    return sum(model(batch["images"], batch["targets"]).values())


def suite():
    return Suite(
        name="detection",
        title="Faster R-CNN (MobileNetV3) on random images",
        model=lambda: fasterrcnn_mobilenet_v3_large_320_fpn(
            weights=None, weights_backbone=None, num_classes=3, min_size=128, max_size=160
        ),
        batches=batches,
        loss=loss,
        count=lambda batch: len(batch["images"]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=1e-3, momentum=0.9),
        batch_size=2,
    )
