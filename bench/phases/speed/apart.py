"""Arms that cannot be measured in one process: each gets its own, and speedups are unpaired."""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from typing import TYPE_CHECKING

from bench.results.records import MEASURED
from bench.spec.trial import Trial

if TYPE_CHECKING:
    from bench.phases.session import PhaseSession


def conduct(trial: Trial, session: PhaseSession) -> None:
    """Measure a trial's arms together, or apart (``Phase.conduct``).

    They are measured apart if they fail or do not fit together.
    """
    reason = ""
    why = "do not fit together"
    final: Collection[str] = ()
    if "oom" not in session.statuses(trial).values():
        together = session.attempt(trial)
        if together.failed_together:  # by whose fault is seen apart
            reason = f"measured alone: together, {together.results[-1].detail}"
            why = "failed together"
            final = session.known.final(trial)
        else:
            session.keep(together)
    if not reason and "oom" not in session.statuses(trial).values():
        return
    missing = []
    for alone in trial.apart():
        if not session.known.is_done(alone) and alone.arms[0].name not in final:
            missing.append(alone)
    if missing:
        arms = "steps" if trial.ablation else "precisions"
        session.note(f"{trial.id}: the {arms} {why}; each is measured on its own, unpaired")
    for alone in missing:
        # A result says why it is unpaired, or a report would have no reason to show.
        attempt = session.attempt(alone)
        results = []
        for result in attempt.results:
            detail = result.detail
            if result.status in MEASURED:
                detail = "; ".join(filter(None, (reason, detail)))
            results.append(replace(result, detail=detail))
        session.keep(replace(attempt, results=results))
