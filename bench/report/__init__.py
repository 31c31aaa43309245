"""The report of runs: verdicts, tables and figures on one page; their figures as frames.

It reads CSVs only and never imports torch, so a run made on a GPU machine is reported anywhere. Its
libraries are imported when a report is asked for.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from bench.report.figures.chart import Choice
    from bench.report.frames import Results
    from bench.report.page import Report


def report(
    runs: list[Path], out: Path, *, published: bool = False, figures: Choice = "overview"
) -> Report:
    """Write report.md, report.html and the figures (SVG and PNG) into ``out``.

    Args:
        runs: folders of runs; several are merged, their rows kept apart by run.
        out: the report's folder, created if it does not exist.
        published: whether to show published figures, too.
        figures: ``overview`` draws one figure of all devices of a recipe where there would be many
            of single devices, ``all`` each device, ``none`` nothing at all.

    Returns:
        The report's contents: verdicts, tables, figures, and what failed.

    Raises:
        UsageError: a folder is no run, is of another format, or holds no finished trial; or the
            published figures are missing.
        OSError: a file cannot be read or written.
    """
    from bench.report.page import publish
    from bench.report.reading.load import load

    return publish(load(runs), out, with_published=published, figures=figures)


def terminal(contents: Report, out: Path) -> str:
    """Return what a terminal shows of a report that was written into ``out``."""
    from bench.report import render

    return render.terminal(contents, out / "report.html")


def load(*folders: str | Path) -> Results:
    """Read runs into pandas frames.

    They are ``.summary``, ``.trials``, ``.epochs``, ``.blocks``, ``.details`` and ``.telemetry``.

    Args:
        folders: folders that runs wrote, or folders of such folders.

    Raises:
        UsageError: there is none, or one is no run, of another format, damaged or without a
            finished trial.
    """
    from bench.report.analysis.summary import summarise
    from bench.report.frames import results
    from bench.report.reading.load import load

    runs = load([Path(folder) for folder in folders])
    return results(runs, summarise(runs.trials))
