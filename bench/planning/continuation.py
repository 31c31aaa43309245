"""Trainings that continue those of another run, from the checkpoint of an epoch, in the same or another precision."""

from __future__ import annotations

from dataclasses import replace
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
    if (request.start is None) != (request.from_epoch is None):
        raise UsageError("--from RUN and --from-epoch K go together: give both.")
    if request.start is None:
        return plan
    kept = [entry for entry in read_run(request.start).get("planned", []) if entry.get("recipe")]
    if not kept:
        raise UsageError(f"'{request.start}' has no checkpoints: train it with --keep-checkpoints.")
    trials = [
        replace(trial, start=_start(trial, request, kept)) if trial.phase == "train" else trial for trial in plan.trials
    ]
    return replace(plan, trials=tuple(trials))


def _start(trial: Trial, request: Request, kept: list[dict[str, Any]]) -> str:
    """Return the path of the checkpoint that a training starts from."""
    assert request.start is not None
    assert request.from_epoch is not None
    nearest = min((_differences(trial, entry) for entry in kept), key=len)
    if nearest:
        raise UsageError(f"{trial.id} cannot continue '{request.start}', whose recipe differs: {'; '.join(nearest)}.")
    alike = [entry for entry in kept if not _differences(trial, entry)]
    here = [entry for entry in alike if entry["cell"] == trial.cell_id] or alike
    by_precision = {entry["arms"][0]: entry["trial"] for entry in here}
    name = BASELINE if BASELINE in by_precision else next(iter(by_precision))
    if len(by_precision) > 1 and name != BASELINE:
        raise UsageError(
            f"'{request.start}' trained {', '.join(by_precision)}, and not fp32: continue a run of one precision."
        )
    if request.from_epoch >= trial.epochs:
        raise UsageError(f"--from-epoch {request.from_epoch} leaves no epoch to train: the recipe has {trial.epochs}.")
    path = request.start / kept_checkpoint(by_precision[name], request.from_epoch)
    if not path.is_file():
        raise UsageError(f"'{request.start}' has no checkpoint of epoch {request.from_epoch} of {by_precision[name]}.")
    return str(path.resolve())


def _differences(trial: Trial, entry: dict[str, Any]) -> list[str]:
    """Name the settings in which a training's recipe differs from a planned one of another run."""
    return [
        f"{name}: {value}, there {entry['recipe'].get(name)}"
        for name, value in trial.recipe.items()
        if entry["recipe"].get(name) != value
    ]
