"""Epochs of CIFAR-10 in four loops: the harness's own, the usual torchvision loop, Lightning's and accelerate's.

All train the same model from the same weights with the same optimizer and schedule. The three peers read PIL images
through two workers, which stay alive from epoch to epoch; the harness augments whole batches of decoded images.
"""

from __future__ import annotations

import importlib.util
import itertools
import logging
import time
import warnings
from collections.abc import Callable, Iterator
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, Dataset, Subset

from bench.data.cache import Dataset as Images
from bench.data.cache import Split
from bench.data.images import ImageBatches
from bench.spec.precisions import parse_precision
from bench.spec.suite import Data, Suite
from bench.training.lightning import accelerator_of, strategy_of
from bench.training.step import build_arm, build_loss, synchronize, train_epoch
from perf.arms import half_type

Epoch = Callable[[], float]
"""Trains one epoch and returns its seconds."""
WORKERS = 2
PEERS = {"torchvision": "torchvision", "lightning": "lightning", "accelerate": "accelerate"}
"""Loops, each with the package that it needs."""


class Pictures(Dataset[tuple[Tensor, int]]):
    """Images in memory handed out through PIL transforms, as torchvision's CIFAR10 does."""

    def __init__(self, images: Tensor, labels: Tensor, transform: Callable[[Image.Image], Tensor]) -> None:
        self.pixels = images.permute(0, 2, 3, 1).contiguous().numpy()
        self.labels, self.transform = labels.tolist(), transform

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, index: int) -> tuple[Tensor, int]:
        return self.transform(Image.fromarray(self.pixels[index])), self.labels[index]


class Source:
    """The first images of a folder's training set, or random ones: decoded for the harness, as files for the peers."""

    def __init__(self, folder: Path | None, samples: int, data: Data) -> None:
        from torchvision import datasets, transforms

        self.data, self.folder = data, folder
        height, width = data.input_shape[1:]
        steps = [transforms.RandomCrop((height, width), data.crop_padding), transforms.RandomHorizontalFlip()]
        steps += [transforms.ToTensor(), transforms.Normalize(data.mean, data.std)]
        self.transform = transforms.Compose(steps)
        if folder is None:
            chance = torch.Generator().manual_seed(0)
            images = torch.randint(0, 256, (samples, 3, height, width), dtype=torch.uint8, generator=chance)
            labels = torch.randint(0, data.classes or 10, (samples,), generator=chance)
            self.pictures: Dataset[Any] = Pictures(images, labels, self.transform)
        else:
            files = datasets.ImageFolder(str(folder / "train"), self.transform)
            spread = torch.linspace(0, len(files) - 1, min(samples, len(files))).long().tolist()
            self.pictures = Subset(files, spread)
            plain = transforms.PILToTensor()
            images = torch.stack([plain(files.loader(files.samples[index][0])) for index in spread])
            labels = torch.tensor([files.targets[index] for index in spread])
        split = Split(images=images, labels=labels)
        self.images = Images(train=split, test=split, classes=tuple(map(str, range(data.classes or 10))))

    def batches(self, batch_size: int, device: torch.device) -> ImageBatches:
        """Return the harness's batches."""
        return ImageBatches(self.images, self.data, batch_size=batch_size, device=device, seed=0)

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
    """What all loops are asked to do."""

    suite: Suite
    source: Source
    precision: str
    device: torch.device
    batch_size: int
    epochs: int
    """Of the schedule."""

    @property
    def half(self) -> torch.dtype | None:
        """What autocast computes in; None is fp32."""
        return half_type(self.precision)


def why_not(name: str) -> str | None:
    """Say why a peer is left out."""
    return None if importlib.util.find_spec(PEERS[name]) else f"{PEERS[name]} is not installed"


def harness(task: Task) -> Epoch:
    """Return the harness's own epoch."""
    batches = task.source.batches(task.batch_size, task.device)
    steps = task.epochs * batches.steps_per_epoch
    arm = build_arm(task.suite, task.source.data, parse_precision(task.precision), task.device, seed=0, steps=steps)
    numbers = itertools.count(1)
    return lambda: train_epoch(arm, batches.train(next(numbers))).seconds


