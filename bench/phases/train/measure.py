"""The train phase: trains one precision from its initial weights and evaluates each epoch."""

from __future__ import annotations

import itertools
import math
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.data import Batches
from bench.data.batch import Batch
from bench.data.transfer import prefetched
from bench.phases.train import Training
from bench.results.records import Device, EpochResult, Progress, Send, Switches
from bench.spec.errors import UsageError
from bench.spec.suite import Quality, Suite
from bench.spec.trial import Trial, kept_checkpoint
from bench.training import distributed
from bench.training.arms import Context, TrainingRunner, open_context
from bench.training.checkpoint import Checkpoint, read_checkpoint, stored_bytes
from bench.training.step import BuiltArm, CrossEntropies, evaluate, evaluate_by, train_epoch

# How often a training says how far it is: well within the time after which a silent process is
# taken for one that hangs.
HEARTBEAT_S = 2.0

# Passes batches on, counted in this unit, with signs of life in between.
Heartbeat = Callable[[str, Iterator[Batch]], Iterator[Batch]]


def run(
    trial: Trial,
    _device: Device,
    send: Send,
    checkpoint: Path | None = None,
) -> None:
    """Train the trial's only precision; send each epoch, then the result.

    Args:
        trial: what to train.
        send: takes the records; those of epochs that a checkpoint holds are sent again.
        checkpoint: the file that the training is saved to after each epoch, and resumed from if it
            holds this trial; None for no checkpoint. Of several ranks only the first writes and
            reads its file.
    """
    context = open_context(trial)
    (name,) = trial.arm_names
    batches = context.open_batches()
    context = replace(context, data=batches.data)
    steps = context.suite.schedule_length(trial.epochs, batches.steps_per_epoch)
    arm = context.build(name, steps=steps)
    runner = TrainingRunner(name, arm, iter(()))
    runner.compile(context, send)  # outside the first epoch's time
    saves_checkpoints = distributed.from_first(checkpoint is not None)
    rows, trained, read_failure = _resume(arm, trial, checkpoint)
    for row in rows:
        send(row)
    switches = runner.read_back()
    for number in range(trained + len(rows) + 1, trial.epochs + 1):
        # It would not become finite again; a checkpoint may hold such an epoch, too.
        last = rows[-1] if rows else None
        if last and not math.isfinite(last.train_loss):
            break
        heartbeat = partial(_heartbeat, send, number, trial.epochs)
        row, switches = _epoch(number, context, runner, batches, heartbeat)
        if last:
            row = replace(row, elapsed_s=last.elapsed_s + row.elapsed_s)
        rows.append(row)
        if saves_checkpoints:
            # In all ranks: the state of each one's random generators is gathered.
            state = Checkpoint.of(arm, trial.id, rows)
            if checkpoint is not None and distributed.rank() == 0:
                state.write(checkpoint)
                if trial.keep_checkpoints:
                    kept = checkpoint.parent / kept_checkpoint(trial.id, number).name
                    shutil.copyfile(checkpoint, kept)
        send(row)
    runner.batches = itertools.cycle(context.resident_batches(1))
    failure = _nonfinite(rows[-1], context.suite.quality)
    with CrossEntropies() as entropies:
        operations = runner.operations()
    result = runner.result(
        "nonfinite" if failure else "ok",
        failure or read_failure,
        switches=switches,
        operations=operations,
        conversion=arm.conversion,
        row=_training(rows, arm, batches, context.suite.quality, of_classes=bool(entropies.seen)),
    )
    send(result)


def _epoch(
    number: int,
    context: Context,
    runner: TrainingRunner,
    batches: Batches,
    heartbeat: Heartbeat,
) -> tuple[EpochResult, Switches]:
    """Train and test one epoch; return its row, elapsed by itself, and the switches after training.

    They are read back before the test, in which they need not be the training's.
    """
    trial = context.trial
    arm = runner.arm
    learning_rate = float(arm.optimizer.param_groups[0]["lr"])
    fed = batches.train(number)  # tokens are drawn here, before the clock
    if context.techniques.prefetcher:
        fed = prefetched(fed, context.device)
    with closing(fed) as device_batches:
        start_s = time.time()
        epoch = train_epoch(arm, heartbeat("step", device_batches))
    switches = runner.read_back()
    row = EpochResult(
        trial=trial.id,
        precision=runner.name,
        seed=trial.seed,
        epoch=number,
        train_loss=epoch.loss,
        train_s=epoch.seconds,
        elapsed_s=epoch.seconds,
        data_wait_s=epoch.wait_seconds,
        samples=epoch.samples,
        learning_rate=learning_rate,
        loss_scale=arm.loss_scale,
        skipped_steps=epoch.skipped_steps,
        samples_per_s=epoch.samples / epoch.seconds,
        start_s=start_s,
        **_tested(context.suite, arm, batches, heartbeat),
    )
    return row, switches


