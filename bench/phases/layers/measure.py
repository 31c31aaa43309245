"""The layers phase: which modules a precision must keep in fp32, found by their gradients' errors."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Callable, Sequence
from fnmatch import fnmatchcase

import torch

from bench.phases.layers import Layers, narrowing
from bench.phases.layers.narrowing import Findings, Narrowing
from bench.results.records import Device, Message, Numeric, Progress
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import BASELINE, Precision, keeping, parse_precision
from bench.spec.trial import Trial
from bench.training.arms import open_context
from bench.training.own_step import loss_in
from bench.training.step import train_epoch

# The name of the model's own operations among those of its modules.
WHOLE = "the model itself"


def run(trial: Trial, _device: Device, send: Callable[[Message], None]) -> None:
    """Search the modules that the trial's only precision must keep; send the figures, then the result."""
    context = open_context(trial)
    (name,) = trial.precisions
    dtype = _narrow_type(parse_precision(name))
    if context.suite.step is not None:
        raise UnsupportedError(
            f"layers needs the loss of one backward pass, and {context.suite.name} has its own step"
        )
    reference = context.build(BASELINE)
    if trial.epochs:
        opened = context.open_batches()
        for epoch in range(1, trial.epochs + 1):
            train_epoch(reference, opened.train(epoch))
            send(
                Progress(
                    text=f"fp32: epoch {epoch} of {trial.epochs}", done=epoch / trial.epochs / 2
                )
            )
    batches = context.resident_batches(2)
    if len(batches) < 2:
        raise UnsupportedError("layers compares two batches, and an epoch has one")
    model = Narrowing(
        reference.model, lambda model, batch: loss_in(reference.loss(model, batch)), batches, dtype
    )
    text = f"{name}: narrowing {len(model.candidates)} modules"
    findings = narrowing.search(model, lambda share: send(Progress(text=text, done=share)))
    patterns = globs(findings.kept, [module for module, _ in reference.model.named_modules()])

    def tell(layer: str, figure: str, value: float | None) -> None:
        if value is not None:
            send(
                Numeric(
                    trial=trial.id,
                    precision=name,
                    kind="module",
                    step=0,
                    layer=layer,
                    name=figure,
                    value=value,
                )
            )

    tell("", findings.answer, 1.0)
    tell("", "error", findings.error)
    tell("", "limit", findings.limit)
    tell("", "kept", findings.error_kept)
    total = sum(error**2 for error in findings.errors.values())
    for module, error in findings.errors.items():
        tell(module or WHOLE, "error", error)
        tell(module or WHOLE, "share", 1.0 if error == math.inf else error**2 / total)
    for pattern in patterns:
        tell(pattern, "keep", 1.0)
    row = Layers(gradient_error=findings.error if math.isfinite(findings.error) else None)
    runner = context.runner(name, batches)
    detail = describe(findings, name, patterns)
    send(runner.result("ok", detail, switches=runner.read_back(), row=row))


def _narrow_type(precision: Precision) -> torch.dtype:
    """Return the type that autocast narrows to; raise UnsupportedError for what is not autocast alone."""
    unscaled = precision.autocast == "float16" and not precision.loss_scaling
    if precision.autocast is None or precision.conversion or precision.keep or unscaled:
        raise UnsupportedError(
            f"layers searches amp-bf16 and amp-fp16 without keep, not {precision.name}"
        )
    dtype: torch.dtype = getattr(torch, precision.autocast)
    return dtype


def globs(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """Return patterns for some modules: a glob in place of numbers where it matches no other module, else the name."""
    chosen = {name or "*" for name in names}
    for name in names:
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        matches = {each for each in known if fnmatchcase(each, pattern)}
        if len(matches) > 1 and matches <= chosen:
            chosen = (chosen - matches) | {pattern}
    return sorted(chosen)


def describe(findings: Findings, precision: str, patterns: Sequence[str]) -> str:
    """Return what was found, in a sentence or two."""
    limit, after = _percent(findings.limit), _percent(findings.error_kept)
    error = f"gradients differ from fp32's by {_percent(findings.error)}"
    if findings.raised:
        error = f"the step raises '{findings.raised}'"
    match findings.answer:
        case "fine":
            text = f"no module needs fp32: {error}, within {limit}"
        case "concentrated":
            keep = "+".join(patterns)
            option = shlex.quote(keeping(precision, keep))
            with_these = f"gradients differ from fp32's by {after} then, within {limit}"
            text = (
                f"keep {keep} in fp32, as in --precisions {option}: {with_these}; without, {error}"
            )
        case "diffuse":
            worst = max(findings.errors, key=findings.errors.__getitem__) or WHOLE
            text = (
                f"no small set of modules is to blame: {error}; the largest part is that of {worst}"
            )
        case "loss":
            text = f"the loss itself needs fp32: {error}, and by {after} with all modules in fp32"
    return text


def _percent(error: float | None) -> str:
    return (
        "an infinite amount"
        if error is None or not math.isfinite(error)
        else f"{100 * error:.3g} %"
    )
