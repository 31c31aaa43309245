"""How long the rest of a run takes."""

from __future__ import annotations

from collections import defaultdict

from bench.planning.plan import Plan
from bench.spec.trial import Trial

# How long a trial of a script's arm takes, by its phase, in profiled processes: a round starts two
# of each arm, which take some five times the steps of a profiled one, and as long to start.
SCRIPT = {"memory": 1.0, "speed": 4.0, "explain": 2.0}
# Trials whose durations are in proportion: their phase, and whether their seconds were estimated.
Kind = tuple[str, bool]


class Forecast:
    """The plan's estimates, times what trials of the same phase that have ended took over theirs.

    A trial without an estimate takes as long as such trials of its phase that have ended. The first
    process of a script tells how long all of its trials take.
    """

    def __init__(self, plan: Plan) -> None:
        self._left_s: dict[Kind, float] = defaultdict(float)
        """The estimates of the trials that are left."""
        self._ended_s: dict[Kind, float] = defaultdict(float)
        """The estimates of those that were measured, and below how long these took."""
        self._took_s: dict[Kind, float] = defaultdict(float)
        for trial in plan.trials:
            kind, estimate_s = _kind(trial)
            self._left_s[kind] += estimate_s

    def leave(self, planned: Trial) -> None:
        """Note that a trial of the plan is not left any more."""
        kind, estimate_s = _kind(planned)
        self._left_s[kind] -= estimate_s

    def learn(self, measured: Trial, took_s: float) -> None:
        """Note how long a trial took."""
        kind, estimate_s = _kind(measured)
        self._ended_s[kind] += estimate_s
        self._took_s[kind] += took_s

    def trial_s(self, trial: Trial) -> float:
        """Return the seconds that a trial takes; 0: unknown."""
        kind, estimate_s = _kind(trial)
        return estimate_s * (self._rate(kind) or 0.0)

    def left_s(self) -> float | None:
        """Return the seconds that the trials which are left take; None: unknown for some."""
        total_s = 0.0
        for kind, left_s in self._left_s.items():
            # One kind without a rate makes the sum unknown, unless none of it is left.
            rate = self._rate(kind)
            if rate is not None:
                total_s += rate * left_s
            elif left_s > 0:
                return None
        return total_s

    def _rate(self, kind: Kind) -> float | None:
        """Return what trials of a kind took over their estimates.

        None of those without an estimate before one of them has ended.
        """
        if self._ended_s[kind] > 0:
            return self._took_s[kind] / self._ended_s[kind]
        _, is_estimated = kind
        return 1.0 if is_estimated else None


def _kind(trial: Trial) -> tuple[Kind, float]:
    """Return a trial's kind and its estimate, in seconds or relative to others of its kind."""
    if trial.cell.data.kind == "script":
        return ("script", False), len(trial.arms) * SCRIPT[trial.phase]
    if trial.estimate_s is None:
        return (trial.phase, False), 1.0
    return (trial.phase, True), trial.estimate_s