def _heartbeat(
    send: Send,
    epoch: int,
    epochs: int,
    unit: str,
    batches: Iterator[Batch],
) -> Iterator[Batch]:
    """Pass batches on, and send progress with their number every two seconds."""
    last = time.monotonic()
    for number, batch in enumerate(batches, start=1):
        now = time.monotonic()
        if now - last >= HEARTBEAT_S:
            last = now
            text = f"epoch {epoch} of {epochs}, {unit} {number}"
            send(Progress(text=text, done=(epoch - 1) / epochs))
        yield batch


def _resume(
    arm: BuiltArm,
    trial: Trial,
    checkpoint: Path | None,
) -> tuple[list[EpochResult], int, str]:
    """Restore the arm from the trial's checkpoint, or else from that of a run that it starts from.

    Returns:
        The epochs trained so far, none without a checkpoint of this trial; how many were trained
        before in another run; and a message if the trial's file could not be read.

    Raises:
        UsageError: the checkpoint that it starts from cannot be read, or is of another training.
    """
    stored = None
    read_failure = ""
    if checkpoint is not None and distributed.rank() == 0 and checkpoint.exists():
        stored = read_checkpoint(checkpoint)
        if stored is None:
            read_failure = "its checkpoint could not be read, so training began anew"
    state = distributed.from_first(stored)
    if state is not None and state.trial == trial.id:
        state.restore(arm)
        return list(state.epochs), state.epochs[0].epoch - 1, ""
    if trial.start is None:
        return [], 0, read_failure
    if distributed.rank() == 0:
        stored = read_checkpoint(Path(trial.start))
    begun = distributed.from_first(stored)
    if begun is None:
        raise UsageError(
            f"The checkpoint '{trial.start}' cannot be read. Train its run again, or another "
            "epoch's."
        )
    is_of_cell = begun.trial.startswith(f"{trial.cell_id}-train-")
    if not (is_of_cell and begun.trial.endswith(f"-s{trial.seed}")):
        raise UsageError(f"The checkpoint '{trial.start}' is of another training, {begun.trial}.")
    if begun.epochs[-1].epoch >= trial.epochs:
        raise UsageError(
            f"The checkpoint '{trial.start}' leaves no epoch to train: the recipe has "
            f"{trial.epochs}."
        )
    begun.restore(arm)
    return [], begun.epochs[-1].epoch, read_failure


def _tested(
    suite: Suite,
    arm: BuiltArm,
    batches: Batches,
    heartbeat: Heartbeat,
) -> dict[str, Any]:
    """Return an epoch's figures from the evaluation after it, where the data have a test set."""
    tested: dict[str, Any] = {
        "test_loss": None,
        "test_accuracy_pct": None,
        "test_s": None,
    }
    if not batches.has_test:
        return tested
    # Each rank has batch norm's statistics of its own part, and all test one model.
    distributed.share_buffers(arm.model)
    start = time.monotonic()
    test = heartbeat("test batch", batches.test())
    if suite.evaluate is not None:
        tested["figures"] = evaluate_by(suite, arm, test)
    else:
        tested["test_loss"], tested["test_accuracy_pct"] = evaluate(arm, test)
    tested["test_s"] = time.monotonic() - start
    return tested


def _training(
    rows: list[EpochResult],
    arm: BuiltArm,
    batches: Batches,
    quality: Quality | None,
    *,
    of_classes: bool,
) -> Training:
    """Return the result of a training of one epoch or more, without what follows from its epochs.

    ``of_classes`` says that its loss is a cross entropy: then it can be compared where there is no
    accuracy.
    """
    last = rows[-1]
    has_loss_alone = last.test_loss is not None and last.test_accuracy_pct is None
    columns = {}
    if quality is not None:
        for name, value in asdict(quality).items():
            columns[f"quality_{name}"] = value
    test_s = sum(row.test_s or 0.0 for row in rows)
    return Training(
        total_s=last.elapsed_s + test_s,
        checkpoint_bytes=stored_bytes(arm.model),
        data_storage=batches.storage,
        entropy_nats=batches.entropy_nats,
        regression=has_loss_alone and not of_classes,
        **columns,
    )


def _nonfinite(last: EpochResult, quality: Quality | None) -> str:
    """Return a message about a loss, or the quality, that is not finite in the last epoch."""
    for name, loss in (("training", last.train_loss), ("test", last.test_loss)):
        if loss is not None and not math.isfinite(loss):
            return f"the {name} loss became {loss} in epoch {last.epoch}"
    if quality and quality.name in last.figures and last.figures[quality.name] is None:
        return f"evaluate's figure {quality.name!r} was NaN or infinite in epoch {last.epoch}"
    return ""
