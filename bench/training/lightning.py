"""The same training by Lightning's Trainer, to measure its cost and what mixed precision gains in it.

Model, optimizer, schedule, GradScaler and batches are those of the plain loop; only the caller differs. Lightning is
imported when the loop is opened: it is an extra, ``pip install ampmeter[lightning]``.
"""

from __future__ import annotations

import logging
import os
import time
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from bench.data import Shard
from bench.data.batch import Batch
from bench.devices.backend import backend_of
from bench.spec.errors import UsageError
from bench.training.own_step import loss_in
from bench.training.step import Arm, Epoch, TakenSteps, synchronize

if TYPE_CHECKING:
    from lightning.pytorch.accelerators import Accelerator
    from lightning.pytorch.plugins.precision import Precision as LightningPrecision
    from lightning.pytorch.strategies import Strategy


def shard(devices: int) -> Shard:
    """Return this process's part of every batch of a training on several devices, whose ranks Lightning joins later."""
    return Shard(rank=int(os.environ["RANK"]), ranks=devices) if devices > 1 else Shard()


def open_lightning(arm: Arm, steps: int, shard: Shard) -> Callable[[Iterator[Batch]], Epoch]:
    """Return a function that trains ``arm`` for an epoch, as ``bench.training.step.train_epoch`` does.

    Each call is a ``fit`` of one epoch, of so many ``steps``, that continues the one before. Logger, checkpoints and
    progress bar are off. The clock runs from the Trainer's start of the epoch to its end, so setting up ``fit`` is not
    timed. Where the ``shard`` is one of several, Lightning's ``ddp`` joins them by the environment variables.
    """
    if arm.precision.master and shard.ranks > 1:  # their gradients are widened before Lightning can join them
        raise UsageError(f"{arm.precision.name} trains on one device only: --set devices=1.")
    if len(arm.optimizers) > 1:
        raise UsageError("Lightning's Trainer trains a suite of one optimizer here.")
    import lightning.pytorch as pl
    from lightning.pytorch.plugins.environments import LightningEnvironment

    # Advice on loaders and loggers, which are off on purpose.
    warnings.filterwarnings("ignore", module="lightning.*")
    logging.getLogger("lightning.pytorch").setLevel(logging.ERROR)
    first = (arm.device.index or 0) - shard.rank
    trainer = pl.Trainer(
        accelerator=accelerator_of(arm.device),
        devices=list(range(first, first + shard.ranks)) if backend_of(arm.device).is_gpu else shard.ranks,
        strategy=strategy_of(arm.device, shard.ranks),
        plugins=[_precision(arm), LightningEnvironment()],
        max_epochs=0,
        gradient_clip_val=arm.clip_grad,
        logger=False,
        enable_checkpointing=False,
        enable_progress_bar=False,
        enable_model_summary=False,
        num_sanity_val_steps=0,
        use_distributed_sampler=False,
    )
    module, counted = _module(arm), TakenSteps()
    arm.optimizer.register_step_post_hook(counted)

    def train_epoch(batches: Iterator[Batch]) -> Epoch:
        taken, waiting = counted.count, _Waiting(batches, steps, arm.count)
        trainer.fit_loop.max_epochs = trainer.current_epoch + 1
        trainer.fit(module, waiting)
        losses = torch.stack(module.losses).float().mean()
        return Epoch(
            loss=float(trainer.strategy.reduce(losses, reduce_op="mean")),
            seconds=module.seconds,
            wait_seconds=waiting.seconds,
            samples=waiting.samples * shard.ranks,
            skipped_steps=len(module.losses) - (counted.count - taken),
        )

    return train_epoch


