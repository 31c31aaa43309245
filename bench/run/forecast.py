"""How long the rest of a run takes."""

from __future__ import annotations

from collections import defaultdict

from bench.planning.plan import Plan


class Forecast:
    """The plan's estimates, times the rate of the trials that have ended.

    The rate is the time that trials took over their estimates: those of the same phase, else all.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._left_s: dict[str, float] = defaultdict(float)
        """By phase, the estimated seconds of trials that are left."""
        self._estimated_s: dict[str, float] = defaultdict(float)
        self._taken_s: dict[str, float] = defaultdict(float)
        """Of ended trials, by phase; under an empty name of all."""
        self._unknown = 0
        """Trials that are left and were not estimated."""
        for trial, seconds in zip(plan.trials, plan.seconds, strict=True):
            self._left_s[trial.phase] += seconds or 0.0
            self._unknown += seconds is None

    def skip(self, index: int) -> None:
        """Note that a trial of the plan, by its index, is left no more."""
        seconds = self._plan.seconds[index]
        self._left_s[self._plan.trials[index].phase] -= seconds or 0.0
        self._unknown -= seconds is None

    def end(self, index: int, took_s: float) -> None:
        """Note how long a trial of the plan took."""
        self.skip(index)
        if seconds := self._plan.seconds[index]:
            for name in (self._plan.trials[index].phase, ""):
                self._estimated_s[name] += seconds
                self._taken_s[name] += took_s

    def trial_s(self, index: int) -> float:
        """Return the seconds that a trial of the plan, by its index, takes; 0 where it was not estimated."""
        return self._rate(self._plan.trials[index].phase) * (self._plan.seconds[index] or 0.0)

    def left_s(self) -> float | None:
        """Return the seconds that the trials which are left take; None where some were not estimated."""
        if self._unknown:
            return None
        return sum(self._rate(phase) * seconds for phase, seconds in self._left_s.items())

    def _rate(self, phase: str) -> float:
        known = phase if phase in self._estimated_s else ""
        return self._taken_s[known] / self._estimated_s[known] if known in self._estimated_s else 1.0
