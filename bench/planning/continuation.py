"""Trainings that continue those of another run, from the checkpoint of an epoch, in the same or another precision."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.planning.plan import Plan
from bench.results.run_json import read_run
from bench.spec.errors import UsageError
from bench.spec.precisions import BASELINE
from bench.spec.request import Request
from bench.spec.trial import Trial, kept_checkpoint


def continued(plan: Plan, request: Request) -> Plan:
    """Let a plan's trainings start from the checkpoints that a request names, if it names any.

    Each starts from the training of the same recipe and seed: from fp32's, or from that in the only other precision.

    Raises:
        UsageError: there is no such checkpoint, or that run trained another recipe.
    """
    if request.start is None:
        return plan
    kept = [entry for entry in read_run(request.start).get("planned", []) if entry.get("recipe")]
    if not kept:
        raise UsageError(f"'{request.start}' has no checkpoints: train it with --keep-checkpoints.")
    trials = []
    for trial in plan.trials:
        if trial.phase == "train":
            trials.append(replace(trial, start=_start(trial, request.start, request.from_epoch or 0, kept)))
        else:
            trials.append(trial)
    return replace(plan, trials=tuple(trials))


def _start(trial: Trial, run: Path, epoch: int, kept: list[dict[str, Any]]) -> str:
    """Return the path of the checkpoint that a training starts from."""
    by_precision = {}
    for entry in kept:
        if (entry["cell"], entry["seed"]) == (trial.cell_id, trial.seed):
            by_precision[entry["arms"][0]] = entry
    if not by_precision:
        raise UsageError(f"'{run}' has no checkpoints of {trial.cell_id} with seed {trial.seed}.")
    if len(by_precision) > 1 and BASELINE not in by_precision:
        raise UsageError(f"'{run}' trained {', '.join(by_precision)}, and not fp32: continue a run of one precision.")
    trained = by_precision.get(BASELINE) or next(iter(by_precision.values()))
    for name, value in trial.recipe.items():
        other = trained["recipe"].get(name)
        if value != other:
            raise UsageError(
                f"{trial.id} cannot continue '{run}', whose recipe differs: {name}: {value}, there {other}."
            )
    if epoch >= trial.epochs:
        raise UsageError(f"--from-epoch {epoch} leaves no epoch to train: the recipe has {trial.epochs}.")
    path = run / kept_checkpoint(trained["trial"], epoch)
    if not path.is_file():
        raise UsageError(f"'{run}' has no checkpoint of epoch {epoch} of {trained['trial']}.")
    return str(path.resolve())
