"""Training: tables of what it learned and cost, its course, and how far what it learned differs from fp32's."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from bench.phases.train.course import course
from bench.report.analysis.judge import MIN_SEEDS, judged_by
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Mark
from bench.report.format import MIB, UNKNOWN, capital, known, number, records, source, written
from bench.report.parts import OVERVIEW, PhaseReport
from bench.report.reading.load import CELL, SUBJECT
from bench.report.tables.table import (
    BATCH,
    DEVICE,
    PRECISION,
    RECIPE,
    Entry,
    Material,
    Row,
    Table,
    decimals,
    described,
    figures,
    optional,
    over_fp32,
    quality,
    table,
    words,
)
from bench.spec.metric import Metric
from bench.spec.metrics import learned
from bench.spec.precisions import BASELINE, emulates

WAITING_PCT = 10.0
"""Share of training time spent waiting for batches from which the loader may be the limit."""
OF_THE_STEP = 0.9
"""But not where training reaches this share of the step's own throughput: then the GPU had work meanwhile."""
STORAGE = {"device": "device", "host": "host memory", "file": "disk"}
TRAINED = (
    DEVICE,
    words("data", lambda row: source(str(row["data"]))),
    BATCH,
    PRECISION,
    figures("seeds", "seeds", 1),
    figures("epochs", "epochs", 1),
)
"""The columns that name what was trained."""
MOST_TRAINED = 2
"""Most devices of a recipe whose trainings are drawn, unless all are asked for."""
MOST_ROWS = 24
"""Most rows of a panel."""


def training(rows: pd.DataFrame) -> list[Table | None]:
    """Return what training learned and what it cost; nothing where nothing was trained."""
    trained = records(rows[rows["train_status"].notna()])
    return [_learned(trained), _cost(trained)]


def training_remarks(rows: pd.DataFrame) -> list[str]:
    """Return a sentence on each arm, of any workloads, whose training the loader limits."""
    shares = rows["train_samples_per_s"] / rows["samples_per_s"]
    waiting = rows.assign(reached=shares)[(rows["data_wait_pct"] >= WAITING_PCT) & ~(shares >= OF_THE_STEP)]
    return [_loader_remark(row) for row in records(waiting)]


def _loader_remark(arm: Row) -> str:
    wait, share = arm["data_wait_pct"], arm["reached"]
    is_part = wait < 100 and share / (1 - wait / 100) < OF_THE_STEP  # of which it would fall short without waiting, too
    limit = "the loader is a part of the limit" if is_part else "the loader, not arithmetic, is the limit"
    text = f"{arm['precision']} on {arm['where']}, batch {arm['batch_size']:.0f}: {limit}. Training waited for batches"
    text += f" {number(wait, 2)} % of its time"
    if known(share):
        text += f" and reached {number(100 * share, 2)} % of the throughput of its steps on data already on the device"
    return f"{text}."


def _learned(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional(
            figures("train loss", "train_loss", status="train_status"),
            figures("test loss", "test_loss"),
            figures("above the entropy (nats)", "above_entropy"),
            figures("perplexity", "perplexity"),
            figures("test accuracy (%) ± sd", _accuracy, status="train_status", lost="lost_train"),
            *quality(rows),
            *(
                figures(f"difference ({metric.unit or metric.label}) [90 % interval]", partial(_difference, metric))
                for metric in (described(metric, rows) for metric in learned())
            ),
            words("parity", "accuracy_verdict"),
        ),
    ]
    about = "Means over seeds, after the last epoch. The difference is precision − fp32, seed by seed."
    qualities = dict.fromkeys(filter(None, (judged_by(row) for row in rows)))
    about += " ".join(["", *map(_how_judged, qualities)])
    if any(known(row["entropy_nats"]) for row in rows):
        about += (
            " Of the data called markov the entropy rate is known, the least test loss that can be expected: how far "
            "above it the loss lies is averaged over seeds, each with sequences of its own."
        )
    return table("Training", rows, columns, about)


def _how_judged(metric: Metric) -> str:
    margin = f"{metric.margin:g} {metric.unit}".rstrip()
    return (
        f"Parity of {metric.label} is judged from {MIN_SEEDS} seeds on, at a margin of {margin} that was fixed "
        f"beforehand. EQUIVALENT: the interval lies within ±{margin}. NON-INFERIOR: it may be better, but not worse, "
        "by more. WORSE: all of it is worse by more. INCONCLUSIVE: it holds the margin on the worse side."
    )


def _accuracy(row: Row) -> str:
    spread = f" ± {decimals(row['accuracy_sd_points'])}" if known(row["accuracy_sd_points"]) else ""
    return f"{decimals(row['accuracy_pct'])}{spread}"


def _difference(metric: Metric, row: Row) -> str:
    return "baseline" if row["precision"] == BASELINE else written(metric, [row[name] for name in metric.changes])


