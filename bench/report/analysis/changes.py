"""Changes: one arm against another, with an interval.

Estimates are made on an additive scale on which more is better: logarithms where a change is a
ratio, plain values where it is a difference, the sign turned where less is better.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import pandas as pd

from bench import stats
from bench.report.analysis.arms import Arm
from bench.spec.metric import Metric
from bench.spec.precisions import BASELINE
from bench.stats import Interval

Pairing = Literal["processes", "seeds", "unpaired", "once"]
# The gain of fp32 over itself: exactly nothing, so it does not widen the interval of another gain.
NO_GAIN = stats.around(0.0, 0.0, math.inf, sys.maxsize)


@dataclass(frozen=True, kw_only=True, slots=True, eq=False)
class Contrast:
    """An arm against another."""

    metric: Metric
    arm: Arm
    against: Arm
    change: Interval
    """On the additive scale: above 0 is better. ``change.n`` counts what the interval rests on:
    processes that count, seeds, or in ``compare`` pairs or days of runs."""
    pairing: Pairing
    replicates: int
    """How many there were."""
    noise: float | None = None
    """The A/A noise of its cell, as a share; None where it was not measured."""
    allowance: float = 0.0
    """What the machine may differ by between the two, on the additive scale; a change must exceed
    it, too."""
    shares_clock: bool = False
    """Whether the power limit held down a clock that the two shared, as arms that take turns do."""

    @property
    def threshold(self) -> float:
        """The limit on the additive scale that an interval must exceed to show a change.

        It is the A/A noise, or the margin of metrics without noise, plus the allowance.
        """
        if not self.metric.has_noise:
            return self.metric.threshold + self.allowance
        noise = stats.ASSUMED_NOISE if self.noise is None else self.noise
        return math.log1p(noise) + self.allowance

    @property
    def word(self) -> str:
        """The word of ``stats.FASTER`` for it, were it the only one."""
        return stats.verdict(self.change, self.threshold, self.metric.threshold)

    @property
    def gain(self) -> Interval:
        """How many times as good the arm is, 2 being twice.

        Of a difference it is by how much better, in the metric's unit.
        """
        return self.change.exp() if self.metric.scale == "ratio" else self.change

    @property
    def shown(self) -> Interval:
        """The arm ÷ the other, or the arm − the other, with the ends of the interval."""
        return self.change.on(self._in_unit)

    def _in_unit(self, value: float) -> float:
        # Adding 0 turns -0.0, which would be shown with its sign, into 0.0.
        turned = 0.0 + self.metric.sign * value
        if self.metric.scale == "ratio":
            return math.exp(turned)
        return turned

    def at(self, confidence: float) -> Interval:
        """Return ``shown`` with an interval at another confidence."""
        return self.change.at(confidence).on(self._in_unit)

    @property
    def reported(self) -> Interval | None:
        """The change as the summary has it (``Metric.shown_as``); None if below the resolution."""
        if self.metric.seed_is_input:
            return self.at(0.90)
        if self.metric.shown_as == "speedup":
            return self.gain
        if self.metric.shown_as == "ratio":
            return self.shown
        if not self.is_resolvable:
            return None
        return self.shown.on(lambda ratio: ratio - 1)

    @property
    def is_disturbed(self) -> bool:
        """Whether all processes, unpaired all of one side, were disturbed, so that all count."""
        if self.pairing == "unpaired":
            return self.arm.is_disturbed or self.against.is_disturbed
        disturbed = self.arm.disturbed | self.against.disturbed
        return disturbed.issuperset(self.arm.replicates)

    @property
    def is_resolvable(self) -> bool:
        """Whether the difference exceeds the instrument's resolution; true unless read once."""
        low, high = self.change.low, self.change.high
        if self.pairing != "once" or low is None or high is None:
            return True
        return not low < 0 < high


