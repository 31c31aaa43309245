"""Ablations: each step against fp32 and against the step before it, its memory, and what limits it."""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import pandas as pd

from bench.report.analysis.contrast import PRECISION, Arm, Contrast, arms, estimate, numbered
from bench.report.analysis.summary import noises, other_types
from bench.report.analysis.verdict import LAUNCH_BOUND
from bench.report.format import UNKNOWN, known
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, Runs
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.metrics import MEMORY, SPEED
from bench.spec.precisions import BASELINE
from bench.spec.techniques import AblationStep


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationSummary:
    """One ablation: a suite on a device at a batch size."""

    title: str
    slug: str
    rows: pd.DataFrame
    """A row for each step, in order.

    - step (its name), precision, added, builds_on, status, detail, step_ms
    - over_first, over_last: speedups over fp32 and over the step that it builds on, intervals or None
    - first, last: their contrasts, or None
    - memory_bytes, memory_change: the latter a share of fp32's; NaN where the difference is within the resolution
    - limit: what limits it, in a word
    - has_other_types: whether a step's products ran in another type than its precision's; the same in every row
    """
    arms: Mapping[str, Arm]
    """The measurements of each step that was timed, by its name."""
    measured_noise: float | None
    """The A/A noise at this batch size, as a share; None where it was not measured."""

    @property
    def name(self) -> str:
        """The title of its section or table."""
        return f"Ladder of {self.title}"

    def gain(self, lower: str, higher: str) -> Contrast | None:
        """Return the speed of one step against a lower one's; None where one was not timed."""
        return _gain(self.arms, lower, higher, self.measured_noise)


def ablations(runs: Runs) -> list[AblationSummary]:
    """Return the ablations that the runs have measured."""
    if runs.ablations.empty:
        return []
    named = numbered(runs.ablations.merge(subjects(runs.ablations), how="left"))
    timed = _by_cell(arms(named, SPEED))
    held = _by_cell(arms(named, MEMORY))
    context = [name for name in CELL if name != "techniques"]  # within an ablation, techniques differ by step
    noise: dict[Hashable, float] = {}
    for at, of_cell in noises(numbered(runs.trials)).items():
        cell = tuple(value for name, value in zip(CELL, at, strict=True) if name in context)
        noise[cell] = max(of_cell, noise.get(cell, 0.0))
    summaries = []
    for key, trials in named.groupby(CELL, sort=False):
        first = trials.iloc[0]
        batch, cell = f"{first['batch_size']:.0f}", tuple(first[context])
        measured, share = timed.get(key, {}), noise.get(cell)
        steps = [_step(step, trials, measured, held.get(key, {}), share) for step in _steps(trials)]
        has_other_types = bool(other_types(trials.assign(precision=trials["arm_precision"])).notna().any())
        summaries.append(
            AblationSummary(
                title=f"{first['workload']} on {first['where']} at batch size {batch}",
                slug=f"{first['slug']}-b{batch}-ladder",
                rows=pd.DataFrame(steps).assign(has_other_types=has_other_types),
                arms=measured,
                measured_noise=share,
            )
        )
    return summaries


def _by_cell(measured: Mapping[int, Arm]) -> dict[tuple[Any, ...], dict[str, Arm]]:
    """Return the arms of each ablation, by the names of their steps."""
    cells: dict[tuple[Any, ...], dict[str, Arm]] = {}
    for arm in measured.values():
        cells.setdefault(arm.key[:PRECISION], {})[arm.key[PRECISION]] = arm
    return cells


def _gain(arms: Mapping[str, Arm], lower: str, higher: str, noise: float | None) -> Contrast | None:
    contrast = estimate(SPEED, arms[higher], arms[lower]) if lower in arms and higher in arms else None
    return contrast and replace(contrast, noise=noise)


def _steps(trials: pd.DataFrame) -> list[AblationStep]:
    """Return the steps of an ablation, the lowest first."""
    arms = trials[["arm_precision", "arm_techniques"]].drop_duplicates().itertuples(index=False)
    steps = (AblationStep(precision=precision, techniques=listed(techniques)) for precision, techniques in arms)
    return sorted(steps, key=lambda step: step.rank)


def _step(
    step: AblationStep,
    trials: pd.DataFrame,
    timed: Mapping[str, Arm],
    held: Mapping[str, Arm],
    noise: float | None,
) -> dict[str, Any]:
    """Return the row of a step; ``timed`` and ``held`` are arms of speed and memory by the names of steps."""
    rows = trials[trials["precision"] == step.name]
    speed, memory = rows[rows["phase"] == "speed"], rows[rows["phase"] == "memory"]
    usable = speed[speed["status"].isin(MEASURED) & speed["step_ms"].gt(0)]
    first = _gain(timed, BASELINE, step.name, noise) if step.name != BASELINE else None
    last = _gain(timed, step.previous.name, step.name, noise) if step.previous else None
    status, detail = _status(speed, memory, usable)
    asked = usable["target_ci"].max()
    width = first.change.half_width if first else None
    if status == "ok" and width is not None and math.expm1(width) > asked:
        status, detail = "unconverged", f"the interval over processes is wider than ±{100 * asked:g} %"
    change = estimate(MEMORY, held[step.name], held[BASELINE]) if {step.name, BASELINE} <= held.keys() else None
    return {
        "step": step.name,
        "precision": step.precision,
        "added": step.added,
        "builds_on": step.previous.added if step.previous else UNKNOWN,
        "status": status,
        "detail": detail,
        "step_ms": usable["step_ms"].median(),
        "over_first": first and first.gain,
        "over_last": last and last.gain,
        "first": first,
        "last": last,
        "memory_bytes": held[step.name].values.max() if step.name in held else float("nan"),
        "memory_change": change.shown.center - 1 if change and change.is_resolvable else float("nan"),
        "limit": _limit(usable),
    }


def _status(speed: pd.DataFrame, memory: pd.DataFrame, usable: pd.DataFrame) -> tuple[str, str]:
    """Return a step's status and detail: of a measured timing, else of a failed one, else of a failed memory trial.

    One unconverged process makes it unconverged, as for precisions.
    """
    wide, unmeasured = usable[usable["status"] == "unconverged"], memory[~memory["status"].isin(MEASURED)]
    for rows in (wide, usable, speed, unmeasured):
        if len(rows):
            return str(rows.iloc[-1]["status"]), str(rows.iloc[-1]["detail"])
    return UNKNOWN, ""


def _limit(usable: pd.DataFrame) -> str:
    """Return what limits a step: launching kernels, or arithmetic."""
    if usable.empty:
        return UNKNOWN
    ratio = usable["host_ratio"].median()
    if known(ratio):
        return "launch" if ratio >= LAUNCH_BOUND else "arithmetic"
    return "arithmetic" if usable.iloc[0]["device_kind"] == "cpu" else "launch or arithmetic"
