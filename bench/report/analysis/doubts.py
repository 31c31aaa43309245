"""The registry of doubts: what makes a row of the summary less certain than its figures look.

Tables, the grid, the lead, JSON and frames read it. To add a doubt: an entry here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from bench.report.format import known, processes
from bench.spec.metrics import learned

# A row of the summary.
Row = Mapping[Hashable, Any]
# Load of other programs, in per cent of a machine's cores, from which a timing is crowded. It is
# that of ``stats.EVIDENCE``, which sees no disturbance where all processes have the same load.
CROWDED_PCT = 10.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Doubt:
    """A reason to doubt a row."""

    name: str
    """As in JSON."""
    mark: str
    about: str
    """A clause that says what is doubtful."""
    applies: Callable[[Row], Any]
    """Tells it from a row, in which unknown figures are NaN."""
    of_figure: bool = False
    """Whether tables have the mark at the figure, not after the precision's name."""


PARTIAL, OTHER_TYPES = "partial", "other types"
# By name, in the order in which they are listed.
DOUBTS = {
    doubt.name: doubt
    for doubt in (
        Doubt(
            name=PARTIAL,
            mark="◊",
            about="its run is not finished; --resume measures the rest",
            applies=lambda row: row["unfinished"],
        ),
        Doubt(
            name=OTHER_TYPES,
            mark="≠",
            about="many of its products, or of the fp32 that it is compared with, ran in another "
            "type than the precision's name says",
            applies=lambda row: known(row["other_types"]) or known(row["fp32_strayed"]),
        ),
        Doubt(
            name="crowded",
            mark="¤",
            about=f"other programs took more than {CROWDED_PCT:g} % of the machine's cores while "
            "it was timed: measure again when they have ended",
            applies=lambda row: row["foreign_load_pct"] > CROWDED_PCT,
        ),
        Doubt(
            name="disturbed",
            mark="△",
            about="all processes that timed it were disturbed, so all of them count; the notes "
            "say by what",
            applies=lambda row: row["disturbed"] is True,
        ),
        Doubt(
            name=processes(1),
            mark="§",
            about="its speed was measured in one process, and another may land outside the "
            "interval",
            applies=lambda row: row["timed_processes"] == 1 or row["measured_in"] == processes(1),
        ),
        Doubt(
            name="one seed",
            mark="¶",
            about="it was trained with one seed, so how far chance moves its accuracy is not known",
            applies=lambda row: row["seeds"] == 1 and _has_accuracy(row),
        ),
        Doubt(
            name="unconverged",
            mark="†",
            about="unconverged: the interval is wider than was asked for",
            applies=lambda row: row["speed_status"] == "unconverged",
            of_figure=True,
        ),
        Doubt(
            name="one of many",
            mark="≟",
            about="reported alone it would be FASTER or SLOWER, but of as many speedups as are "
            "reported here chance makes one look so",
            applies=lambda row: row["one_of_many"] is True,
        ),
        Doubt(
            name="shared clock",
            mark="‖",
            about="the power limit held the clock down, which the precisions shared, so the "
            "speedup may be some 10 % too high, and FASTER is said only of more than 15 %",
            applies=lambda row: (
                row["power_capped"] is True
                and known(row["speedup"])
                and not known(row["turns_speedup"])
            ),
        ),
        Doubt(
            name="alone",
            mark="⊙",
            about="its speedup is that of each precision alone, because the power limit held down "
            "the clock that they shared in turns, or because the speedup in turns differs "
            "from it by more than 3 % and half its interval",
            applies=lambda row: known(row["turns_speedup"]),
        ),
        Doubt(
            name="lost trials",
            mark="‡",
            about="some of its trials did not count; the notes say which and why",
            applies=lambda row: row["lost_speed"] + row["lost_train"] > 0,
            of_figure=True,
        ),
    )
}


def _has_accuracy(row: Row) -> bool:
    """Return whether a row's training was tested."""
    return any(known(row[metric.figure]) for metric in learned())


def marked_verdict(row: Row) -> Any:
    """Return the verdict on a row's speed, NaN without one, marked if products had other types."""
    verdict = row["speed_verdict"]
    if not known(verdict) or OTHER_TYPES not in row["doubts"]:
        return verdict
    return f"{verdict} {DOUBTS[OTHER_TYPES].mark}"


def doubts(row: Row) -> str:
    """Return the names of the doubts that apply to a row: its column ``doubts``."""
    return ", ".join(doubt.name for doubt in DOUBTS.values() if doubt.applies(row))


def doubted(rows: Iterable[Row]) -> list[Doubt]:
    """Return the doubts of any of some rows, in the order of ``DOUBTS``; empty rows have none."""
    names: set[str] = set()
    for row in rows:
        if row:
            names.update(row["doubts"].split(", "))
    return [doubt for name, doubt in DOUBTS.items() if name in names]
