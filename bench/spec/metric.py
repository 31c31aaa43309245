"""Metrics: quantities that arms are compared by. Each phase declares its own.

See ``bench.spec.phase``.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal, cast


@dataclass(frozen=True, kw_only=True, slots=True)
class Metric:
    """One quantity. The defaults are those of a cost that each fresh process measures anew."""

    name: str
    """As in the columns and JSON of ``compare``."""
    phase: str
    """The phase that measures it, which declares it."""
    label: str
    """As in headers and sentences."""
    unit: str
    about: str
    """The meaning of the summary's figure."""
    columns: tuple[str, ...]
    """Of its phase's CSV; the first that is filled counts."""
    place: int = 100
    """Among the metrics in tables, from the left."""
    instead_of: str = ""
    """The metric in whose place this one counts where the two differ, see ``analysis.judge``."""
    unless: str = ""
    """The column of a metric that takes its place: an arm that has that one is not compared by this
    one."""
    gain: str = ""
    """The column with the logarithm of each process's gain over fp32, from ABBA rounds; with
    ``_error``, its standard error."""
    better: Literal["more", "less"] = "less"
    scale: Literal["ratio", "difference"] = "ratio"
    """How a change is taken: arm ÷ other, or arm − other in the metric's unit."""
    replicate: Literal["process", "seed", "once"] = "process"
    """The independent unit. A metric that is read once has no chance in it, only the instrument's
    resolution."""
    seed_is_input: bool = False
    """Whether a seed decides what is learned, in whichever run. Of a time it only tells which
    trainings are paired."""
    alike: tuple[str, ...] = ()
    """Columns of that CSV that both sides must agree in."""
    is_described: bool = False
    """Whether its label, unit, direction and margin are the suite's, in columns of that CSV, see
    ``of``."""
    margin: float = 0.01
    """A change within it does not matter: a share, or in the metric's unit. Fixed before anything
    is measured."""
    has_noise: bool = False
    """Whether the A/A noise of its cell is what a change must exceed, instead of the margin."""
    cpu_resolution: float = 0.0
    """On a CPU, figures of two processes that differ by less cannot be distinguished, and less than
    it may read 0."""
    fewest: int = 2
    """With fewer replicates there is no verdict."""
    shown_as: Literal["ratio", "speedup", "share"] = "ratio"
    """The form of a change in the summary: the arm's figure divided by fp32's; how many times as
    good it is; or the share by which it is higher."""
    figure: str = ""
    """The column of the summary with the figure; by default the first of its columns."""
    change: str = ""
    """The column of the summary with the change from fp32, by default ``NAME_ratio``, or
    ``NAME_change``; with ``_low`` and ``_high``, its interval."""
    compared: bool = True
    """Whether ``compare`` compares it."""
    tabled: bool = False
    """Whether tables, figures and JSON have places of its own for it. Of any other metric they have
    general columns, panels and keys."""
    short: str = ""
    """The unit where there is little room; by default the unit itself."""
    decimals: int = 2
    """Of a difference as it is written."""

    def __post_init__(self) -> None:
        change = "ratio" if self.scale == "ratio" else "change"
        defaults = {
            "figure": self.columns[0],
            "change": f"{self.name}_{change}",
            "short": self.unit,
        }
        for field, value in defaults.items():
            if not getattr(self, field):
                object.__setattr__(self, field, value)

    def of(self, row: Mapping[Any, Any]) -> Metric:
        """Return the metric as the columns of a row describe it; itself where they do not."""
        label, unit, better, margin = (cast(Any, row.get(name)) for name in QUALITY_OF)
        if not self.is_described or not isinstance(label, str) or not label or not margin > 0:
            return self
        # Two digits of the margin.
        decimals = max(2, 1 - math.floor(math.log10(margin)))
        return replace(
            self,
            label=label,
            unit=unit,
            short=unit,
            better=better,
            margin=margin,
            decimals=decimals,
        )

    def is_possible(self, values: Any) -> Any:
        """Return which of some values can be its own: a ratio needs more than 0.

        It may read 0 where that lies within the resolution.
        """
        if self.cpu_resolution:
            return values >= 0
        least = 0 if self.scale == "ratio" else -math.inf
        return values > least

    @property
    def sign(self) -> int:
        """Plus where more is better."""
        return 1 if self.better == "more" else -1

    @property
    def threshold(self) -> float:
        """The margin on the additive scale: of logarithms, or in the unit."""
        return math.log1p(self.margin) if self.scale == "ratio" else self.margin

    @property
    def tolerance(self) -> str:
        """The margin with its unit: 1 %, or 0.5 points."""
        if self.is_described and not self.short:
            return "the suite's"
        if self.scale == "ratio":
            return f"{100 * self.margin:g} %"
        return f"{self.margin:g} {self.unit}"

    @property
    def status(self) -> str:
        """The column of the summary with its status."""
        return f"{self.phase}_status"

    @property
    def arm(self) -> str:
        """The column of the summary with what each arm measured of it."""
        return f"{self.name}_arm"

    @property
    def changes(self) -> list[str]:
        """The columns of the summary with the change from fp32 and the ends of its interval."""
        return [self.change, f"{self.change}_low", f"{self.change}_high"]

    @property
    def figure_title(self) -> str:
        """The label, with the unit of its figure: a difference of per cent is in points."""
        return self._with("%" if self.unit == "points" else self.unit)

    @property
    def title(self) -> str:
        """The label, with the unit of its changes where they have one."""
        return self._with(self.unit if self.scale == "difference" else "")

    def _with(self, unit: str) -> str:
        return f"{self.label} ({unit})" if unit else self.label

    @property
    def header(self) -> str:
        """The header of a column of changes, with what interval they have."""
        if self.replicate == "once":
            return self.title
        level = 90 if self.seed_is_input else 95  # 90 %: two one-sided tests at 5 %
        return f"{self.title} [{level} % interval]"


# The columns of train.csv that describe a suite's own figure of merit.
QUALITY_OF = ("quality_name", "quality_unit", "quality_better", "quality_margin")