def _cost(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional(
            figures("time/epoch (s)", "time_per_epoch_s", status="train_status", lost="lost_train"),
            figures(
                "epoch speedup [95 % interval]",
                lambda row: over_fp32(row, "epoch_speedup", "epoch_speedup_low", "epoch_speedup_high"),
            ),
            figures("step speedup [95 % interval]", _step_speedup),
            words("data from", lambda row: STORAGE.get(row["data_storage"])),
            figures("waiting for data (%)", "data_wait_pct", 2),
            figures("total time (s)", _total_s),
            figures("time to accuracy (s)", _time_to_accuracy),
            figures("checkpoint (MiB)", "checkpoint_bytes", per=MIB),
            figures("checkpoint in 16 bit (MiB)", "checkpoint_16bit_bytes", per=MIB),
            figures("energy (kJ)", "train_energy_j", per=1000),
        ),
    ]
    about = (
        "Time per epoch is training alone, loading included; the total includes evaluation. The epoch speedup is "
        "fp32's time per epoch divided by the precision's, seed by seed, with Student's interval over the seeds; the "
        "step speedup is that of the tables above, on data already on the device. A checkpoint is the model's weights."
    )
    return table("Training: time, storage and energy", rows, columns, about)


def _step_speedup(row: Row) -> str:
    return "" if row["measured_in"] == "published" else over_fp32(row)  # that is of time per epoch, or of throughput


def _total_s(row: Row) -> float | None:
    """Return the time of a whole training; none of an emulated precision, which would be the emulation's."""
    return None if emulates(str(row["precision"])) else row["total_s"]


def _time_to_accuracy(row: Row) -> str:
    """Write the mean time of the seeds that reached the target, and how many they are where not all did."""
    target = row["target_accuracy_pct"]
    if not known(target):
        return UNKNOWN
    if not row["reached"]:
        return f"{target:g} % not reached"
    some = row["reached"] < row["seeds"]
    of_seeds = f", {row['reached']:.0f} of {row['seeds']:.0f} seeds" if some else ""
    return f"{number(row['time_to_accuracy_s'])} (to {target:g} %{of_seeds})"


# Figures.


def charts(material: Material) -> Iterator[tuple[str, Chart | str | None]]:
    """Describe the trainings of each recipe, device and batch size, and what each metric of what is learned became."""
    for metric in learned():
        for each in differences(material.summary, metric):
            yield OVERVIEW, each
    subjects = material.summary[[*SUBJECT, "workload", "where", "slug"]].drop_duplicates()
    for name, trained in material.runs.details["epochs"].merge(subjects, on=SUBJECT).groupby("workload", sort=False):
        workload = str(name)
        devices = trained["where"].nunique()
        if material.figures != "all" and devices > MOST_TRAINED:
            drawn = "is drawn by run_bench.py report --figures all."
            yield workload, f"The course of training on {devices} devices {drawn}"
            continue
        for (where, subject, batch), group in trained.groupby(["where", "slug", "batch_size"], sort=False):
            caption = f"{workload} on {where}: training at batch size {batch:.0f}"
            file = f"{subject}-training-b{batch:.0f}"
            yield workload, course(group, name=file, caption=caption, workload=workload, where=str(where))


def differences(summary: pd.DataFrame, metric: Metric) -> Iterator[Chart]:
    """Describe each precision's accuracy or loss less fp32's, with its interval and the margin.

    Figures of merit of suites' own have a figure each.
    """
    center, low, _ = metric.changes
    compared = summary[summary[center].notna() & summary[low].notna()]
    described = pd.Series([metric.of(row) for row in records(compared)], compared.index, dtype=object)
    for place, (each, rows) in enumerate(compared.groupby(described, sort=False)):
        yield _differences(rows, each, metric.name + f"-{place + 1}" * (place > 0))


def _differences(compared: pd.DataFrame, metric: Metric, file: str) -> Chart:
    (center, low, high), rows = metric.changes, compared.head(MOST_ROWS)
    unit = f" {metric.unit}" * bool(metric.unit)
    cut = f" The first {MOST_ROWS} of {len(compared)} are shown." if len(compared) > MOST_ROWS else ""
    margin = Bar(x=(-metric.margin, metric.margin), low=0, high=len(rows), tint=chart.SOFT, faint=True)
    marks: list[Mark] = [margin, chart.Rule(at=0.0, axis="x")]
    several = {name: rows[name].nunique() > 1 for name in ("workload", "label", "batch_size")}
    names, sizes = [], rows.groupby(CELL[:-1])["batch_size"].transform("nunique") > 1
    for place, (row, many) in enumerate(zip(records(rows), sizes, strict=True)):
        y, name = place + 0.5, str(row["precision"])
        says = f"{written(metric, [row[column] for column in metric.changes], metric.unit)}, {row['accuracy_verdict']}"
        marks += chart.estimate((row[center], row[low], row[high]), y, name, says)
        parts = [str(row[column]) for column in ("workload", "label") if several[column]]
        parts += [f"batch {row['batch_size']}"] if many else []
        names.append(" ".join([*parts, name]))
    return Chart(
        name=file,
        caption=f"{capital(metric.label)} less fp32's",
        about=f"Means over seeds with 90 % intervals; the band is the margin of ±{metric.margin:g}{unit}, and "
        f"{metric.better} is better." + cut,
        panels=[chart.rows_panel("", Axis(label=metric.unit), names, marks)],
        legend=chart.legend(rows),
    )


REPORT = PhaseReport(
    tables=(Entry(53, RECIPE, lambda material: [*training(material.rows), *training_remarks(material.rows)]),),
    charts=charts,
)
