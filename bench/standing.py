"""What a ladder's trial asks for once the memory of its rungs is known: the rungs that work, each on those below."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

from bench.records import MEASURED, Status
from bench.rungs import parse_rung, stacked
from bench.trial import Trial


def standing(trial: Trial, trials: Sequence[Trial], done: Mapping[str, Mapping[str, Status]]) -> Trial | None:
    """Return a trial of the ladder without the rungs that do not work, each on the last below it that does.

    What does not work is what the ladder's memory phase found so in the same cell. A rung that was not tried is as
    it was planned, and so is a rung that no device of its kind can do, whose row says why.

    Args:
        trial: a trial of a phase of the ladder.
        trials: the plan.
        done: finished trials by their config, with the status of each rung.

    Returns:
        The trial; None where none of its rungs is left.
    """
    asked = [one for one in trials if one.phase == "ladder_memory" and one.cell == trial.cell]
    found: dict[str, Status | None] = {}

    def works(name: str) -> bool:
        return found[name] is None or found[name] in MEASURED

    stand: dict[str, str] = {}
    planned = [parse_rung(one.precisions[0]) for one in asked]
    for one, rung in zip(asked, stacked(planned, lambda rung: works(rung.name)), strict=True):
        stand[one.precisions[0]] = rung.name
        found[rung.name] = done.get(replace(one, precisions=(rung.name,)).config, {}).get(rung.name)
    names = [stand.get(name, name) for name in trial.precisions]
    if trial.phase == "ladder":
        names = [name for name in names if name not in found or works(name)]
    return replace(trial, precisions=tuple(names)) if names else None
