"""The reporter: the CSVs of one run or of several in, verdicts, tables, plots and a page out.

It reads CSV only and never imports torch, so a run made on a GPU machine is reported anywhere. Its
own libraries are imported when a report is asked for.
"""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import TYPE_CHECKING

from bench.report.figures.drawing import drawers

if TYPE_CHECKING:
    from bench.report.figures.plots import Choice
    from bench.report.tables.table import Table


def report(
    runs: list[Path],
    out: Path,
    *,
    published: bool = False,
    layers: bool = False,
    figures: Choice = "overview",
    beside: bool = False,
) -> tuple[Path, list[str], list[Table]]:
    """Write report.md, report.html and the plots (SVG and PNG) into ``out``.

    Args:
        runs: folders of runs; several are merged, their rows kept apart by run.
        out: the report's folder, made where it does not exist.
        published: whether the literature's figures for the same recipes stand beside the measured ones.
        layers: whether the magnitudes of gradients are drawn layer by layer, too.
        figures: ``overview`` draws one figure of all devices of a recipe where there would be many of single devices,
            ``all`` each device, ``none`` nothing at all.
        beside: whether other processes get ready to draw while this one reads; they import the main program.

    Returns:
        The path of report.md, its verdicts in plain sentences, one for each device and suite, and the tables of its
        ladders.

    Raises:
        UsageError: a folder is no run, is of another schema version, or holds no finished trial; or published
            figures are asked for, and there are none.
    """
    with drawers() if beside and figures != "none" else nullcontext() as ready:
        from bench.report.analysis.ablation import climbed
        from bench.report.page import publish
        from bench.report.reading.load import load
        from bench.report.tables.ablation import short

        read = load(runs)
        page, sentences = publish(read, out, published=published, layers=layers, figures=figures, drawers=ready)
    return page, [str(sentence) for sentence in sentences], [short(one) for one in climbed(read)]
