"""What training came to: a row for each epoch, and their sum in a result."""

from __future__ import annotations

import math
import statistics
from dataclasses import dataclass

import torch

from bench.results.records import EpochResult, Training
from bench.spec.trial import Trial
from bench.training.checkpoint import stored_bytes
from bench.training.step import Arm, Epoch


@dataclass(frozen=True, kw_only=True, slots=True)
class Tested:
    """What the model knows after an epoch, under the arm's precision and in fp32; None is not evaluated."""

    loss: float | None = None
    accuracy_pct: float | None = None
    seconds: float | None = None
    loss_fp32: float | None = None
    accuracy_fp32_pct: float | None = None
    train_accuracy_pct: float | None = None
    """On training images, under the arm's precision."""


def row(
    trial: Trial,
    before: list[EpochResult],
    epoch: Epoch,
    tested: Tested,
    *,
    rate: float,
    scale: float | None,
    energy_j: float | None,
) -> EpochResult:
    """Return the row of the epoch after those ``before``; ``rate`` and ``scale`` are those it began and ended with."""
    return EpochResult(
        trial=trial.id,
        precision=trial.precisions[0],
        seed=trial.seed,
        epoch=len(before) + 1,
        train_loss=epoch.loss,
        test_loss=tested.loss,
        test_accuracy_pct=tested.accuracy_pct,
        train_s=epoch.seconds,
        test_s=tested.seconds,
        elapsed_s=epoch.seconds + (before[-1].elapsed_s if before else 0.0),
        data_wait_s=epoch.wait_seconds,
        samples=epoch.samples,
        learning_rate=rate,
        loss_scale=scale,
        skipped_steps=epoch.skipped_steps,
        samples_per_s=epoch.samples / epoch.seconds,
        test_loss_fp32=tested.loss_fp32,
        test_accuracy_fp32_pct=tested.accuracy_fp32_pct,
        train_accuracy_pct=tested.train_accuracy_pct,
        energy_j=energy_j,
    )


def summary(trial: Trial, rows: list[EpochResult], arm: Arm) -> Training:
    """Return what the epochs, at least one, come to."""
    train_s = rows[-1].elapsed_s
    drawn_j = [row.energy_j for row in rows if row.energy_j is not None]
    return Training(
        epochs=len(rows),
        time_per_epoch_s=statistics.median(row.train_s for row in rows),
        total_s=train_s + sum(row.test_s or 0.0 for row in rows),
        train_samples_per_s=sum(row.samples for row in rows) / train_s,
        train_loss=rows[-1].train_loss,
        test_loss=rows[-1].test_loss,
        test_accuracy_pct=rows[-1].test_accuracy_pct,
        data_wait_pct=100 * sum(row.data_wait_s for row in rows) / train_s,
        test_loss_fp32=rows[-1].test_loss_fp32,
        test_accuracy_fp32_pct=rows[-1].test_accuracy_fp32_pct,
        target_accuracy_pct=trial.target_accuracy_pct,
        time_to_accuracy_s=time_to_accuracy_s(rows, trial.target_accuracy_pct),
        checkpoint_bytes=stored_bytes(arm.model),
        checkpoint_16bit_bytes=stored_bytes(arm.model, torch.float16),
        train_energy_j=sum(drawn_j) if len(drawn_j) == len(rows) else None,
    )


def time_to_accuracy_s(rows: list[EpochResult], target_pct: float | None) -> float | None:
    """Return the training time until the end of the first epoch that reached the target; None where none did."""
    for row in rows:
        if target_pct is not None and row.test_accuracy_pct is not None and row.test_accuracy_pct >= target_pct:
            return row.elapsed_s
    return None


def broken(last: EpochResult) -> str:
    """Say which loss was not finite in the epoch that training ended with; empty where all were."""
    for name, loss in (("training", last.train_loss), ("test", last.test_loss)):
        if loss is not None and not math.isfinite(loss):
            return f"the {name} loss became {loss} in epoch {last.epoch}"
    return ""
