"""Where the memory went: a table and a figure of a step's tensors by kind."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from functools import partial
from typing import Any

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import MEMORY_KINDS, Axis, Bar, Chart, Mark, Panel, Text
from bench.report.format import MIB, memory_unit, number, records
from bench.report.parts import OVERVIEW, PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    ARM_COLUMNS,
    EACH_RECIPE,
    Entry,
    Material,
    Table,
    make_table,
    number_column,
    optional_columns,
)
from bench.results.records import MEASURED
from bench.spec.metrics import MEMORY
from bench.spec.precisions import BASELINE

ABOUT = (
    "The peak is allocated bytes on a GPU, and on a CPU what resident memory grew by. Tensors is "
    "the most that a step's tensors held at once, counted tensor by tensor in a step of its own. "
    "The kinds add up to it: parameters with buffers; gradients; the optimizer's state; "
    "activations, with autocast's 16-bit copies of weights; temporaries, all else, the batches "
    "included. Peak minus tensors is the memory of libraries and the allocator's rounding and "
    "slack. Reserved is what the allocator held; driver is what the process takes on the GPU, its "
    "context included; nvidia-smi is what all processes take, as it and gpustat show it. Of "
    "devices that train together each figure is that of the device with the most, except for the "
    "sum of peaks."
)
COLUMNS = (
    *ARM_COLUMNS,
    number_column("peak (MiB)", "peak", per=MIB),
    *optional_columns(number_column("sum of peaks (MiB)", "all_devices_bytes", per=MIB)),
    number_column("tensors (MiB)", "tracked_peak_bytes", per=MIB),
    *(number_column(f"{kind} (MiB)", column, per=MIB) for kind, column in MEMORY_KINDS.items()),
    *optional_columns(
        number_column("first step (MiB)", "first_peak_bytes", per=MIB),
        number_column("reserved (MiB)", "peak_reserved_bytes", per=MIB),
        number_column("driver (MiB)", "driver_used_bytes", per=MIB),
        number_column("nvidia-smi (MiB)", "gpu_used_bytes", per=MIB),
    ),
)
Row = Mapping[Hashable, Any]


def memory_held(trials: pd.DataFrame) -> pd.DataFrame:
    """Return a row of memory.csv for each arm of whose step the tensors were counted.

    ``peak`` is in bytes. Of the processes that read an arm's peak it is the one with the largest,
    which is the arm's figure.
    """
    is_counted = trials["status"].isin(MEASURED) & trials["tracked_peak_bytes"].notna()
    is_memory = trials["phase"] == "memory"
    held = trials[is_memory & is_counted]
    # The first column of the metric that is filled.
    peak = held[list(MEMORY.columns)].bfill(axis=1).iloc[:, 0]
    held = held.assign(peak=peak)
    of_arms = held.groupby(KEY, sort=False, dropna=False)["peak"]
    rank = of_arms.rank(method="first", ascending=False, na_option="bottom")
    return held[rank == 1]


def memory(material: Material) -> list[Table | None]:
    """Return what memory was used for, by precision."""
    return [
        make_table("Where the memory went", records(memory_held(material.trials)), COLUMNS, ABOUT)
    ]


def by_kind(material: Material) -> Iterator[tuple[str, Chart]]:
    """Describe what memory is used for at each answer.

    It is shown in fp32 and in the precision that is advised or came nearest.
    """
    held = records(memory_held(material.trials))
    lines: dict[str, list[tuple[str, Row]]] = {}
    for answer in material.answers:
        if not answer.arm:
            continue
        names = answer.names
        here = (names["workload"], names["where"], answer.batch)
        for precision in (BASELINE, answer.arm["precision"]):
            for row in held:
                at = (row["workload"], row["where"], row["batch_size"])
                if at == here and row["precision"] == precision:
                    line = (f"{names['label']} {precision}", row)
                    lines.setdefault(names["workload"], []).append(line)
    if lines:
        yield (
            OVERVIEW,
            Chart(
                name=MEMORY.name,
                caption="What memory is used for",
                about="Peak memory at the batch size of each verdict: the most that tensors of a "
                "step held at once, by kind, and what libraries, rounding and slack took beyond it "
                "(pale).",
                panels=[_panel(workload, of_workload) for workload, of_workload in lines.items()],
                legend=[(kind, kind) for kind in MEMORY_KINDS],
            ),
        )


def _panel(workload: str, lines: list[tuple[str, Row]]) -> Panel:
    labels = [label for label, _ in lines]
    most = max(row["peak"] for _, row in lines)
    unit, size = memory_unit(most)
    marks: list[Mark] = []
    for place, (_label, row) in enumerate(lines):
        bar = partial(Bar, low=place + 0.15, high=place + 0.85)
        peak = row["peak"] / size
        end = 0.0
        for kind, column in MEMORY_KINDS.items():
            start = end
            end += row[column] / size
            if end > start:
                marks.append(bar(x=(start, end), tint=kind))
        # Libraries, rounding and slack beyond the tensors. A CPU's peak may be the smaller one:
        # where memory is short, the system reclaims pages meanwhile.
        if peak > end:
            marks.append(bar(x=(end, peak), tint=chart.SOFT, faint=True))
        text = f"{chart.SPACE}{number(peak, 3)}"
        marks.append(Text(x=max(end, peak), y=place + 0.5, text=text, align="left"))
    x = Axis(label=unit, low=0.0, high=1.2 * most / size)  # with room for the last figure
    return chart.rows_panel(workload, x, labels, marks)


REPORT = PhaseReport(tables=(Entry(55, EACH_RECIPE, memory),), charts=by_kind)