def _parts(task: Task) -> tuple[Any, ...]:
    torch.manual_seed(0)
    model = task.suite.model(task.source.data).train()
    loader = task.source.loader(task.batch_size, task.device)
    optimizer = task.suite.optimizer(model.parameters())
    schedule = task.suite.schedule(optimizer, task.epochs * len(loader)) if task.suite.schedule else None
    return model, loader, optimizer, schedule, build_loss(task.suite, task.source.data)


def torchvision(task: Task) -> Epoch:
    """Return the epoch of the usual loop."""
    model, loader, optimizer, schedule, loss_of = _parts(task)
    device, half = task.device, task.half
    model = model.to(device)

    def epoch() -> float:
        synchronize(device)
        start = time.perf_counter()
        total = torch.zeros((), device=device)
        for inputs, targets in loader:
            inputs, targets = inputs.to(device, non_blocking=True), targets.to(device, non_blocking=True)  # noqa: PLW2901
            optimizer.zero_grad(set_to_none=True)
            with torch.autocast(device.type, dtype=half) if half else nullcontext():
                loss = loss_of(model(inputs), targets)
            loss.backward()
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total += loss.detach()
        synchronize(device)
        return time.perf_counter() - start

    return epoch


def accelerate(task: Task) -> Epoch:
    """Return the epoch of accelerate's loop."""
    from accelerate import Accelerator
    from accelerate.state import AcceleratorState

    model, loader, optimizer, schedule, loss_of = _parts(task)
    device = task.device
    mixed = "bf16" if task.half else "no"
    AcceleratorState._reset_state(True)  # which holds the precision of the loop before, and takes no other
    accelerator = Accelerator(cpu=device.type == "cpu", mixed_precision=mixed)
    model, optimizer, loader, schedule = accelerator.prepare(model, optimizer, loader, schedule)

    def epoch() -> float:
        synchronize(device)
        start = time.perf_counter()
        total = torch.zeros((), device=device)
        for inputs, targets in loader:
            optimizer.zero_grad()
            with accelerator.autocast():
                loss = loss_of(model(inputs), targets)
            accelerator.backward(loss)
            optimizer.step()
            if schedule is not None:
                schedule.step()
            total += loss.detach()
        synchronize(device)
        return time.perf_counter() - start

    return epoch


def lightning(task: Task) -> Epoch:
    """Return the epoch of Lightning's Trainer, its bar, logger and checkpoints off.

    Its clock begins and ends with the epoch, so that what the Trainer does before fitting and after it is not counted.
    Model and memory stay on the device in between, as they do between the epochs of one ``fit``.
    """
    import lightning.pytorch as pl

    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    model, loader, optimizer, schedule, loss_of = _parts(task)

    device = task.device
    devices = [device.index or 0] if device.type == "cuda" else 1
    resident = {"accelerator": accelerator_of(device), "strategy": strategy_of(device), "devices": devices}

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
            synchronize(device)
            self.start = time.perf_counter()

        def on_train_epoch_end(self) -> None:
            synchronize(device)
            self.seconds = time.perf_counter() - self.start

    module = Module()
    plain = dict.fromkeys(("logger", "enable_checkpointing", "enable_progress_bar", "enable_model_summary"), False)
    mixed = "bf16-mixed" if task.half else "32-true"

    def epoch() -> float:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            pl.Trainer(max_epochs=1, precision=mixed, **resident, **plain).fit(module, loader)
        return module.seconds

    return epoch


def rate(batches: Callable[[], Iterator[Any]], device: torch.device) -> Callable[[], float]:
    """Return what runs a pipeline alone for an epoch, and returns the seconds of an image."""

    def pipeline() -> float:
        count = 0
        start = time.perf_counter()
        for images, _ in batches():
            count += len(images.to(device, non_blocking=True))
        synchronize(device)
        return (time.perf_counter() - start) / count

    return pipeline


LOOPS = {"torchvision": torchvision, "lightning": lightning, "accelerate": accelerate}
