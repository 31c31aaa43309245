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
from bench.report.analysis.frame import PRECISION, Arm
from bench.spec.metric import Metric
from bench.spec.precisions import BASELINE
from bench.stats import Interval

Pairing = Literal["processes", "seeds", "unpaired", "once"]
# The gain of fp32 over itself, which is known.
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
        """The limit that an interval must exceed to show a change, on the additive scale: A/A noise, or the margin."""
        if not self.metric.has_noise:
            return self.metric.threshold + self.allowance
        return (
            math.log1p(stats.ASSUMED_NOISE if self.noise is None else self.noise) + self.allowance
        )

    @property
    def word(self) -> str:
        """The word of ``stats.FASTER`` for it, were it the only one."""
        return stats.verdict(self.change, self.threshold, self.metric.threshold)

    @property
    def gain(self) -> Interval:
        """How many times as good the arm is, 2 being twice; or by how much better, in the metric's unit."""
        return self.change.exp() if self.metric.scale == "ratio" else self.change

    @property
    def shown(self) -> Interval:
        """The arm ÷ the other, or the arm − the other, with the ends of the interval."""
        return self.change.on(self._in_unit)

    def _in_unit(self, value: float) -> float:
        turned = 0.0 + self.metric.sign * value  # not -0.0
        return math.exp(turned) if self.metric.scale == "ratio" else turned

    def at(self, confidence: float) -> Interval:
        """Return ``shown`` with an interval at another confidence."""
        return self.change.at(confidence).on(self._in_unit)

    @property
    def reported(self) -> Interval | None:
        """The change as the summary has it, see ``Metric.shown_as``; None if it is below the resolution."""
        if self.metric.seed_is_input:
            return self.at(0.90)
        if self.metric.shown_as == "speedup":
            return self.gain
        if self.metric.shown_as != "share":
            return self.shown
        return self.shown.on(lambda ratio: ratio - 1) if self.is_resolvable else None

    @property
    def is_disturbed(self) -> bool:
        """Whether all its processes, or all of one side, show evidence of a disturbance, so that all count."""
        sides = (self.arm, self.against)
        if self.pairing == "unpaired":
            return any(side.disturbed.issuperset(side.replicates) for side in sides)
        return (self.arm.disturbed | self.against.disturbed).issuperset(self.arm.replicates)

    @property
    def is_resolvable(self) -> bool:
        """Whether the two differ by more than the instrument cannot tell apart; always, unless they are read once."""
        low, high = self.change.low, self.change.high
        return (
            self.pairing != "once"
            or low is None
            or high is None
            or low == high
            or not low < 0 < high
        )


def estimate(metric: Metric, arm: Arm, against: Arm) -> Contrast | None:
    """Set one arm against another, as closely paired as what they share allows; None where they do not compare."""
    if arm.alike != against.alike:
        return None
    for values in arm.alike if metric.is_described else ():
        metric = metric.of(dict(zip(metric.alike, values, strict=True)))
    pairs = {} if metric.replicate == "once" else _pairs(metric, arm, against)
    pairing: Pairing = "unpaired"
    if metric.replicate == "once":
        pairing, change = "once", _read_once(metric, arm, against)
    elif pairs and metric.replicate == "seed":
        pairing, change = "seeds", stats.student([pair.center for pair in pairs.values()])
    elif pairs:
        disturbed = arm.disturbed | against.disturbed
        change = stats.over_processes(
            [*pairs.values()], [process in disturbed for process in pairs]
        )
        pairing = "processes"
    else:
        change = stats.welch(*(side.additive(metric)[side.counted] for side in (arm, against)))
    replicates = len(pairs) if pairs else change.n
    return Contrast(
        metric=metric,
        arm=arm,
        against=against,
        change=change,
        pairing=pairing,
        replicates=replicates,
    )


def _pairs(metric: Metric, arm: Arm, against: Arm) -> dict[Hashable, Interval]:
    """Return the change in each process or seed that both have; none where they have too few in common.

    It is the difference of their gains over fp32 where both have gains, and fp32 itself gains
    nothing.
    """
    ours, theirs = arm.gains, against.gains
    if arm.key[:PRECISION] == against.key[:PRECISION]:
        if against.key[PRECISION] == BASELINE:
            theirs = dict.fromkeys(ours, NO_GAIN)
        elif arm.key[PRECISION] == BASELINE:
            ours = dict.fromkeys(theirs, NO_GAIN)
    if not (ours and theirs):
        ours, theirs = _values(metric, arm), _values(metric, against)
    pairs = {name: ours[name].minus(theirs[name]) for name in ours if name in theirs}
    return pairs if len(pairs) >= min(2, len(arm.values), len(against.values)) else {}


def _values(metric: Metric, arm: Arm) -> dict[Hashable, Interval]:
    values = zip(arm.replicates, arm.additive(metric).tolist(), strict=True)
    return {replicate: stats.around(value, 0.0, 1.0, 1) for replicate, value in values}


def _read_once(metric: Metric, arm: Arm, against: Arm) -> Interval:
    """Return the change between readings; its interval spans the instrument's resolution and readings that differ.

    In a ratio, a reading below the resolution counts as the resolution: it may be nothing, which
    has no ratio.
    """
    resolution = metric.cpu_resolution if arm.on_cpu or against.on_cpu else 0.0
    off = resolution / 2  # of each: A ÷ B is one over B ÷ A
    is_ratio = metric.scale == "ratio"

    def end(now: float, was: float) -> float:
        return metric.sign * (math.log(now / was) if is_ratio else now - was)

    now, was = (
        np.maximum(side.values, max(resolution, 1.0) if is_ratio else -math.inf)
        for side in (arm, against)
    )
    low, high = sorted(
        (end(now.min() - off, was.max() + off), end(now.max() + off, was.min() - off))
    )
    return Interval(
        center=end(now.max(), was.max()), low=low, high=high, n=1
    )  # of several readings the largest


def contrasts(metric: Metric, arms: Mapping[int, Arm]) -> dict[int, Contrast]:
    """Set every arm against fp32 in its cell; return the contrasts by the arm's number."""
    baselines = {
        arm.key[:PRECISION]: arm for arm in arms.values() if arm.key[PRECISION] == BASELINE
    }
    against_fp32 = {}
    for number, arm in arms.items():
        baseline = baselines.get(arm.key[:PRECISION])
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
    """Return the center and ends that ``show`` gives of contrasts, as columns by the arm's number, if any."""
    shown = {}
    for number, contrast in contrasts.items():
        interval = show(contrast)
        if interval is not None:
            shown[number] = interval.ends
    return pd.DataFrame.from_dict(shown, "index", float, list(names))
