"""Where the memory went: a table and a figure of a step's tensors by kind, and why one GPU takes more than another."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from typing import Any

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import MEMORY_KINDS, Axis, Bar, Chart, Mark, Panel, Text
from bench.report.format import MIB, memory_unit, number, records, signed
from bench.report.parts import OVERVIEW, PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, RECIPE, Entry, Material, Table, figures, table
from bench.results.records import MEASURED
from bench.spec.metrics import MEMORY
from bench.spec.precisions import BASELINE

KINDS = {"tracked_peak_bytes": "tensors", **{column: kind for kind, column in MEMORY_KINDS.items()}}
ON_A_GPU = {"first_peak_bytes": "first step", "peak_reserved_bytes": "reserved", "driver_used_bytes": "driver"}
ON_A_GPU |= {"gpu_used_bytes": "nvidia-smi"}
"""Columns of memory.csv and what the table calls them."""
LAYERS = {
    "tensors": "tracked_peak_bytes",
    "workspaces of libraries, which follow cuDNN's choice of algorithms, and rounding": "peak_allocated_bytes",
    "held by the allocator": "peak_reserved_bytes",
    "context and kernels of the driver and of libraries": "driver_used_bytes",
    "other processes": "gpu_used_bytes",
}
"""Of the memory that nvidia-smi shows, what each column adds to the one before it."""
ABOUT = (
    "The peak is allocated bytes on a GPU, resident memory on a CPU. Tensors is the most that a step's tensors held at "
    "once, counted tensor by tensor in a step of its own. The kinds add up to it: parameters with buffers; gradients; "
    "the optimizer's state; activations, with autocast's 16-bit copies of weights; temporaries, all else, the batches "
    "included. Peak minus tensors is the memory of libraries and the allocator's rounding and slack."
)
ABOUT_GPU = (
    " Reserved is what the allocator held; driver is what the process takes on the GPU, its context included; "
    "nvidia-smi is what all processes take, as it and gpustat show it."
)
ABOUT_DISTRIBUTED = (
    " Of devices that train together each figure is that of the device with the most, except for the sum of peaks."
)
MOST_ROWS = 24
"""Most rows of a panel."""
Row = Mapping[Hashable, Any]


def memory_held(trials: pd.DataFrame) -> pd.DataFrame:
    """Return one row of memory.csv for each arm whose tensors of a step were counted, with its ``peak`` in bytes.

    Of the processes that read an arm's peak it is the one with the largest, which is the arm's figure.
    """
    counted = trials["status"].isin(MEASURED) & trials["tracked_peak_bytes"].notna()
    held = trials[(trials["phase"] == "memory") & counted]
    held = held.assign(peak=held[[*MEMORY.columns]].bfill(axis=1).iloc[:, 0])
    of_arms = held.groupby(KEY, sort=False, dropna=False)["peak"]
    return held[of_arms.rank(method="first", ascending=False, na_option="bottom") == 1]


def memory(held: pd.DataFrame) -> Table | None:
    """Return what memory was used for, by precision."""
    peak = "peak" if held["peak_resident_bytes"].notna().any() else "allocated"
    kinds, about = {"peak": peak}, ABOUT
    is_on_a_gpu, is_distributed = (held[name].notna().any() for name in ("peak_allocated_bytes", "all_devices_bytes"))
    if is_distributed:
        kinds["all_devices_bytes"] = "sum of peaks"
    kinds |= KINDS
    if is_on_a_gpu:
        kinds |= ON_A_GPU
        about += ABOUT_GPU
    if is_distributed:
        about += ABOUT_DISTRIBUTED
    unit, size, digits = memory_unit(held[[*kinds]].max().max())

    def write(value: float) -> str:
        return f"{value:,.{digits}f}"

    columns = [figures(f"{kind} ({unit})", name, write, per=size) for name, kind in kinds.items()]
    return table("Where the memory went", records(held), [*ARM, *columns], about)


def remarks(held: pd.DataFrame) -> list[str]:
    """Say why the same training takes more memory on one GPU than on another, of the two that differ most."""
    rows = held[held["gpu_used_bytes"].notna() & held["all_devices_bytes"].isna()]
    widest, most_apart = None, 0.0
    for _, alike in rows.groupby(["precision", "batch_size"], sort=False):
        pair = alike.sort_values("gpu_used_bytes", kind="stable").iloc[[0, -1]]
        apart = pair["gpu_used_bytes"].diff().iloc[-1]
        if pair["device"].nunique() > 1 and (widest is None or apart > most_apart):
            widest, most_apart = pair, apart
    if widest is None:
        return []
    of_process = widest["driver_used_bytes"].fillna(widest["gpu_used_bytes"])
    layers = widest.assign(driver_used_bytes=of_process)[list(LAYERS.values())].ffill(axis=1)
    added = layers.diff(axis=1).fillna(layers.iloc[:, :1])  # by each layer to the one before it
    more_mib = added.diff().iloc[-1] / MIB
    parts = [f"{kind} {signed(more_mib[name], 1)}" for kind, name in LAYERS.items() if abs(more_mib[name]) >= 0.05]
    less, more = records(widest)
    takes = [f"{number(row['gpu_used_bytes'] / MIB)} MiB on {row['where']}" for row in (more, less)]
    return [
        f"The same training takes another amount of memory on another GPU: {more['precision']} at batch "
        f"{more['batch_size']:.0f} takes {' and '.join(takes)}, as nvidia-smi shows it. The difference in MiB: "
        f"{', '.join(parts) or 'none'}."
    ]


def tables(material: Material) -> list[Table | str | None]:
    """Return the table of one recipe, and the remark on its devices."""
    held = memory_held(material.trials)
    return [memory(held), *remarks(held)]


def by_kind(material: Material) -> Iterator[tuple[str, Chart]]:
    """Describe what memory is used for at each answer, in fp32 and in the precision that is advised or came nearest."""
    held = memory_held(material.trials)
    lines: dict[str, list[tuple[str, Row]]] = {}
    for answer in material.answers:
        if not answer.arm:
            continue
        cell = held[(held["workload"] == answer.names["workload"]) & (held["where"] == answer.names["where"])]
        cell = cell[cell["batch_size"] == answer.batch]
        for name in (BASELINE, str(answer.arm["precision"])):
            for row in records(cell[cell["precision"] == name].tail(1)):
                lines.setdefault(answer.names["workload"], []).append((f"{answer.names['label']} {name}", row))
    if not lines:
        return
    panels = [_panel(workload, of_workload[:MOST_ROWS]) for workload, of_workload in lines.items()]
    most = max(map(len, lines.values()))
    cut = f" The first {MOST_ROWS} of {most} are shown." if most > MOST_ROWS else ""
    yield (
        OVERVIEW,
        Chart(
            name=MEMORY.name,
            caption="What memory is used for",
            about="Peak memory at the batch size of each verdict: the most that tensors of a step held at once, by "
            f"kind, and what libraries, rounding and slack took beyond it (pale).{cut}",
            panels=panels,
            legend=[(kind, kind) for kind in MEMORY_KINDS],
        ),
    )


def _panel(workload: str, lines: list[tuple[str, Row]]) -> Panel:
    most = max(row["peak"] for _, row in lines)
    unit, size, _ = memory_unit(most)
    marks: list[Mark] = []
    for place, (_, row) in enumerate(lines):
        start, peak = 0.0, row["peak"] / size
        for kind, column in MEMORY_KINDS.items():
            value = row[column] / size
            if value > 0:
                marks.append(Bar(x=(start, start + value), low=place + 0.15, high=place + 0.85, tint=kind))
                start += value
        if peak > start:
            marks.append(Bar(x=(start, peak), low=place + 0.15, high=place + 0.85, tint=chart.SOFT, faint=True))
        marks.append(Text(x=max(start, peak), y=place + 0.5, text=f"{chart.SPACE}{number(peak, 3)}", align="left"))
    x = Axis(label=unit, low=0.0, high=1.2 * most / size)
    return chart.rows_panel(workload, x, [label for label, _ in lines], marks)


REPORT = PhaseReport(tables=(Entry(55, RECIPE, tables),), charts=by_kind)
