"""Parity: whether what a precision has learned is as good as what fp32 has, by differences over paired seeds."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from bench import stats
from bench.report.format import known, signed
from bench.stats import Values

MIN_SEEDS = 5
"""With fewer paired seeds there is no parity verdict."""
Parity = Literal["EQUIVALENT", "NON-INFERIOR", "WORSE", "INCONCLUSIVE", "insufficient seeds"]
"""``summary.trainings`` replaces it with ``diverged`` where a seed diverged."""
JUDGED = ["delta_seeds", "parity"]
"""Columns of the summary beside those of each quality: the number of paired seeds, and the verdict."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Quality:
    """What trainings are compared by: a figure of each seed, and how far apart two may lie and count as the same."""

    figure: str
    """The column of trials.csv."""
    name: str
    unit: str
    short: str
    """The unit where there is little room."""
    margin: float
    """Fixed before anything is measured."""
    more_is_better: bool
    decimals: int
    """Of a difference as it is written."""

    @property
    def changed(self) -> str:
        """The column of the summary with the mean difference from fp32."""
        return f"delta_{self.unit}"

    @property
    def columns(self) -> list[str]:
        """The same, and those with the ends of its 90 % interval."""
        return [self.changed, f"{self.changed}_low", f"{self.changed}_high"]

    def judge(self, deltas: Values) -> tuple[float, float | None, float | None, int, Parity]:
        """Judge differences from fp32, one per seed: equivalence by two one-sided tests at 5 %.

        Returns:
            Mean, both ends of its 90 % interval (None with one seed), the number of seeds and the verdict.
            The end on the worse side is also the one-sided 95 % bound that non-inferiority asks for.

        Source: Schuirmann, "A comparison of the two one-sided tests procedure and the power approach",
        Journal of Pharmacokinetics and Biopharmaceutics 15 (1987).
        """
        interval = stats.student_interval(deltas, 0.90)
        return interval.center, interval.low, interval.high, interval.n, self._word(interval)

    def _word(self, delta: stats.Interval) -> Parity:
        if delta.n < MIN_SEEDS or delta.low is None or delta.high is None:
            return "insufficient seeds"
        worst, best = (delta.low, delta.high) if self.more_is_better else (-delta.high, -delta.low)
        if best < -self.margin:
            return "WORSE"
        if worst <= -self.margin:
            return "INCONCLUSIVE"
        return "EQUIVALENT" if best < self.margin else "NON-INFERIOR"

    def write(self, row: Mapping[Hashable, Any], unit: str = "", level: str = "") -> str:
        """Write a row's difference from fp32 with its unit, and its interval where it has one, with its level."""
        center, *ends = (signed(row[column], self.decimals) for column in self.columns)
        interval = f" [{level}{', '.join(ends)}]" if known(row[self.columns[1]]) else ""
        return f"{center}{unit and ' '}{unit}{interval}"


ACCURACY = Quality(
    figure="test_accuracy_pct",
    name="test accuracy",
    unit="points",
    short="pt",
    margin=0.5,
    more_is_better=True,
    decimals=2,
)
LOSS = Quality(
    figure="test_loss", name="test loss", unit="nats", short="nats", margin=0.01, more_is_better=False, decimals=4
)
"""Of tokens, which have no accuracy. The margin is 1 % of the perplexity (docs/measuring.md)."""
QUALITIES = (ACCURACY, LOSS)


def judged_by(row: Mapping[Hashable, Any]) -> Quality | None:
    """Return what a row of the summary is compared with fp32 by; None where it is not compared."""
    return next((one for one in QUALITIES if known(row[one.changed])), None)
