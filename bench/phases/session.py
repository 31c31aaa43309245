"""What a phase measures its trials with that may need several processes (``Phase.conduct``)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from bench.planning.plan import Plan
    from bench.results.records import Device, Status, TrialResult
    from bench.results.store import StoredResults
    from bench.spec.trial import Trial


class PhaseSession(Protocol):
    """A run in progress (``bench.run.session.Session``).

    An attempt is a ``bench.run.attempt.Attempt``.
    """

    plan: Plan
    devices: Mapping[str, Device]
    """By the names of placements."""
    known: StoredResults
    """The results so far."""

    def statuses(self, trial: Trial) -> Mapping[str, Status]:
        """Return the statuses of a trial's arms, by name; none of a trial that has not ended."""

    def note(self, text: str) -> None:
        """Show a sentence."""

    def attempt(self, trial: Trial) -> Any:
        """Run one process of a trial, of which nothing is stored yet."""

    def keep(self, attempt: Any) -> None:
        """Store what a process sent."""

    def store_results(self, trial: Trial, results: Sequence[TrialResult]) -> None:
        """Store a trial's results, and show them."""
