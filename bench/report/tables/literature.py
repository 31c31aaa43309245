"""Tables of the literature alone: what its rows say of precisions, where sources differ, and where it can be read."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from bench.report.analysis.literature import MATRIX, Pair, link, pairs, published_matrix, same_figures
from bench.report.format import UNKNOWN, change, known, ratio, records
from bench.report.tables.table import Row, Table, figures, optional, table, whole, words

ARROW = " → "


def literature_tables(literature: pd.DataFrame) -> list[Table]:
    """Return the tables of published figures among themselves; none where there are no rows."""
    every = [pair for pair in pairs(literature) if known(pair.speedup[0])]
    found = (_compared(every), _spread(literature), _matrix(literature), _sources(literature))
    return [one for one in found if one is not None]


def _compared(every: list[Pair]) -> Table | None:
    """Return the ratios of rows that differ in nothing but the precision."""
    matched = [pair for pair in every if not pair.differs]
    columns = [
        words("source", "source"),
        words("model", "model"),
        words("data", "dataset"),
        words("device", "gpu"),
        figures("GPUs", "n_gpus", whole),
        figures("batch size", "batch_size", whole),
        *optional(
            words("layout", "layout"),
            words("compile", "compile"),
            words("setup", "setup"),
            words("host", "host"),
        ),
        words("precisions", "precisions"),
        figures("times as fast", "times"),
        *optional(
            figures("its spread", "its_spread"),
            figures("memory", "memory"),
            words("notes", "notes", wrap=True),
        ),
    ]
    about = (
        "Published rows of one source, model, GPU, number of GPUs, batch size, layout, compile and way of multiplying "
        "fp32, compared by precision; what a source does not state is taken to be the same within its table. Its "
        "spread: from those of both rows."
    )
    left = len(every) - len(matched)
    notes = [
        "Pairs of published rows that differ in batch size, layout, compile or fp32 products as well, and are not "
        f"compared: {left}. Where several sources have the same figure, the next table shows them."
    ]
    return table("Published comparisons of precisions", map(_row, matched), columns, about, notes if left else [])


def _row(pair: Pair) -> Row:
    return pair.other | {
        "precisions": _precisions(pair),
        "times": ratio(pair.speedup[0]),
        "its_spread": f"±{100 * pair.spread:.1f} %" if known(pair.spread) else UNKNOWN,
        "memory": change(pair.other["memory_mb"] / pair.base["memory_mb"] - 1),
        "notes": "; ".join(dict.fromkeys(part for row in pair for part in str(row["note"]).split("; ") if part)),
    }


def _precisions(pair: Pair) -> str:
    return ARROW.join(str(row["precision"]) for row in pair)


def _spread(literature: pd.DataFrame) -> Table | None:
    """Return the figures that several sources publish, with all that they publish of each."""
    columns = [
        words("figure", "figure"),
        words("from all sources", "all"),
        words("source", "source"),
        words("model", "model"),
        words("data", "dataset"),
        words("precisions", "precisions"),
        words("times as fast", "range"),
        figures("rows", "count", whole),
        words("differs beside the precision", "differs"),
    ]
    about = (
        "What at least two sources publish of a model on a GPU, with every size, task and setting. Where rows differ "
        "in more than the precision, their ratio is of all that differs: a layout can gain as much as a precision."
    )
    return table("One figure, several sources", _told(literature), columns, about)


def _told(literature: pd.DataFrame) -> Iterator[Row]:
    """Yield a row for each source, model, data and difference of a figure."""
    for figure, told in same_figures(literature).items():
        boards = "" if figure.n_gpus in (1, None) else f"{figure.n_gpus:.0f} × "
        groups: dict[tuple[str, ...], list[Pair]] = {}
        for pair in told:
            what = (*(pair.base[name] for name in ("source", "model", "dataset")), _precisions(pair))
            groups.setdefault((*what, ", ".join(pair.differs) or "nothing known"), []).append(pair)
        for (source, model, data, precisions, differs), group in groups.items():
            yield {
                "figure": f"{figure.model} on {boards}{figure.gpu}, {figure.base}{ARROW}{figure.other}",
                "all": _range(told),
                "source": source,
                "model": model,
                "dataset": data,
                "precisions": precisions,
                "range": _range(group),
                "count": len(group),
                "differs": differs,
            }


def _range(told: list[Pair]) -> str:
    speedups = [pair.speedup[0] for pair in told]
    return " to ".join(dict.fromkeys(map(ratio, (min(speedups), max(speedups)))))


def _matrix(literature: pd.DataFrame) -> Table | None:
    """Return a source's own matrix of speedups, computed again from its rows."""
    found = published_matrix(literature)
    rows = [{"": name} | line for name, line in zip(found.index, records(found), strict=True)]
    columns = [
        words("setup", ""),
        *(figures(name, name, lambda value: f"{round(value, 2)} %") for name in found.columns),
    ]
    about = (
        f"By how much the row's setup is faster than the column's, as {MATRIX} publishes it: of the time per epoch, 0 "
        "where it is slower, 100 % where it is twice as fast. Computed again from its rows."
    )
    return table("A published matrix of setups, computed again", rows, columns, about)


def _sources(literature: pd.DataFrame) -> Table | None:
    """Return where each source's figures can be read."""
    groups = literature.assign(link=[link(row) for row in records(literature)]).groupby(["source", "link"], sort=False)
    found = [
        {"source": source, "link": address, "date": _dates(group["date"]), "count": len(group)}
        for (source, address), group in groups
    ]
    columns = [
        words("source", "source"),
        words("measured or published", "date"),
        figures("rows", "count", whole),
        words("where", "link", wrap=True),
    ]
    return table("Where the published figures are", found, columns)


def _dates(dates: pd.Series) -> str:
    return " to ".join(dict.fromkeys((min(dates), max(dates))))
