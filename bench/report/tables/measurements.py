"""Tables of what was measured: device by device, by architecture, by batch size, memory, energy and inference.

Each is of one workload: ``rows`` are those of the summary, ``trials`` those of ``Runs.trials`` in the summary's order,
with its ``workload`` and ``where``. A table is None where nothing was measured of what it shows.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from bench.report.analysis.contrast import Arm
from bench.report.analysis.contrast import estimate as contrasted
from bench.report.analysis.summary import best_rows, largest, over
from bench.report.format import GIB, change, error, estimate, known, memory_unit, number, ratio, records, written
from bench.report.reading.load import CELL, KEY, SUBJECT
from bench.report.tables.diagnostics import hosts
from bench.report.tables.table import (
    ARM,
    BATCH,
    DEVICE,
    PRECISION,
    RECIPE,
    Column,
    Entry,
    Row,
    Table,
    decimals,
    figures,
    general,
    optional,
    over_fp32,
    table,
    whole,
    word,
    words,
)
from bench.results.records import MEASURED
from bench.spec.metrics import SPEED, Metric
from bench.spec.precisions import BASELINE, find_precision

INFERENCE_SPEEDUP = ("inference_speedup", "inference_speedup_low", "inference_speedup_high")
SUM = "Of devices that train together, peak memory is the largest device's, and after it the sum of all devices' peaks."
SUITE = words("suite", "workload")
KINDS = {
    "tracked_peak_bytes": "tensors",
    "parameter_bytes": "parameters",
    "gradient_bytes": "gradients",
    "optimizer_bytes": "optimizer",
    "activation_bytes": "activations",
    "temporary_bytes": "temporaries",
}
ON_A_GPU = {"first_peak_bytes": "first step", "peak_reserved_bytes": "reserved", "driver_used_bytes": "driver"}
"""Columns of memory and what their tables call them."""
ABOUT_MEMORY = (
    "Peak is allocated bytes on a GPU, resident memory on a CPU. Tensors is the most that a step's tensors held at "
    "once, counted tensor by tensor in a step of its own. The kinds add up to it: parameters with buffers; gradients; "
    "the optimizer's state; activations, with autocast's 16-bit copies of weights; temporaries, all else, the batches "
    "included. Peak minus tensors is the memory of libraries and the allocator's rounding and slack."
)
ABOUT_GPU = " Reserved is what the allocator held; driver is what the process takes on the GPU, its context included."
ABOUT_DISTRIBUTED = (
    " Of devices that train together each figure is that of the device with the most, except for the sum of peaks."
)


def by_device(rows: pd.DataFrame, hosts: dict[str, str]) -> Iterator[Table | None]:
    """Yield a table for each device: every batch size and precision, of all its runs; ``hosts`` names them by label."""
    measured = rows[rows[["memory_status", "speed_status", "train_status"]].notna().any(axis=1)]
    for _, device in measured.groupby(["architecture", "device"], sort=False):
        yield _of_device(device, hosts)


def _of_device(rows: pd.DataFrame, hosts: dict[str, str]) -> Table | None:
    unit, size, digits = memory_unit(rows["memory_bytes"].max())

    def unmarked(row: Row, name: str) -> str:
        return number(row[name]) if row["speed_status"] in MEASURED else word(row["speed_status"])

    def peak(row: Row) -> str:
        peaks = [row[name] for name in ("memory_bytes", "all_devices_bytes") if known(row[name])]
        return "; sum ".join(f"{figure / size:,.{digits}f}" for figure in peaks)

    def memory_change(row: Row) -> str:
        is_baseline = row["precision"] == BASELINE and known(row["memory_bytes"])
        return "baseline" if is_baseline else change(row["memory_change"])

    lines = records(rows)
    arms = {(*(row[name] for name in CELL), row["precision"]): row for row in lines}

    def over_library(row: Row) -> str:
        precision = find_precision(row["precision"])
        beside = arms.get((*(row[name] for name in CELL), precision.beside if precision else None))
        sides = (row[SPEED.arm], beside[SPEED.arm]) if beside else ()
        contrast = contrasted(SPEED, *sides) if sides and all(isinstance(side, Arm) for side in sides) else None
        return estimate(contrast.gain) if contrast and contrast.is_paired else ""

    accuracy = figures("test accuracy (%)", "accuracy_pct", decimals, status="train_status", lost="lost_train")
    of_tokens = rows[["tokens_per_s", "token_loss"]].notna().any(axis=None)  # whose losses have a table of their own
    beside = dict.fromkeys(one.beside for name in rows["precision"] if (one := find_precision(name)) and one.beside)
    columns = [
        *([words("run (host)", lambda row: hosts[row["run"]])] if len(hosts) > 1 else []),
        *([words("placement", "placement")] if rows["placement"].nunique() > 1 else []),
        BATCH,
        PRECISION,
        figures("time/epoch (s)", "time_per_epoch_s", status="train_status", lost="lost_train"),
        figures("throughput (samples/s)", lambda row: unmarked(row, "samples_per_s")),
        *optional(figures("tokens/s", "tokens_per_s")),
        figures("step (ms)", lambda row: unmarked(row, "step_ms")),
        figures("speedup [95 % interval]", over_fp32, status="speed_status", lost="lost_speed"),
        *optional(figures(f"speedup over {', '.join(beside)} [95 % interval]", over_library)),
        words("verdict", "verdict"),
        words("measured in", "measured_in"),
        figures(f"peak memory ({unit})", peak, status="memory_status"),
        figures("memory vs fp32", memory_change),
        *([] if of_tokens else [accuracy]),
        *general(lambda metric: partial(_against_fp32, metric), BASELINE),
    ]
    first = rows.iloc[0]
    title = f"{first['architecture']} · {first['device']}" if first["architecture"] else str(first["device"])
    return table(title, lines, columns, SUM if rows["all_devices_bytes"].notna().any() else "")


def _against_fp32(metric: Metric, row: Row) -> str:
    is_baseline = row["precision"] == BASELINE and known(row[metric.figure])
    return "baseline" if is_baseline else written(metric, [row[name] for name in metric.changes])


def best_batch(rows: pd.DataFrame) -> Table | None:
    """Return each precision at its own best batch size, and the ratios of throughput between precisions.

    Where all of a device have the same one, the other tables and the figures have these ratios.
    """
    best = best_rows(rows)
    best = best[best.groupby(SUBJECT, sort=False)["batch_size"].transform("nunique") > 1]
    lines: list[Row] = []
    for _, subject in best.groupby(SUBJECT, sort=False):
        arms = records(subject)
        lines += [row | {f"over {other['precision']}": _over(row, other) for other in arms} for row in arms]
    columns = [
        DEVICE,
        PRECISION,
        figures("best batch", "batch_size", whole),
        figures("throughput (samples/s)", "samples_per_s", status="speed_status"),
        *(_of_precision(f"÷ {name}", f"over {name}") for name in _precisions(best)),
    ]
    about = (
        "Each precision at the measured batch size at which its throughput was highest, which includes what the memory "
        "saved makes possible. A training at another batch size may need another learning rate. The ratios are of "
        "throughputs, with 95 % intervals: at one batch size they are paired process by process, and that to fp32 is "
        "the speedup itself; other pairs were not measured side by side, and have Welch's interval over their "
        "processes, which is wider. Devices of which "
        "all precisions are fastest at the same batch size are left out."
    )
    return table("Best batch", lines, columns, about)


def _over(row: Row, other: Row) -> str:
    return ratio(1.0) if row["precision"] == other["precision"] else estimate(over(row, other))


def largest_batch(trials: pd.DataFrame, rows: pd.DataFrame) -> Table | None:
    """Return the largest batch of each precision that fits; ``trials`` are all rows of ``Runs.trials``."""
    columns = [
        DEVICE,
        PRECISION,
        figures("largest batch", "batch_size", whole, status="status"),
        figures("× fp32's", "over_fp32", 3),
        words("bound by", "fit_bound"),
        figures("held at its peak (GiB)", "fit_peak_bytes", 3, per=GIB),
        figures("free before (GiB)", "fit_free_bytes", 3, per=GIB),
    ]
    about = (
        "The largest batch of which a few training steps fit, found by doubling and bisection to a sixteenth of its "
        "size, with one precision alone in each process. Bound by memory: the next larger batch tried ran out of it. "
        "Predicted memory: less than a fifth of a CPU's available memory would have been left. Time: a step was "
        "predicted to take too long, so a larger batch may fit (docs/measuring.md)."
    )
    return table("Largest batch", largest(trials, rows), columns, about)


def memory(trials: pd.DataFrame) -> Table | None:
    """Return what memory was used for, by precision."""
    counted = (trials["phase"] == "memory") & trials["status"].isin(MEASURED) & trials["tracked_peak_bytes"].notna()
    rows = trials[counted]
    rows = rows.assign(peak=rows["peak_allocated_bytes"].fillna(rows["peak_resident_bytes"]))
    on_a_gpu, distributed = (rows[name].notna().any() for name in ("peak_allocated_bytes", "all_devices_bytes"))
    kinds = {"peak": "peak"} | ({"all_devices_bytes": "sum of peaks"} if distributed else {}) | KINDS
    kinds |= ON_A_GPU if on_a_gpu else {}
    unit, size, digits = memory_unit(rows[list(kinds)].max().max())
    columns = [
        figures(f"{kind} ({unit})", name, lambda value: f"{value:,.{digits}f}", per=size)
        for name, kind in kinds.items()
    ]
    about = ABOUT_MEMORY + (ABOUT_GPU if on_a_gpu else "") + (ABOUT_DISTRIBUTED if distributed else "")
    return table("Where the memory went", records(rows), [*ARM, *columns], about)


def energy(rows: pd.DataFrame) -> Table | None:
    """Return what a step of each precision draws."""

    def versus_fp32(row: Row) -> str:
        is_baseline = row["precision"] == BASELINE and known(row["energy_j_per_step"])
        return "baseline" if is_baseline else ratio(1 + row["energy_change"])

    columns = [
        *ARM,
        words("source", "energy_source"),
        figures("energy/step (J)", "energy_j_per_step", status="energy_status"),
        figures("above idle (J)", "energy_net_j_per_step"),
        figures("samples/J", lambda row: row["batch_size"] / row["energy_j_per_step"]),
        figures("mean power (W)", "mean_power_w", 3),
        figures("idle power (W)", "idle_power_w", 3),
        figures("energy ÷ fp32", versus_fp32),
    ]
    about = (
        "Energy/step is what the board draws for a step of continuous training, idle draw included; above idle is "
        "without it. Samples/J rests on energy/step. Source: counter is the GPU's own energy counter, power the "
        "integral of its power readings; the two are not compared with each other. One window of steps was measured "
        "for each precision, so there is no interval."
    )
    return table("Energy", records(rows[rows["energy_status"].notna()]), columns, about)


def inference(trials: pd.DataFrame) -> Table | None:
    """Return inference; of several seeds the lowest is shown."""
    rows = trials[trials["phase"] == "inference"].sort_values("seed", kind="stable").drop_duplicates(KEY).sort_index()
    columns = [
        *ARM,
        *optional(
            figures("latency p50 (ms)", "latency_p50_ms", status="status"),
            figures("latency p95 (ms)", "latency_p95_ms"),
            figures("samples/s", "inference_samples_per_s"),
            figures("speedup [95 % interval]", lambda row: over_fp32(row, *INFERENCE_SPEEDUP)),
            figures("same answer as fp32 (%)", "top1_agreement_pct", decimals),
            figures("largest output error", "output_error", error),
        ),
    ]
    about = (
        "The forward pass in eval mode, each precision beside fp32 in one process. Latency is that of one sample; "
        "samples/s and the speedup are at the batch size. Inputs are random, and weights are those that training "
        "begins with. The output error is relative to fp32's largest output."
    )
    return table("Inference", records(rows), columns, about)


def _of_precision(header: str, name: str) -> Column:
    """Return a column of figures against one precision, which not every row has."""
    return figures(header, lambda line: line.get(name))


def _precisions(rows: pd.DataFrame) -> list[str]:
    return list(rows.sort_values("rank", kind="stable")["precision"].unique())


TABLES = (
    Entry(50, RECIPE, lambda material: by_device(material.rows, hosts(material.runs.runs)), on_page=False),
    Entry(51, RECIPE, lambda material: [best_batch(material.rows)]),
    Entry(52, RECIPE, lambda material: [largest_batch(material.runs.trials, material.rows)]),
    Entry(54, RECIPE, lambda material: [energy(material.rows)]),
    Entry(55, RECIPE, lambda material: [memory(material.trials)]),
    Entry(61, RECIPE, lambda material: [inference(material.trials)]),
)