def estimate(metric: Metric, arm: Arm, against: Arm) -> Contrast | None:
    """Set one arm against another, as closely paired as what they share allows.

    Returns:
        The contrast; None where the two do not compare.
    """
    if arm.alike != against.alike:
        return None
    if metric.is_described:
        for values in arm.alike:
            description = dict(zip(metric.alike, values, strict=True))
            metric = metric.of(description)
    pairing: Pairing
    pairs: dict[Hashable, Interval] = {}
    if metric.replicate != "once":
        pairs = _pairs(metric, arm, against)
    if metric.replicate == "once":
        pairing = "once"
        change = _read_once(metric, arm, against)
    elif not pairs:
        pairing = "unpaired"
        new = arm.additive(metric)[arm.counted]
        old = against.additive(metric)[against.counted]
        change = stats.welch(new, old)
    elif metric.replicate == "seed":
        pairing = "seeds"
        change = stats.student([pair.center for pair in pairs.values()])
    else:
        pairing = "processes"
        disturbed = arm.disturbed | against.disturbed
        is_disturbed = [process in disturbed for process in pairs]
        change = stats.over_processes([*pairs.values()], is_disturbed)
    return Contrast(
        metric=metric,
        arm=arm,
        against=against,
        change=change,
        pairing=pairing,
        replicates=len(pairs) or change.n,
    )


def _pairs(metric: Metric, arm: Arm, against: Arm) -> dict[Hashable, Interval]:
    """Return the change in each process or seed that both have; none if too few are common.

    It is the difference of their gains over fp32 where both have gains, and fp32 itself gains
    nothing.
    """
    ours, theirs = arm.gains, against.gains
    if arm.cell == against.cell:
        if against.precision == BASELINE:
            theirs = dict.fromkeys(ours, NO_GAIN)
        elif arm.precision == BASELINE:
            ours = dict.fromkeys(theirs, NO_GAIN)
    if not (ours and theirs):
        ours = _values(metric, arm)
        theirs = _values(metric, against)
    pairs = {}
    for name, gain in ours.items():
        if name in theirs:
            pairs[name] = gain.minus(theirs[name])
    # One common process of several would leave out most of what was measured.
    fewest = min(2, len(arm.values), len(against.values))
    return pairs if len(pairs) >= fewest else {}


def _values(metric: Metric, arm: Arm) -> dict[Hashable, Interval]:
    """Return the values of an arm, each of which alone says nothing of its error."""
    values = {}
    for replicate, value in zip(arm.replicates, arm.additive(metric), strict=True):
        values[replicate] = stats.around(float(value), error=0.0, freedom=1.0, count=1)
    return values


def _read_once(metric: Metric, arm: Arm, against: Arm) -> Interval:
    """Return the change between the largest readings of two arms.

    Its interval spans the instrument's resolution and readings that differ. In a ratio, a reading
    below the resolution counts as the resolution: it may be nothing, which has no ratio.
    """
    resolution = 0.0
    if arm.on_cpu or against.on_cpu:
        resolution = metric.cpu_resolution
    is_ratio = metric.scale == "ratio"
    least = -math.inf
    if is_ratio:
        least = max(resolution, 1.0)
    now = np.maximum(arm.values, least)
    was = np.maximum(against.values, least)
    # Both readings are off by half the resolution, so that A ÷ B is one over B ÷ A.
    off = resolution / 2

    def between(reading: float, other: float) -> float:
        growth = math.log(reading / other) if is_ratio else reading - other
        return metric.sign * growth

    least_growth = between(now.min() - off, was.max() + off)
    most_growth = between(now.max() + off, was.min() - off)
    low, high = sorted((least_growth, most_growth))
    return Interval(center=between(now.max(), was.max()), low=low, high=high, n=1)


def contrasts(metric: Metric, arms: Mapping[int, Arm]) -> dict[int, Contrast]:
    """Set every arm against fp32 in its cell; return the contrasts by the arm's number."""
    baselines = {arm.cell: arm for arm in arms.values() if arm.precision == BASELINE}
    against_fp32 = {}
    for number, arm in arms.items():
        baseline = baselines.get(arm.cell)
        if baseline is None or baseline is arm:
            continue
        contrast = estimate(metric, arm, baseline)
        if contrast is not None:
            against_fp32[number] = contrast
    return against_fp32


def intervals(
    contrasts: Mapping[int, Contrast],
    names: Sequence[str],
    show: Callable[[Contrast], Interval | None],
) -> pd.DataFrame:
    """Return what ``show`` gives of contrasts as columns ``names``, by the arm's number.

    The columns are the center and the ends of an interval; where it gives None, there is no row.
    """
    shown = {}
    for number, contrast in contrasts.items():
        interval = show(contrast)
        if interval is not None:
            shown[number] = interval.ends
    return pd.DataFrame.from_dict(shown, "index", float, list(names))
