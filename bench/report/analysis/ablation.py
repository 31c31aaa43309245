"""Ablations: each step against fp32 and against the step before it, its memory, and what limits it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import pandas as pd

from bench import stats
from bench.report.analysis.bottleneck import LAUNCH_BOUND
from bench.report.analysis.contrast import PRECISION, Arm, arms, estimate, numbered
from bench.report.analysis.summary import measured_in, noises
from bench.report.format import UNKNOWN, half, known
from bench.report.reading.labels import subjects
from bench.report.reading.load import CELL, Runs
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.metrics import MEMORY, SPEED
from bench.spec.precisions import BASELINE
from bench.spec.techniques import FIXED, AblationStep
from bench.stats import Interval

Gain = tuple[Interval | None, str]
"""The speedup of one step over another, and the processes that it was measured in."""
Gains = Mapping[tuple[str, str], Gain]
"""The gain of each step over each lower one, by the names of both, the lower one first."""
NOTHING: Gain = (None, UNKNOWN)


@dataclass(frozen=True, kw_only=True, slots=True)
class AblationSummary:
    """One ablation: a suite on a device at a batch size."""

    title: str
    slug: str
    rows: pd.DataFrame
    """A row for each step, in order.

    - step (its name), precision, added, builds_on, status, detail, step_ms, epoch_s, wait_pct, loader_ms
    - over_first, over_last: speedups over fp32 and over the step that it builds on, intervals or None
    - first_in, measured_in: the processes that over_first and over_last were measured in
    - memory_bytes, memory_change: the latter a share of fp32's; NaN where the difference is within the resolution
    - limit: what limits it, in a word
    - accuracy: an interval in per cent, or None
    - trained: the status of the training; empty where there was none
    """
    gains: Gains
    measured_noise: float | None
    """The A/A noise at this batch size, as a share; None where it was not measured."""

    @property
    def name(self) -> str:
        """The title of its section or table."""
        return f"Ladder of {self.title}"

    @property
    def noise(self) -> float:
        """The share that a gain must exceed."""
        return stats.ASSUMED_NOISE if self.measured_noise is None else self.measured_noise


def ablations(runs: Runs) -> list[AblationSummary]:
    """Return the ablations that the runs have measured."""
    if runs.ablations.empty:
        return []
    named = numbered(runs.ablations.merge(subjects(runs.ablations), how="left"))
    timed = _by_cell(arms(named, SPEED, phase="ladder", blocks=runs.ablation_blocks))
    held = _by_cell(arms(named, MEMORY, phase="ladder_memory"))
    context = [name for name in CELL if name != "techniques"]  # within an ablation, techniques differ by step
    trained = dict(list(runs.trials[runs.trials["phase"] == "train"].groupby(context)))
    noise = noises(runs.trials).groupby(level=context).max()
    summaries = []
    for key, trials in named.groupby(CELL, sort=False):
        first = trials.iloc[0]
        batch, cell = f"{first['batch_size']:.0f}", tuple(first[context])
        steps, measured = _steps(trials), timed.get(key, {})
        gains = {pair: _gain(measured, *pair) for pair in combinations([step.name for step in steps], 2)}
        summaries.append(
            AblationSummary(
                title=f"{first['workload']} on {first['where']} at batch size {batch}",
                slug=f"{first['slug']}-b{batch}-ladder",
                rows=_rows(steps, trials, gains, held.get(key, {}), trained.get(cell, runs.trials[:0])),
                gains=gains,
                measured_noise=noise.get(cell),
            )
        )
    return summaries


def _steps(trials: pd.DataFrame) -> list[AblationStep]:
    """Return the steps of an ablation, the lowest first."""
    arms = trials[["arm_precision", "arm_techniques"]].drop_duplicates().itertuples(index=False)
    steps = (AblationStep(precision=precision, techniques=listed(techniques)) for precision, techniques in arms)
    return sorted(steps, key=lambda step: step.rank)


def _by_cell(measured: Mapping[int, Arm]) -> dict[tuple[Any, ...], dict[str, Arm]]:
    """Return the arms of each ablation, by the names of their steps."""
    cells: dict[tuple[Any, ...], dict[str, Arm]] = {}
    for arm in measured.values():
        cells.setdefault(arm.key[:PRECISION], {})[arm.key[PRECISION]] = arm
    return cells


def _gain(measured: Mapping[str, Arm], lower: str, higher: str) -> Gain:
    """Return the speedup of a higher step over a lower one."""
    both = lower in measured and higher in measured
    contrast = estimate(SPEED, measured[higher], measured[lower]) if both else None
    return (contrast.gain, measured_in(contrast)) if contrast else NOTHING


def _rows(
    steps: list[AblationStep],
    trials: pd.DataFrame,
    gains: Gains,
    held: Mapping[str, Arm],
    trained: pd.DataFrame,
) -> pd.DataFrame:
    timed, memory = trials[trials["phase"] == "ladder"], trials[trials["phase"] == "ladder_memory"]
    usable = timed[timed["status"].isin(MEASURED) & timed["step_ms"].gt(0)]
    body: list[dict[str, Any]] = []
    for step in steps:
        own = usable[usable["precision"] == step.name]
        over_first, first_in = gains.get((BASELINE, step.name), NOTHING)
        over_last, measured_in = gains.get((step.previous.name, step.name), NOTHING) if step.previous else NOTHING
        status, detail = _status(timed, memory, own, step.name)
        asked = own["target_ci"].max()
        low, high = (over_first.low, over_first.high) if over_first else (None, None)
        if status == "ok" and low is not None and high is not None and half(low, high) > asked:
            status, detail = "unconverged", f"the interval over processes is wider than ±{100 * asked:g} %"
        train_status, accuracy = _accuracy(trained, step)
        body.append(
            {
                "step": step.name,
                "precision": step.precision,
                "added": step.added,
                "builds_on": step.previous.added if step.previous else UNKNOWN,
                "status": status,
                "detail": detail,
                "step_ms": own["step_ms"].median(),
                "epoch_s": (own["step_ms"] * own["steps_per_epoch"]).median() / 1000,
                "over_first": over_first,
                "over_last": over_last,
                "first_in": first_in,
                "measured_in": measured_in,
                "memory_bytes": held[step.name].values.max() if step.name in held else float("nan"),
                "memory_change": _memory_change(held, step.name),
                "wait_pct": own["wait_pct"].median(),
                "loader_ms": own["loader_ms"].median(),
                "limit": _limit(own),
                "accuracy": accuracy,
                "trained": train_status,
            }
        )
    return pd.DataFrame(body)


def _memory_change(held: Mapping[str, Arm], name: str) -> float:
    """Return the change of a step's memory as a share of fp32's; NaN where the two cannot be told apart."""
    if name not in held or BASELINE not in held:
        return float("nan")
    contrast = estimate(MEMORY, held[name], held[BASELINE])
    return contrast.shown.center - 1 if contrast and contrast.is_told else float("nan")


def _status(timed: pd.DataFrame, memory: pd.DataFrame, own: pd.DataFrame, name: str) -> tuple[str, str]:
    """Return a step's status and detail: of a measured timing, else of a failed one, else of a failed memory trial.

    One unconverged process makes it unconverged, as for precisions.
    """
    wide, unmeasured = own[own["status"] == "unconverged"], memory[~memory["status"].isin(MEASURED)]
    for rows in (wide, own, timed[timed["precision"] == name], unmeasured[unmeasured["precision"] == name]):
        if len(rows):
            return str(rows.iloc[-1]["status"]), str(rows.iloc[-1]["detail"])
    return UNKNOWN, ""


def _limit(own: pd.DataFrame) -> str:
    """Return what limits a step: the loader, launching kernels, or arithmetic."""
    if own.empty:
        return UNKNOWN
    if (own["loader_limited"] == "yes").mean() >= 0.5:
        return "loader"
    ratio = own["host_ratio"].median()
    if known(ratio):
        return "launch" if ratio >= LAUNCH_BOUND else "arithmetic"
    return "arithmetic" if own.iloc[0]["device_kind"] == "cpu" else "launch or arithmetic"


def _accuracy(trained: pd.DataFrame, step: AblationStep) -> tuple[str, Interval | None]:
    """Return the status, and the accuracy over seeds, of the run's training with the same arithmetic as a step.

    Techniques in ``FIXED`` are ignored: dropping gradients and moving batches to the device change no arithmetic.

    Args:
        trained: rows of the train phase at the ablation's batch size.
        step: the ablation step.
    """
    wanted = set(step.techniques) - set(FIXED)
    same = trained["techniques"].map(lambda cell: set(listed(cell)) - set(FIXED) == wanted).astype(bool)
    rows = trained[(trained["precision"] == step.precision) & same]
    if rows.empty:
        return "", None
    scores = rows.loc[rows["status"].isin(MEASURED), "test_accuracy_pct"].dropna()
    if scores.empty:
        return str(rows.iloc[-1]["status"]), None
    return "ok", stats.student_interval(scores.to_numpy())
