"""The train phase: one precision from its initial weights, with an evaluation after each epoch."""

from __future__ import annotations

import math
import statistics
import time
from collections.abc import Callable, Iterator

from torch import Tensor

from bench.data import open_batches
from bench.findings import Training
from bench.phases.setting import enter, open_setting
from bench.precision import apply, read_back
from bench.records import Device, EpochResult, Message, Progress, TrialResult
from bench.train import Arm, Epoch, build_arm, evaluate, train_epoch
from bench.trial import Trial

HEARTBEAT_S = 2.0


def run(trial: Trial, _device: Device, send: Callable[[Message], None]) -> None:
    """Train the trial's only precision; send each epoch, then the result."""
    setting = open_setting(trial)
    precision, _ = enter(trial.precisions[0], setting.device)
    source, batch_size = trial.cell.data, trial.cell.batch_size
    batches = open_batches(setting.data, source, batch_size=batch_size, device=setting.device, seed=trial.seed)
    steps = trial.epochs * batches.steps_per_epoch
    arm = build_arm(setting.suite, batches.data, precision, setting.device, seed=trial.seed, steps=steps)
    apply(precision)  # again: a model may have set switches of its own
    rows: list[EpochResult] = []
    start, elapsed_s = time.monotonic(), 0.0
    for number in range(1, trial.epochs + 1):
        rate = float(arm.optimizer.param_groups[0]["lr"])
        said = f"epoch {number} of {trial.epochs}"
        done = (number - 1) / trial.epochs
        epoch = train_epoch(arm, _heartbeat(batches.train(number), send, f"{said}, step", done))
        test_start = time.monotonic()
        tested = (
            evaluate(arm, _heartbeat(batches.test(), send, f"{said}, test batch", done)) if batches.has_test else None
        )
        test_s = time.monotonic() - test_start if batches.has_test else None
        elapsed_s += epoch.seconds
        rows.append(
            _row(
                trial,
                arm,
                epoch,
                number=number,
                tested=tested or (None, None),
                rate=rate,
                elapsed_s=elapsed_s,
                test_s=test_s,
            )
        )
        send(rows[-1])
        if not math.isfinite(epoch.loss):
            break
    total_s = time.monotonic() - start
    finite = math.isfinite(rows[-1].train_loss)
    send(
        TrialResult(
            precision=precision.name,
            status="ok" if finite else "nonfinite",
            detail="" if finite else f"the training loss became {rows[-1].train_loss} in epoch {rows[-1].epoch}",
            switches=read_back(precision, setting.device),
            training=_summary(rows, total_s),
        )
    )


def _row(
    trial: Trial,
    arm: Arm,
    epoch: Epoch,
    *,
    number: int,
    tested: tuple[float | None, float | None],
    rate: float,
    elapsed_s: float,
    test_s: float | None,
) -> EpochResult:
    return EpochResult(
        trial=trial.id,
        precision=arm.precision.name,
        seed=trial.seed,
        epoch=number,
        train_loss=epoch.loss,
        test_loss=tested[0],
        test_accuracy_pct=tested[1],
        train_s=epoch.seconds,
        test_s=test_s,
        elapsed_s=elapsed_s,
        data_wait_s=epoch.wait_seconds,
        samples=epoch.samples,
        learning_rate=rate,
        loss_scale=arm.scaler.get_scale() if arm.scaler.is_enabled() else None,
        skipped_steps=epoch.skipped_steps,
    )


def _summary(rows: list[EpochResult], total_s: float) -> Training:
    train_s = sum(row.train_s for row in rows)
    return Training(
        epochs=len(rows),
        time_per_epoch_s=statistics.median(row.train_s for row in rows),
        total_s=total_s,
        train_samples_per_s=sum(row.samples for row in rows) / train_s,
        train_loss=rows[-1].train_loss,
        test_loss=rows[-1].test_loss,
        test_accuracy_pct=rows[-1].test_accuracy_pct,
        data_wait_pct=100 * sum(row.data_wait_s for row in rows) / train_s,
    )


def _heartbeat(
    batches: Iterator[tuple[Tensor, Tensor]], send: Callable[[Message], None], text: str, done: float
) -> Iterator[tuple[Tensor, Tensor]]:
    """Pass batches on, and every two seconds say how many."""
    said = time.monotonic()
    for index, batch in enumerate(batches):
        now = time.monotonic()
        if now - said >= HEARTBEAT_S:
            said = now
            send(Progress(text=f"{text} {index + 1}", done=done))
        yield batch
