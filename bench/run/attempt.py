"""An attempt: what one process of a trial sent, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.results.endings import BROKEN, FAULTS, STATUSES, Ending
from bench.results.records import Detail, TrialResult
from bench.results.store import LOG
from bench.spec.trial import Trial

# Most characters of a row's detail: the beginning and the end of an error say what it is.
LONGEST = 1000


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What a trial's process sent, and how it ended; nothing of it is stored yet."""

    trial: Trial
    results: list[TrialResult]
    """One for each arm."""
    details: Sequence[Detail]
    ending: Ending

    @property
    def is_broken(self) -> bool:
        """Whether its only arm is not to be tried again in its cell."""
        return self.ending.kind in BROKEN and len(self.trial.arms) == 1

    @property
    def failed_together(self) -> bool:
        """Whether it failed by the fault of one of several arms."""
        return self.ending.kind in FAULTS and len(self.trial.arms) > 1


def completed(
    trial: Trial, records: Sequence[TrialResult | Detail], ending: Ending, started: str
) -> Attempt:
    """Return an attempt with a result for each arm.

    Arms without one get the status and the reason of the ending.
    """
    results: list[TrialResult] = []
    details: list[Detail] = []
    for record in records:
        if isinstance(record, TrialResult):
            results.append(replace(record, detail=legible(record.detail)))
        else:
            details.append(record)
    answered = {result.arm for result in results}
    status = STATUSES.get(ending.kind, "failed")
    detail = legible(ending.text) or "the process sent no result"
    if ending.log:
        detail += f"{LOG}{trial.log}"
    if status == "oom" and len(trial.arms) > 1:
        detail = f"{', '.join(trial.arm_names)} together: {detail}"
    for name in trial.arm_names:
        # A process that died may have sent the results of some arms before.
        if name not in answered:
            result = TrialResult(arm=name, status=status, detail=detail, started=started)
            results.append(result)
    return Attempt(trial=trial, results=results, details=details, ending=ending)


def legible(text: str) -> str:
    """Return an error's text for a row: as UTF-8, and without its middle if it is long.

    The name of a file in it may be no UTF-8.
    """
    text = text.encode(errors="backslashreplace").decode()
    left_out = len(text) - LONGEST
    if left_out <= 0:
        return text
    half = LONGEST // 2
    return f"{text[:half]} … ({left_out:,} characters left out) … {text[-half:]}"
