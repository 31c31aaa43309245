"""An attempt: what one process of a trial sent, and how it ended."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from bench.launch import Ending
from bench.results.records import Message, Status, TrialResult
from bench.results.store import LOG
from bench.spec.trial import Trial

# Most characters of a row's detail: the beginning and the end of an error say what it is.
LONGEST = 1000
# The statuses of rows by the kind of ending; of all others it is ``failed``.
STATUSES: dict[str, Status] = {"oom": "oom", "timeout": "timeout", "unsupported": "unsupported"}
# Endings after which an arm is not tried again in its cell: it would crash again, or hang for as
# long again.
BROKEN = ("died", "timeout")
# Endings that are an arm's fault: of several arms, whose is shown by trying each apart.
FAILED = (*BROKEN, "error")


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What a trial's process sent, and how it ended; nothing of it is stored yet."""

    trial: Trial
    records: Sequence[Message]
    results: list[TrialResult]
    """One for each arm."""
    ending: Ending

    @property
    def is_broken(self) -> bool:
        """Whether its only arm is not to be tried again in its cell."""
        return self.ending.kind in BROKEN and len(self.trial.arms) == 1

    @property
    def failed_together(self) -> bool:
        """Whether it failed by the fault of one of several arms."""
        return self.ending.kind in FAILED and len(self.trial.arms) > 1


def completed(trial: Trial, records: Sequence[Message], ending: Ending, started: str) -> Attempt:
    """Return an attempt with a result for each arm.

    Arms without one get the status and the reason of the ending.
    """
    results = []
    for record in records:
        if isinstance(record, TrialResult):
            results.append(replace(record, detail=legible(record.detail)))
    answered = {result.precision for result in results}
    status = STATUSES.get(ending.kind, "failed")
    detail = legible(ending.text) or "the process sent no result"
    if ending.log:
        detail += f"{LOG}{trial.log}"
    if status == "oom" and len(trial.arms) > 1:
        detail = f"{', '.join(trial.precisions)} together: {detail}"
    for name in trial.precisions:
        # A process that died may have sent the results of some arms before.
        if name not in answered:
            result = TrialResult(precision=name, status=status, detail=detail, started=started)
            results.append(result)
    return Attempt(trial=trial, records=records, results=results, ending=ending)


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
