"""How long the rest of a run takes."""

from __future__ import annotations

from collections import Counter, defaultdict

from bench.planning.plan import Plan


class Forecast:
    """The plan's estimates, times the rate of the trials that have ended.

    The rate is the time that trials took over their estimates: those of the same phase, else all. A trial without an
    estimate takes as long as those of its phase that have ended.
    """

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._left_s: dict[str, float] = defaultdict(float)
        """By phase, the estimated seconds of trials that are left."""
        self._unknown = Counter[str]()
        """By phase, the trials that are left and were not estimated."""
        self._estimated_s: dict[str, float] = defaultdict(float)
        self._taken_s: dict[str, float] = defaultdict(float)
        """Of ended trials that were estimated, by phase; under an empty name of all."""
        self._seen_s: dict[str, list[float]] = defaultdict(list)
        """By phase, how long each ended trial took."""
        for trial, seconds in zip(plan.trials, plan.seconds, strict=True):
            self._left_s[trial.phase] += seconds or 0.0
            self._unknown[trial.phase] += seconds is None

    def skip(self, index: int) -> None:
        """Note that a trial of the plan, by its index, is left no more."""
        phase, seconds = self._plan.trials[index].phase, self._plan.seconds[index]
        self._left_s[phase] -= seconds or 0.0
        self._unknown[phase] -= seconds is None

    def end(self, index: int, took_s: float) -> None:
        """Note how long a trial of the plan took."""
        self.skip(index)
        phase = self._plan.trials[index].phase
        self._seen_s[phase].append(took_s)
        if seconds := self._plan.seconds[index]:
            for name in (phase, ""):
                self._estimated_s[name] += seconds
                self._taken_s[name] += took_s

    def trial_s(self, index: int) -> float:
        """Return the seconds that a trial of the plan, by its index, takes; 0 where nothing tells."""
        phase, seconds = self._plan.trials[index].phase, self._plan.seconds[index]
        return (self._seen(phase) or 0.0) if seconds is None else self._rate(phase) * seconds

    def left_s(self) -> float | None:
        """Return the seconds that the trials which are left take; None where nothing tells for some."""
        left_s = sum(self._rate(phase) * seconds for phase, seconds in self._left_s.items())
        for phase, count in self._unknown.items():
            seen_s = self._seen(phase)
            if count and seen_s is None:
                return None
            left_s += count * (seen_s or 0.0)
        return left_s

    def _seen(self, phase: str) -> float | None:
        """Return how long a trial of a phase took on average; None before one has ended."""
        seen_s = self._seen_s[phase]
        return sum(seen_s) / len(seen_s) if seen_s else None

    def _rate(self, phase: str) -> float:
        known = phase if phase in self._estimated_s else ""
        return self._taken_s[known] / self._estimated_s[known] if known in self._estimated_s else 1.0
