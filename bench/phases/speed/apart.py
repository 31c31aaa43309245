"""Arms that cannot be measured in one process: each gets its own, and their speedups are unpaired."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from bench.results.records import MEASURED
from bench.spec.trial import Trial

if TYPE_CHECKING:
    from bench.phases.session import PhaseSession


def conduct(trial: Trial, session: PhaseSession) -> None:
    """Measure a trial's arms together, or apart if they fail or do not fit together (``Phase.conduct``)."""
    reason = ""
    if not session.known.is_done(trial):
        together = session.run(trial)
        if together.failed_together:  # by whose fault is seen apart
            reason = f"measured alone: together, {together.results[-1].detail}"
        else:
            session.keep(together)
    fits = "oom" not in session.statuses(trial).values()
    if not reason and (fits or len(trial.arms) == 1):
        return
    final = session.known.final(trial) if reason else set()
    missing = [
        alone
        for alone in trial.apart()
        if not (session.known.is_done(alone) or alone.arms[0].name in final)
    ]
    if missing:
        arms = "steps" if trial.ablation else "precisions"
        why = "failed together" if reason else "do not fit together"
        session.note(f"{trial.id}: the {arms} {why}; each is measured on its own, unpaired")
    for alone in missing:
        attempt = session.run(alone)
        results = []
        for result in attempt.results:
            detail = result.detail
            if result.status in MEASURED:
                detail = "; ".join(filter(None, (reason, detail)))
            results.append(replace(result, detail=detail))
        session.keep(replace(attempt, results=results))
