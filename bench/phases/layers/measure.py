"""The layers phase: which modules a precision must keep in fp32, found by their gradients' errors."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase
from itertools import cycle

import torch
from torch import Tensor
from torch.nn.modules.batchnorm import _BatchNorm

from bench.data.batch import Batch
from bench.measure.gradients import named_gradients, stop_dropping
from bench.phases.layers import Layers, narrowing
from bench.phases.layers.narrowing import Findings, Gradients, Narrowing, Recipe, agreed, at_finite_scale
from bench.results.records import Device, Message, Numeric, Progress
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import BASELINE, Precision, keeping, parse_precision
from bench.spec.trial import Trial
from bench.training.arms import Context, TrainingRunner, open_context
from bench.training.own_step import loss_in
from bench.training.step import Arm, leave_gradients, train_epoch, training_step

WHOLE = "the model itself"
"""The name of the model's own operations among those of its modules."""
LOST = 0.5
"""An update is lost to rounding if the weights of a parameter change by another amount, relative to fp32's change."""


def run(trial: Trial, _device: Device, send: Callable[[Message], None]) -> None:
    """Search the modules that the trial's only precision must keep; send the figures, then the result."""
    context = open_context(trial)
    (name,) = trial.precisions
    precision = parse_precision(name)
    recipe = _recipe(precision)
    if context.suite.step is not None:
        raise UnsupportedError(f"layers needs the loss of one backward pass, and {context.suite.name} has its own step")
    reference = context.build(BASELINE)
    if trial.epochs:
        opened = context.open_batches()
        for epoch in range(1, trial.epochs + 1):
            train_epoch(reference, opened.train(epoch))
            send(Progress(text=f"fp32: epoch {epoch} of {trial.epochs}", done=epoch / trial.epochs / 2))
    batches = context.resident_batches(2)
    if len(batches) < 2:
        raise UnsupportedError("layers compares two batches, and an epoch has one")
    model = Narrowing(reference.model, lambda model, batch: loss_in(reference.loss(model, batch)), batches, recipe)
    text = f"{name}: narrowing {len(model.candidates)} modules"
    findings = narrowing.search(model, lambda share: send(Progress(text=text, done=share)))
    patterns = globs(findings.kept, [module for module, _ in reference.model.named_modules()])
    arm = context.build(keeping(name, "+".join(patterns)) if patterns else name)
    trained = _trained_error(arm, reference, model) if patterns else None
    lost = _lost_updates(context, name, batches[0]) if precision.weights and not precision.master else None

    def tell(figure: str, value: float | None, layer: str = "") -> None:
        if value is not None:
            send(Numeric(trial=trial.id, precision=name, kind="module", step=0, layer=layer, name=figure, value=value))

    tell(findings.answer, 1.0)
    tell("error", findings.error)
    tell("limit", findings.limit)
    tell("noise", model.noise())
    tell("kept", findings.error_kept)
    tell("trained", trained)
    tell("lost_updates", lost)
    total = sum(error**2 for error in findings.errors.values())
    for module, error in findings.errors.items():
        tell("error", error, module or WHOLE)
        tell("share", 1.0 if error == math.inf else error**2 / total, module or WHOLE)
    for pattern in patterns:
        tell("keep", 1.0, pattern)
    row = Layers(gradient_error=findings.error if math.isfinite(findings.error) else None)
    runner = TrainingRunner(name, arm, cycle(batches))
    detail = describe(findings, precision, patterns, trained, lost)
    send(runner.result("ok", detail, switches=runner.read_back(), row=row))


def _recipe(precision: Precision) -> Recipe:
    if precision.conversion or precision.keep or precision.compute == "float32":
        raise UnsupportedError(f"layers searches autocast and 16-bit weights without keep, not {precision.name}")
    return Recipe(
        dtype=getattr(torch, precision.compute),
        weights=precision.weights is not None,
        scaled=precision.loss_scaling,
        wide_types=(_BatchNorm,) if precision.master else (),
    )


def globs(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return patterns for some modules: a glob in place of numbers where it matches no other module, else the name."""
    chosen = {name or "*" for name in names}
    for name in names:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        matches = {each for each in known if fnmatchcase(each, pattern)}
        if len(matches) > 1 and matches <= chosen:
            chosen = (chosen - matches) | {pattern}
    return sorted(chosen)


def _trained_error(arm: Arm, reference: Arm, model: Narrowing) -> float:
    """Return the error of the gradients as the arm that keeps modules is trained: compiled, for example."""
    arm.weights.load_state_dict(reference.weights.state_dict())
    stop_dropping(arm.model)
    errors = []
    for number, batch in enumerate(model.batches):

        def step(scale: float, batch: Batch = batch) -> tuple[Tensor, Gradients]:
            if arm.scaled:
                arm.scaler.scale(torch.ones((), device=arm.device))  # makes its scale, which update sets
                arm.scaler.update(scale)
            loss = leave_gradients(arm, batch)
            return loss, dict(named_gradients(arm.model, arm.weights.trained()))

        errors.append(model.score(at_finite_scale(step, scaled=arm.scaled), number))
    return agreed(errors)


def _lost_updates(context: Context, name: str, batch: Batch) -> float:
    """Return the share of parameters whose first update is mostly lost to rounding in narrow weights.

    It is lost where the change of a parameter differs from fp32's by more than ``LOST`` of it, in Euclidean norms.
    """
    changes = []
    for precision in (BASELINE, name):
        arm = context.build(precision)
        before = [weight.detach().double() for weight in arm.model.parameters()]
        training_step(arm, batch)
        pairs = zip(arm.model.parameters(), before, strict=True)
        changes.append([weight.detach().double() - old for weight, old in pairs])
    lost = []
    for exact, narrow in zip(*changes, strict=True):
        lost.append(bool((narrow - exact).norm() > LOST * exact.norm()))
    return sum(lost) / len(lost)


def describe(
    findings: Findings, precision: Precision, patterns: Sequence[str], trained: float | None, lost: float | None
) -> str:
    """Say what was found, in a sentence or two."""
    limit, after = _percent(findings.limit), _percent(findings.error_kept)
    error = f"gradients differ from fp32's by {_percent(findings.error)}"
    match findings.answer:
        case "fine":
            text = f"no module needs fp32: {error}, within {limit}"
        case "concentrated":
            keep = "+".join(patterns)
            option = shlex.quote(keeping(precision.name, keep))
            text = f"keep {keep} in fp32, as in --precisions {option}: {error}, by {after} then (limit {limit})"
        case "diffuse":
            worst = max(findings.errors, key=findings.errors.__getitem__) or WHOLE
            text = f"no small set of modules is to blame: {error}; the largest part is that of {worst}"
        case "everything":
            text = f"all modules are affected, and loss scaling helps: {error} without it"
        case "loss":
            text = f"the loss itself needs fp32: {error}, and by {after} with all modules in fp32"
    if trained is not None and trained > findings.limit:
        text += f"; as it is trained here, they still differ by {_percent(trained)}"
    if lost:
        updates = f"the first update of {100 * lost:.0f} % of the parameters is lost to rounding in narrow weights"
        text += f"; {updates}: a master copy helps, and keep does not"
    return text


def _percent(error: float | None) -> str:
    return "an infinite amount" if error is None or not math.isfinite(error) else f"{100 * error:.3g} %"
