"""Arms that cannot be measured in one process: each gets its own, and their speedups are unpaired."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from bench.results.records import MEASURED
from bench.spec.trial import Trial


def conduct(trial: Trial, session: Any) -> None:
    """Measure a trial's arms together, or apart if they fail or do not fit together (``Phase.conduct``)."""
    if not session.known.is_done(trial):
        together = session.run(trial)
        if together.failed_together:  # by whose fault is seen apart
            _measure_apart(trial, session, together)
            return
        session.keep(together)
    if len(trial.arms) > 1 and "oom" in session.statuses(trial).values():
        _measure_apart(trial, session, None)


def _measure_apart(trial: Trial, session: Any, failed: Any) -> None:
    """Measure the arms that are left, each in a process.

    ``failed`` is their attempt together, of which nothing is stored; None if they did not fit together, which is.
    """
    kept = session.known.final(trial) if failed is not None else set()
    missing = [alone for alone in trial.apart() if not (session.known.is_done(alone) or alone.arms[0].name in kept)]
    if missing:
        why = "do not fit together" if failed is None else "failed together"
        arms = "steps" if trial.ablation else "precisions"
        session.note(f"{trial.id}: the {arms} {why}; each is measured on its own, unpaired")
    for alone in missing:
        attempt = session.run(alone)
        if failed is not None:
            reason = f"measured alone: together, {failed.results[-1].detail}"
            attempt = replace(attempt, results=[_explained(result, reason) for result in attempt.results])
        session.keep(attempt)


def _explained(result: Any, reason: str) -> Any:
    """Return a measured result whose detail begins with a reason; any other as it is."""
    if result.status not in MEASURED:
        return result
    return replace(result, detail="; ".join(filter(None, (reason, result.detail))))
