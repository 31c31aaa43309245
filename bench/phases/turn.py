"""What a phase measures a trial with that may need several processes (``Phase.conduct``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bench.planning.plan import Plan
    from bench.results.records import Device, Status, TrialResult
    from bench.spec.trial import Trial


class Turn(Protocol):
    """A trial's turn in a run (``bench.run.runner.Turn``). An attempt is a ``bench.run.attempt.Attempt``."""

    @property
    def plan(self) -> Plan:
        """The plan that the trial is of."""

    @property
    def device(self) -> Device:
        """Where it is measured."""

    def is_done(self, trial: Trial) -> bool:
        """Return whether all arms of a trial have final rows, together or apart."""

    def final_arms(self, trial: Trial) -> set[str]:
        """Return the names of the arms of a trial that have a final row."""

    def statuses(self, trial: Trial) -> Mapping[str, Status]:
        """Return the statuses of a trial's arms, by name; none of a trial that has not ended."""

    def note(self, text: str) -> None:
        """Show a sentence."""

    def attempt(self, trial: Trial) -> Any:
        """Run one process of a trial, of which nothing is stored yet."""

    def keep(self, attempt: Any) -> None:
        """Store what a process sent."""

    def discard(self, attempt: Any) -> None:
        """Show how a process ended, of which nothing is stored."""

    def store(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        """Store a trial's results, and show them."""
