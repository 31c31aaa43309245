"""What a report shows of a phase: ``REPORT`` of the ``report.py`` in its folder, if it has one.

A report looks for these files, and so needs no list of phases. They import no torch, and a run does
not import them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from bench.report.figures.chart import Chart
from bench.report.reading.load import Runs
from bench.report.tables.table import Entry, Material, Table
from bench.spec.optional import packages_with
from bench.spec.phases import PHASES

# The place of figures of the whole report; the others have the title of their section, as
# ``Entry.section``.
OVERVIEW = ""


@dataclass(frozen=True, kw_only=True, slots=True)
class Finding:
    """A phase's result for one subject, in words."""

    subject: str
    result: str
    """A sentence without its full stop."""
    reasons: Sequence[str] = ()
    """Further sentences."""
    table: Table | None = None
    """A table that the terminal prints below it."""

    @property
    def sentence(self) -> str:
        """The subject with the result."""
        return f"{self.subject}: {self.result}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Findings:
    """Findings that belong together, such as those of one recipe, with what they rest on."""

    findings: Sequence[Finding]
    heading: str = ""
    """The heading of the phase's findings; those without one stand next to the answers, without
    figures and tables."""
    title: str = ""
    charts: Sequence[Chart] = ()
    tables: Sequence[Table] = ()
    """Tables that the page shows below, folded."""


@dataclass(frozen=True, kw_only=True, slots=True)
class PhaseReport:
    """What a report shows of one phase; where nothing was measured, each function gives nothing."""

    tables: Sequence[Entry] = ()
    charts: Callable[[Material], Iterable[tuple[str, Chart | str | None]]] = lambda _: ()
    """Describes the figures, each with its place: ``OVERVIEW`` or a section's title. A text is a
    remark in that section."""
    findings: Callable[[Material], Iterable[Findings]] = lambda _: ()
    document: Callable[[Runs], Mapping[str, Any]] = lambda _: {}
    """Returns the keys that it adds to the JSON document of a report."""
    has_details: bool = False
    """Whether the detail of a row that is ok is a part of its result, and so no note."""


def parts() -> dict[str, PhaseReport]:
    """Return what the phases show, by their names, in the order in which they run."""
    found = {}
    # A folder that was deleted, or that has no report.py, is not among the optional ones.
    for name in PHASES:
        if f"phases.{name}" in packages_with("report"):
            found[name] = import_module(f"bench.phases.{name}.report").REPORT
    return found