@dataclass
class _Waiting:
    """An epoch's batches with their number, and the time spent waiting for them."""

    batches: Iterator[Batch]
    steps: int
    count: Callable[[Batch], int]
    seconds: float = 0.0
    samples: int = 0

    def __len__(self) -> int:
        return self.steps

    def __iter__(self) -> Iterator[Batch]:
        while True:
            asked = time.perf_counter_ns()
            batch = next(self.batches, None)
            self.seconds += (time.perf_counter_ns() - asked) / 1e9
            if batch is None:
                return
            self.samples += self.count(batch)
            yield batch


def _module(arm: Arm) -> Any:
    """Return an arm's LightningModule, which also keeps the losses and the time of its last epoch."""
    import lightning.pytorch as pl

    class ArmModule(pl.LightningModule):  # type: ignore[misc]  # Any, to mypy
        def __init__(self) -> None:
            super().__init__()
            self.model, self.loss = arm.model, arm.criterion
            self.losses: list[Tensor] = []
            self.seconds = 0.0
            self._start_ns = 0

        def training_step(self, batch: Batch, _index: int) -> Tensor:
            loss = loss_in(arm.loss(self.model, batch))
            self.losses.append(loss.detach())
            return loss

        def configure_optimizers(self) -> Any:
            if not arm.schedules:
                return arm.optimizer
            return {"optimizer": arm.optimizer, "lr_scheduler": {"scheduler": arm.schedules[0], "interval": "step"}}

        def on_train_epoch_start(self) -> None:
            self.losses.clear()
            self.trainer.strategy.barrier()  # another process may still be evaluating
            synchronize(arm.device)
            self._start_ns = time.perf_counter_ns()

        def on_train_epoch_end(self) -> None:
            synchronize(arm.device)
            self.seconds = (time.perf_counter_ns() - self._start_ns) / 1e9

    return ArmModule()


def _precision(arm: Arm) -> LightningPrecision:
    """Return Lightning's plugin of ``32-true``, ``16-mixed`` or ``bf16-mixed``, with the arm's GradScaler.

    Given by name, 16-mixed on a CPU would silently become bf16-mixed. The arm itself holds 16-bit weights.
    """
    from lightning.pytorch.plugins.precision import MixedPrecision, Precision

    if arm.precision.autocast is None and not arm.precision.loss_scaling:
        return Precision()

    class Mixed(MixedPrecision):  # type: ignore[misc]  # Any, to mypy
        def forward_context(self) -> Any:
            return arm.autocast()

    scaler = arm.scaler if arm.precision.loss_scaling else None
    plugin = Mixed("16-mixed" if scaler else "bf16-mixed", arm.device.type, scaler)
    # Afterwards, for a 16-mixed that is given no scaler makes one.
    plugin.precision = "bf16-mixed" if arm.precision.compute == "bfloat16" else "16-mixed"
    return plugin


def accelerator_of(device: torch.device) -> Accelerator | str:
    """Return Lightning's accelerator of a device's kind, which leaves the allocator its memory when ``fit`` begins."""
    if not backend_of(device).is_gpu:
        return "cpu"
    from lightning.pytorch.accelerators import CUDAAccelerator

    class Cuda(CUDAAccelerator):  # type: ignore[misc]  # Any, to mypy
        def setup(self, trainer: Any) -> None:
            """Log the visible devices only: the next epoch uses the memory that the one before allocated."""
            self.set_nvidia_flags(trainer.local_rank)

    return Cuda()


def strategy_of(device: torch.device, ranks: int = 1) -> Strategy:
    """Return Lightning's strategy for one device or several, which leaves the model there when ``fit`` ends."""
    from lightning.pytorch.strategies import DDPStrategy, SingleDeviceStrategy

    class OneDevice(SingleDeviceStrategy):  # type: ignore[misc]  # Any, to mypy
        def teardown(self) -> None:
            """Leave the model where it is, and the allocator its memory: the next epoch goes on with both."""

    class DataParallel(DDPStrategy):  # type: ignore[misc]  # Any, to mypy
        def teardown(self) -> None:
            """Leave model and memory, as above."""

    return OneDevice(device=device) if ranks == 1 else DataParallel()
