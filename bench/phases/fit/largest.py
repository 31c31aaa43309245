"""The search for the largest batch that fits: doubled, then bisected, in fresh processes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.phases.fit import Fit
from bench.planning import suite_registry
from bench.planning.abilities import refusal_reason
from bench.planning.batch_sizes import common_multiple, pieces
from bench.results.records import Device, TrialResult
from bench.spec.phases import PHASES
from bench.spec.trial import Trial

if TYPE_CHECKING:
    from bench.phases.session import PhaseSession

# The search ends when the gap between fitting and not fitting is at most this fraction (1/16) of
# the size.
SHARE = 16
# Sizes from 16 times this are multiples of it, and of a batch's pieces: others are slow on tensor
# cores.
MULTIPLE = 8
# Share of a CPU's available memory to leave free: otherwise it swaps, or the process is killed.
MARGIN = 0.2
# A batch whose attempt, with making random samples and four steps, is predicted to take longer is
# not tried.
CPU_LIMIT_S = 10.0
GPU_LIMIT_S = 120.0


def conduct(trial: Trial, session: PhaseSession) -> None:
    """Search the largest batch of a precision, and store it as one row (``Phase.conduct``)."""
    device = session.devices[trial.cell.placement.name]
    if not _can_run(trial, device):
        session.keep(session.attempt(trial))
        return
    searched: list[str] = []
    for other in session.plan.trials:
        if PHASES[other.phase].searches and other.cell == trial.cell and _can_run(other, device):
            searched += other.arm_names
    tokens = suite_registry.load(trial.cell.suite).data.tokens_per_sample or 1
    multiple = common_multiple(searched, tokens)

    def try_size(smaller: Trial) -> TrialResult:
        result: TrialResult = session.attempt(smaller).results[0]
        return result

    size, result = search(trial, device, try_size, multiple)
    session.store_results(_at(trial, size), [result])


def _can_run(trial: Trial, device: Device) -> bool:
    return not trial.unfit and refusal_reason(trial, device) is None


def _at(trial: Trial, size: int) -> Trial:
    return replace(trial, cell=replace(trial.cell, batch_size=size))


def search(
    trial: Trial, device: Device, try_size: Callable[[Trial], TrialResult], multiple: int = 1
) -> tuple[int, TrialResult]:
    """Search for one precision's largest batch.

    Sizes are multiples of the cell's ``pieces``, times ``multiple``.

    Args:
        trial: its batch size is tried first.
        device: a GPU itself says when its memory is full; a CPU's is predicted.
        try_size: trains a few steps at a trial's batch size in a fresh process.
        multiple: each piece of a batch is a multiple of it.

    Returns:
        The largest batch size that fits, with its result; the smallest one tried if none fits.
    """
    unit = pieces(trial.cell.placement, trial.cell.techniques) * multiple
    size = max(1, trial.cell.batch_size // unit) * unit
    # The largest size that fits and the smallest that does not, 0 where none is known.
    low = high = 0
    bound = failure = ""
    fitted: dict[int, TrialResult] = {}
    attempts = []
    while size:
        predicted = predicted_bound(size, fitted, on_gpu=device.is_gpu)
        if predicted:
            bound = predicted
            high = size
            attempts.append(f"{size} not tried ({bound})")
        else:
            result = try_size(_at(trial, size))
            if result.status == "ok":
                low = size
                fitted[size] = result
                attempts.append(f"{size} fits")
            else:
                high = size
                failure = result.detail
                bound = "memory" if result.status == "oom" else "error"
                attempts.append(f"{size} {result.status}")
        if bound in ("time", "error"):
            # Time is no sharp limit, a smaller batch mends no error, and an attempt that hangs
            # takes long.
            break
        if not high:
            size = 2 * low
        elif low:
            size = between(low, high, unit)
        else:  # not even the first size fits
            size = high // (2 * unit) * unit
    detail = f"batch sizes tried: {', '.join(attempts)}"
    if failure:
        detail += f"; {failure}"
    result = fitted.get(low, result)
    row = replace(result.row or Fit(), fit_bound=bound)
    return low or high, replace(result, detail=detail, row=row)


def predicted_bound(size: int, fitted: Mapping[int, TrialResult], *, on_gpu: bool) -> str:
    """Return the limit that a size is predicted to exceed: time, or a CPU's memory.

    It is empty if the size should fit. ``fitted`` are the attempts that fitted, by their sizes,
    which rise.
    """
    if not fitted:
        return ""
    # Peaks grow linearly with the size: the last two attempts tell by how much a sample. Before the
    # first is a batch of no samples, which takes nothing.
    size_before = peak_before = at = peak = 0
    for tried, attempt in fitted.items():
        size_before = at
        peak_before = peak
        at = tried
        peak = attempt.row.fit_peak_bytes or 0
        result = attempt
    free = result.row.fit_free_bytes  # where it ran, which may be another machine
    if not on_gpu and free is not None:
        slope = max(0.0, (peak - peak_before) / (at - size_before))
        predicted = peak + slope * (size - at)
        if predicted > (1 - MARGIN) * free:
            return "predicted memory"
    limit_s = GPU_LIMIT_S if on_gpu else CPU_LIMIT_S
    predicted_s = size / at * (result.wall_s or 0.0)
    return "time" if predicted_s > limit_s else ""


def between(low: int, high: int, unit: int) -> int:
    """Return the next multiple of a unit between a size that fits and one that does not.

    It is 0 if they are close enough.
    """
    if high - low <= max(unit, low // SHARE):
        return 0
    step = unit
    rough = math.lcm(unit, MULTIPLE)
    # Rounding to the multiple must cost no more than the gap at which the search ends.
    if low >= SHARE * rough:
        step = rough
    middle = (low + high) // 2 // step * step
    return middle if middle > low else 0
