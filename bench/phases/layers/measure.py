"""The layers phase: which modules a precision must keep in fp32, by their gradients' errors."""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from fnmatch import fnmatchcase

import torch
from torch import Tensor, nn

from bench.data.batch import Batch
from bench.phases.layers import Layers, narrowing
from bench.phases.layers.narrowing import Findings, Narrowing
from bench.results.records import Device, Numeric, Progress, Send
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import BASELINE, Precision, keeping, parse_precision
from bench.spec.trial import Trial
from bench.training.arms import open_context
from bench.training.own_step import loss_in
from bench.training.step import train_epoch

# The name of the model's own operations among those of its modules.
WHOLE = "the model itself"


def run(trial: Trial, _device: Device, send: Send) -> None:
    """Search the modules that the trial's only precision must keep; send figures and the result."""
    context = open_context(trial)
    (name,) = trial.arm_names
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
            text = f"fp32: epoch {epoch} of {trial.epochs}"
            # Training is taken to be the first half of the work.
            done = epoch / trial.epochs / 2
            send(Progress(text=text, done=done))
    batches = context.resident_batches(2)
    if len(batches) < 2:
        raise UnsupportedError("layers compares two batches, and an epoch has one")

    def loss(model: nn.Module, batch: Batch) -> Tensor:
        return loss_in(reference.loss(model, batch))

    model = Narrowing(reference.model, loss, batches, dtype)
    text = f"{name}: narrowing {len(model.candidates)} modules"

    def show(share: float) -> None:
        send(Progress(text=text, done=share))

    findings = narrowing.search(model, show)
    modules = dict(reference.model.named_modules())
    patterns = globs(findings.kept, modules)
    for layer, figure, value in _figures(findings, patterns):
        numeric = Numeric(
            trial=trial.id,
            precision=name,
            kind="module",
            step=0,
            layer=layer,
            name=figure,
            value=value,
        )
        send(numeric)
    row = Layers()
    if math.isfinite(findings.error):
        row = Layers(gradient_error=findings.error)
    runner = context.runner(name, batches)
    detail = describe(findings, name, patterns)
    send(runner.result("ok", detail, switches=runner.read_back(), row=row))


def _figures(findings: Findings, patterns: Sequence[str]) -> Iterator[tuple[str, str, float]]:
    """Yield the layer, empty for the whole model, the name and the value of each figure."""
    yield "", findings.answer, 1.0
    yield "", "error", findings.error
    yield "", "limit", findings.limit
    if findings.error_kept is not None:
        yield "", "kept", findings.error_kept
    squares = [error**2 for error in findings.errors.values()]
    total = sum(squares)
    for module, error in findings.errors.items():
        share = 1.0
        if error != math.inf:
            share = error**2 / total
        yield module or WHOLE, "error", error
        yield module or WHOLE, "share", share
    for pattern in patterns:
        yield pattern, "keep", 1.0


def _narrow_type(precision: Precision) -> torch.dtype:
    """Return the type that autocast narrows to.

    Raises:
        UnsupportedError: the precision is not autocast alone.
    """
    unscaled = precision.autocast == "float16" and not precision.loss_scaling
    does_more = precision.conversion or precision.keep
    if precision.autocast is None or does_more or unscaled:
        raise UnsupportedError(
            f"layers searches amp-bf16 and amp-fp16 without keep, not {precision.name}"
        )
    dtype: torch.dtype = getattr(torch, precision.autocast)
    return dtype


def globs(names: Sequence[str], known: Iterable[str]) -> list[str]:
    """Return patterns for modules: with * for numbers where it matches no other, else the name."""
    chosen = {name or "*" for name in names}
    for name in names:
        # A part of the name that is a number, as in layers.0.norm.
        pattern = re.sub(r"(?<![^.])\d+(?![^.])", "*", name)
        matches = {each for each in known if fnmatchcase(each, pattern)}
        if len(matches) > 1 and matches <= chosen:
            chosen -= matches
            chosen.add(pattern)
    return sorted(chosen)


def describe(findings: Findings, precision: str, patterns: Sequence[str]) -> str:
    """Return what was found, in a sentence or two."""
    limit = _percent(findings.limit)
    after = _percent(findings.error_kept)
    error = f"gradients differ from fp32's by {_percent(findings.error)}"
    if findings.raised:
        error = f"the step raises '{findings.raised}'"
    if findings.answer == "fine":
        return f"no module needs fp32: {error}, within {limit}"
    if findings.answer == "loss":
        return f"the loss itself needs fp32: {error}, and by {after} with all modules in fp32"
    if findings.answer == "diffuse":
        worst = max(findings.errors, key=findings.errors.__getitem__)
        worst = worst or WHOLE
        return f"no small set of modules is to blame: {error}; the largest part is that of {worst}"
    keep = "+".join(patterns)
    option = shlex.quote(keeping(precision, keep))
    return (
        f"keep {keep} in fp32, as in --precisions {option}: gradients differ from fp32's by "
        f"{after} then, within {limit}; without, {error}"
    )


def _percent(error: float | None) -> str:
    if error is None or not math.isfinite(error):
        return "an infinite amount"
    return f"{100 * error:.3g} %"
