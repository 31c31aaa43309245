"""The train phase: one precision from its initial weights, with an evaluation after each epoch."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

from torch import Tensor

from bench.data import Batches, Share, open_batches
from bench.data.transfer import feed
from bench.devices.energy import meters
from bench.devices.monitor import DeviceLostError, open_monitor
from bench.measure.energy import total
from bench.phases import trained
from bench.phases.compiling import compile_s
from bench.phases.context import enter, open_setting
from bench.phases.trained import Tested
from bench.results.records import Device, EpochResult, Message, Progress, TrialResult
from bench.spec.precisions import BASELINE
from bench.spec.trial import Trial
from bench.training import distributed, lightning, rank_launcher
from bench.training.amp import apply, read_back
from bench.training.checkpoint import Checkpoint, read_checkpoint
from bench.training.evaluation import evaluate, evaluate_fp32
from bench.training.step import Arm, Epoch, build_arm, train_epoch
from bench.training.techniques import require_supported

HEARTBEAT_S = 2.0


def run(
    trial: Trial,
    device: Device,
    send: Callable[[Message], None],
    checkpoint: Path | None = None,
    share: Share | None = None,
) -> None:
    """Train the trial's only precision; send each epoch, then the result.

    Args:
        trial: what to train.
        device: where, and whether it counts energy.
        send: takes the records; those of epochs that a checkpoint holds are sent again.
        checkpoint: the file to keep the training in after each epoch, and to go on from if it holds this trial's;
            None keeps nothing. Where several train together, only the first one's file is written and read.
        share: this process's part of every batch, where Lightning joins several; None is its part of those joined.
    """
    part = Share(rank=distributed.rank(), ranks=distributed.ranks())
    share = share or part
    setting = open_setting(trial)
    if setting.suite.trainer == "lightning":
        require_supported(setting.techniques, setting.suite, setting.data, setting.device)  # before others are started
    if setting.suite.devices > share.ranks:
        rank_launcher.run(trial, device, send, setting.suite.devices)
        return
    precision, _ = enter(trial.precisions[0], setting.device)
    source, batch_size = trial.cell.data, trial.cell.batch_size
    chosen = setting.techniques
    batches = open_batches(
        setting.data,
        source,
        batch_size=batch_size,
        device=setting.device,
        seed=trial.seed,
        share=share,
    )
    steps = trial.epochs * batches.steps_per_epoch
    arm = build_arm(
        setting.suite,
        batches.data,
        precision,
        setting.device,
        seed=trial.seed,
        steps=steps,
        clip_grad=trial.clip_grad,
        techniques=chosen,
    )
    apply(precision)  # again: a model may have set switches of its own
    if chosen.compile:
        send(Progress(text=f"{precision.name}: compiling"))
    spent_s = compile_s(arm, batches.data, batch_size)  # before the first epoch's time
    keeping = distributed.from_first(checkpoint is not None)
    rows, unread = _go_on(arm, trial, checkpoint)
    for row in rows:
        send(row)
    energy_j = _energy_counter(device)
    train: Callable[[Iterator[tuple[Tensor, Tensor]]], Epoch] = partial(train_epoch, arm)
    if setting.suite.trainer == "lightning":
        train = lightning.open_lightning(arm, batches.steps_per_epoch, share)
    for number in range(len(rows) + 1, trial.epochs + 1):
        if rows and not math.isfinite(rows[-1].train_loss):
            break
        rate = float(arm.optimizer.param_groups[0]["lr"])
        watch = _Watch(send=send, epoch=number, epochs=trial.epochs)
        before_j = energy_j()
        with feed(batches.train(number), setting.device, prefetch=chosen.prefetcher) as fed:
            epoch = train(watch(fed, "step"))
        after_j = energy_j()
        drawn_j = after_j - before_j if before_j is not None and after_j is not None else None
        tested = _test(arm, batches, watch, part)
        rows.append(trained.row(trial, rows, epoch, tested, rate=rate, scale=_scale(arm), energy_j=drawn_j))
        if keeping:
            state = Checkpoint.of(arm, trial.config, rows)
            if checkpoint is not None and distributed.rank() == 0:
                state.write(checkpoint)
        send(rows[-1])
    broken = trained.broken(rows[-1])
    send(
        TrialResult(
            precision=precision.name,
            status="nonfinite" if broken else "ok",
            detail=broken or unread,
            compile_s=spent_s,
            switches=read_back(precision, setting.device),
            training=replace(trained.summary(trial, rows, arm), data_storage=batches.place),
        )
    )


@dataclass(frozen=True, kw_only=True, slots=True)
class _Watch:
    """Passes batches on, and every two seconds says how many."""

    send: Callable[[Message], None]
    epoch: int
    epochs: int

    def __call__(self, batches: Iterator[tuple[Tensor, Tensor]], unit: str) -> Iterator[tuple[Tensor, Tensor]]:
        said = time.monotonic()
        for index, batch in enumerate(batches):
            now = time.monotonic()
            if now - said >= HEARTBEAT_S:
                said = now
                text = f"epoch {self.epoch} of {self.epochs}, {unit} {index + 1}"
                self.send(Progress(text=text, done=(self.epoch - 1) / self.epochs))
            yield batch


def _go_on(arm: Arm, trial: Trial, checkpoint: Path | None) -> tuple[list[EpochResult], str]:
    """Bring the arm to where the trial's checkpoint left off.

    Returns:
        The epochs so far, none without a checkpoint; and that there was one that could not be read, in words.
    """
    found, unread = None, ""
    if checkpoint is not None and distributed.rank() == 0 and checkpoint.exists():
        found = read_checkpoint(checkpoint)
        unread = "" if found else "its checkpoint could not be read, so training began anew"
    kept = distributed.from_first(found)
    if kept is None or kept.config != trial.config:
        return [], unread
    kept.restore(arm)
    return list(kept.epochs), ""


def _test(arm: Arm, batches: Batches, watch: _Watch, share: Share) -> Tested:
    if not batches.has_test:
        return Tested()
    if share.ranks > 1:
        distributed.share_buffers(arm.model)
    start = time.monotonic()
    own = evaluate(arm, watch(batches.test(share), "test batch"))
    seconds = time.monotonic() - start
    same = arm.precision.name == BASELINE
    fp32 = own if same else evaluate_fp32(arm, watch(batches.test(share), "test batch in fp32"))
    _, learned = evaluate(arm, watch(batches.train_sample(share), "batch of training images"))
    return Tested(
        loss=own[0],
        accuracy_pct=own[1],
        seconds=seconds,
        loss_fp32=fp32[0],
        accuracy_fp32_pct=fp32[1],
        train_accuracy_pct=learned,
    )


def _energy_counter(device: Device) -> Callable[[], float | None]:
    """Return a function that reads what the device, or all that train together, have drawn so far, in joules.

    It returns None where one of them does not tell.
    """
    monitor = open_monitor() if device.energy == "counter" else None
    boards = meters(monitor, device) if monitor is not None else ()
    if len(boards) < distributed.ranks():
        return lambda: None

    def read() -> float | None:
        try:
            return total([board.energy_j() for board in boards])
        except DeviceLostError:
            return None

    return read


def _scale(arm: Arm) -> float | None:
    return arm.scaler.get_scale() if arm.scaler.is_enabled() else None
