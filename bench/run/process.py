"""One process of a trial: started, listened to, and its result completed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from bench.launch import Ending, Launcher
from bench.planning.abilities import refusal_reason
from bench.results.records import Device, Message, Progress, Status, TrialResult
from bench.results.store import LOG
from bench.spec.trial import Trial

LONGEST = 1000
"""Most characters of a row's detail: the beginning and the end of an error say what it is."""
STATUSES: dict[str, Status] = {"oom": "oom", "timeout": "timeout", "unsupported": "unsupported"}
"""The statuses of rows by the kind of ending; of all others it is ``failed``."""
BROKEN = ("died", "timeout")
"""Endings after which an arm is not tried again in its cell: it would crash again, or hang for as long again."""
FAILED = (*BROKEN, "error")
"""Endings that are an arm's fault: of several arms, whose is shown by trying each apart."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Attempt:
    """What a trial's process sent, and how it ended; nothing of it is stored yet."""

    trial: Trial
    records: list[Message]
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


def run_process(
    trial: Trial,
    device: Device,
    launcher: Launcher,
    take: Callable[[Message], None],
    keep_log: Callable[[str], None],
) -> Attempt:
    """Run one process of a trial, unless it is known beforehand that none can measure it.

    Args:
        trial: what it measures.
        device: where.
        launcher: what starts it; a process that was lost by no fault of its own is started once more.
        take: called with each message as it comes; what it raises ends the process.
        keep_log: called with all that a process has printed which failed.
    """
    records: list[Message] = []

    def keep(message: Message) -> None:
        take(message)
        if not isinstance(message, Progress):
            records.append(message)

    started = now()
    if why := refusal_reason(trial, device):
        ending = Ending(kind="unsupported", text=why)
    elif trial.unfit:
        ending = Ending(kind="oom", text=trial.unfit)
    else:
        ending = launcher.run(trial, device, keep)
        if ending.kind == "lost":
            records.clear()
            ending = launcher.run(trial, device, keep)
    text = legible(ending.text) or "the process sent no result"
    if ending.log:
        keep_log(ending.log)
        text = f"{text}{LOG}{trial.log}"
    results = []
    for record in records:
        if isinstance(record, TrialResult):
            results.append(replace(record, detail=legible(record.detail)))
    results += missing_results(trial, results, ending.kind, text, started)
    return Attempt(trial=trial, records=records, results=results, ending=ending)


def now() -> str:
    """Return the time in UTC, as rows have it."""
    return datetime.now(UTC).isoformat(timespec="seconds")


def legible(text: str) -> str:
    """Return an error's text for a row: as UTF-8, which not every file name is; without its middle if it is long."""
    text = text.encode(errors="backslashreplace").decode()
    if len(text) <= LONGEST:
        return text
    head, tail = text[: LONGEST // 2], text[-LONGEST // 2 :]
    return f"{head} … ({len(text) - LONGEST:,} characters left out) … {tail}"


def missing_results(
    trial: Trial, results: Sequence[TrialResult], kind: str, detail: str, started: str
) -> list[TrialResult]:
    """Return a row for each arm without a result, given the kind of the process's ending."""
    answered = [result.precision for result in results]
    status = STATUSES.get(kind, "failed")
    if status == "oom" and len(trial.arms) > 1:
        detail = f"{', '.join(trial.precisions)} together: {detail}"
    missing = []
    for name in trial.precisions:
        if name not in answered:
            missing.append(TrialResult(precision=name, status=status, detail=detail, started=started))
    return missing
