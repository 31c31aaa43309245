"""When a comparison has measured enough."""

from __future__ import annotations

from dataclasses import dataclass

from bench.spec.options import duration_s, option, share

# A process times an arm for this long, if the budget allows: starting and warming up take as long
# anyway.
PROCESS_S = 3.0
# Half-width at which a process stops timing where none is asked for: processes differ by about as
# much.
PROCESS_TARGET = 0.01


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """When a comparison has measured enough (docs/measuring.md)."""

    replicates: int = 3
    """Fresh processes that measure a cell at least."""
    most_replicates: int = 10
    """And at most."""
    target_ci: float | None = option(
        (
            "go on to this half-width of the 95%% interval, such as 1%% (default: until it is "
            "decided what is faster)"
        ),
        "SHARE",
        share,
        in_scripts=True,
    )
    """As a share of the speedup whose interval it is. None asks for a verdict instead."""
    min_rounds: int = 20
    """Rounds of a process before a narrow interval may end it early. Its name, and that of
    ``fewest_rounds``, are those in run.json."""
    time_budget_s: float = option(
        "most time to spend timing an arm in one comparison, all processes together (default: 30s)",
        "TIME",
        duration_s,
        default=30.0,
        name="--time-budget",
        in_scripts=True,
    )
    fewest_rounds: int = 3
    """Rounds that a process measures even where its budget is spent before, up to five times the
    budget. In equal time more processes of fewer rounds give narrower intervals; a single process
    needs more."""

    @property
    def process_s(self) -> float:
        """How long one process may time an arm."""
        each = self.time_budget_s / self.most_replicates
        return min(self.time_budget_s / self.replicates, max(PROCESS_S, each))

    @property
    def process_target(self) -> float:
        """Half-width, as a share, at which a process stops timing."""
        return PROCESS_TARGET if self.target_ci is None else self.target_ci
