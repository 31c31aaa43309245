"""Epochs of CIFAR-10 in three loops: the harness's, the usual torchvision loop, and Lightning's.

All train the same model from the same weights with the same optimizer and schedule. The two peers
read PIL images through two worker processes, which live from epoch to epoch; the harness augments
whole batches of decoded images.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import time
import warnings
from collections.abc import Callable
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from bench.data.batches import ImageBatches
from bench.data.cache import Dataset as Images
from bench.data.cache import Split
from bench.devices.backend import backend_of
from bench.spec.precisions import parse_precision
from bench.spec.suite import Data, Suite
from bench.training.step import build_arm, build_loss, train_epoch
from perf.arms import half_type

# Trains one epoch and returns its seconds.
Epoch = Callable[[], float]
WORKERS = 2


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images in memory that pass through PIL transforms one by one, as in torchvision's CIFAR10."""

    def __init__(
        self, images: Tensor, labels: Tensor, transform: Callable[[Image.Image], Tensor]
    ) -> None:
        self.pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels, self.transform = labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


class Source:
    """The first images of a folder's training set, or random ones.

    The harness gets them decoded, the peers as files.
    """

    def __init__(self, folder: Path | None, samples: int, data: Data) -> None:
        from torchvision import datasets, transforms

        self.data = data
        height, width = data.input_shape[1:]
        transform = transforms.Compose(
            [
                transforms.RandomCrop((height, width), data.crop_padding),
                transforms.RandomHorizontalFlip(),
                transforms.ToTensor(),
                transforms.Normalize(data.mean, data.std),
            ]
        )
        if folder is None:
            rng = torch.Generator().manual_seed(0)
            shape = (samples, 3, height, width)
            images = torch.randint(0, 256, shape, dtype=torch.uint8, generator=rng)
            labels = torch.randint(0, data.classes or 10, (samples,), generator=rng)
            self.pictures: Dataset[Any] = Pictures(images, labels, transform)
        else:
            files = datasets.ImageFolder(str(folder / "train"), transform)
            spread = torch.linspace(0, len(files) - 1, min(samples, len(files))).long().tolist()
            self.pictures = Subset(files, spread)
            plain = transforms.PILToTensor()
            images = torch.stack([plain(files.loader(files.samples[index][0])) for index in spread])
            labels = torch.tensor([files.targets[index] for index in spread])
        split = Split(images=images, labels=labels)
        names = tuple(map(str, range(data.classes or 10)))
        self.images = Images(train=split, test=split, classes=names)

    def batches(self, batch_size: int, device: torch.device) -> ImageBatches:
        """Return the harness's batches."""
        return ImageBatches(
            self.images, data=self.data, batch_size=batch_size, device=device, seed=0
        )

    def loader(self, batch_size: int, device: torch.device) -> DataLoader[Any]:
        """Return the usual loader of the peers."""
        return DataLoader(
            self.pictures,
            batch_size,
            shuffle=True,
            drop_last=True,
            num_workers=WORKERS,
            persistent_workers=True,
            pin_memory=device.type == "cuda",
        )


@dataclass(frozen=True, kw_only=True, slots=True)
class Task:
    """The training that all loops run."""

    suite: Suite
    source: Source
    precision: str
    device: torch.device
    batch_size: int
    epochs: int
    """Of the schedule."""

    def build(self) -> tuple[Any, ...]:
        """Return a peer's model, loader, optimizer, schedule (None without one) and loss."""
        torch.manual_seed(0)
        model = self.suite.model(self.source.data).train()
        loader = self.source.loader(self.batch_size, self.device)
        optimizer = self.suite.optimizer(model.parameters())
        schedule = None
        if self.suite.schedule:
            schedule = self.suite.schedule(optimizer, self.epochs * len(loader))
        return model, loader, optimizer, schedule, build_loss(self.suite, self.source.data)


def why_not(peer: str) -> str | None:
    """Return the reason why a peer is left out; a peer has the name of its package."""
    return None if importlib.util.find_spec(peer) else f"{peer} is not installed"


def harness(task: Task) -> Epoch:
    """Return the harness's epoch."""
    batches = task.source.batches(task.batch_size, task.device)
    steps = task.epochs * batches.steps_per_epoch
    arm = build_arm(
        task.suite,
        task.source.data,
        parse_precision(task.precision),
        task.device,
        seed=0,
        steps=steps,
    )
    numbers = itertools.count(1)
    return lambda: train_epoch(arm, batches.train(next(numbers))).seconds


def torchvision(task: Task) -> Epoch:
    """Return the epoch of the usual loop."""
    model, loader, optimizer, schedule, loss_of = task.build()
    device, half = task.device, half_type(task.precision)
    model = model.to(device)

    def epoch() -> float:
        backend_of(device).synchronize()
        start = time.perf_counter()
        total = torch.zeros((), device=device)
        for batch in loader:
            inputs, targets = (part.to(device, non_blocking=True) for part in batch)
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=half) if half else nullcontext():
                loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total += loss.detach()
        backend_of(device).synchronize()
        return time.perf_counter() - start

    return epoch


def lightning(task: Task) -> Epoch:
    """Return the epoch of Lightning's Trainer, its bar, logger and checkpoints off.

    The clock runs only during the epoch, so the Trainer's work before and after fitting is not
    counted. Model and memory stay on the device in between, as between the epochs of one ``fit``.
    """
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, loader, optimizer, schedule, loss_of = task.build()
    device = task.device
    devices = [device.index or 0] if device.type == "cuda" else 1

    class Module(pl.LightningModule):
        seconds = 0.0

        def __init__(self) -> None:
            super().__init__()
            self.model = model

        def training_step(self, batch: Any, _index: int) -> Tensor:
            return loss_of(self.model(batch[0]), batch[1])

        def configure_optimizers(self) -> Any:
            scheduler = {"scheduler": schedule, "interval": "step"}
            return {"optimizer": optimizer, "lr_scheduler": scheduler} if schedule else optimizer

        def on_train_epoch_start(self) -> None:
            backend_of(device).synchronize()
            self.start = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            backend_of(device).synchronize()
            self.seconds = time.perf_counter() - self.start

    module = Module()
    plain = dict.fromkeys(
        ("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False
    )
    mixed = "bf16-mixed" if half_type(task.precision) else "32-true"

    def epoch() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # New for each Trainer: a used strategy holds its accelerator, and the next Trainer
            # refuses that.
            resident = {
                "accelerator": accelerator_of(device),
                "strategy": strategy_of(device),
                "devices": devices,
            }
            pl.Trainer(max_epochs=1, precision=mixed, **resident, **plain).fit(module, loader)
        return module.seconds

    return epoch


def accelerator_of(device: torch.device) -> Any:
    """Return Lightning's accelerator, which leaves the allocator its memory when ``fit`` begins."""
    if device.type == "cpu":
        return "cpu"
    from lightning.pytorch.accelerators import CUDAAccelerator

    class Cuda(CUDAAccelerator):
        def setup(self, trainer: Any) -> None:
            """Log the visible devices, and free nothing: the next epoch uses it again."""
            self.set_nvidia_flags(trainer.local_rank)

    return Cuda()


def strategy_of(device: torch.device) -> Any:
    """Return Lightning's strategy for one device, which leaves the model there after ``fit``."""
    from lightning.pytorch.strategies import SingleDeviceStrategy

    class OneDevice(SingleDeviceStrategy):
        def teardown(self) -> None:
            """Leave the model where it is, and the allocator its memory, for the next epoch."""

    return OneDevice(device=device)


LOOPS: dict[str, Callable[[Task], Epoch]] = {"torchvision": torchvision, "lightning": lightning}
