"""Training: tables of what it learned and cost, its course, and differences from fp32."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial

import pandas as pd

from bench.phases.train.course import course
from bench.report.analysis.judge import judged_by
from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Mark, Rule
from bench.report.format import (
    MIB,
    at_batch,
    capital,
    enumerated,
    known,
    number,
    records,
    source,
    titled,
    written,
)
from bench.report.parts import OVERVIEW, Finding, Findings, PhaseReport
from bench.report.reading.load import SUBJECT
from bench.report.tables.table import (
    BATCH,
    DEVICE,
    EACH_RECIPE,
    PRECISION,
    Entry,
    Material,
    Row,
    Table,
    decimals,
    described,
    make_table,
    number_column,
    optional_columns,
    over_fp32,
    quality_columns,
    text_column,
)
from bench.spec.metric import Metric
from bench.spec.metrics import ACCURACY, learned
from bench.spec.precisions import BASELINE

# Share of training time spent waiting for batches from which the loader may be the limit.
WAITING_PCT = 10.0
# But not where training reaches this share of the step's own throughput: then the GPU had work
# meanwhile.
OF_THE_STEP = 0.9
STORAGE = {
    "device": "device",
    "host": "host memory",
    "file": "disk",
}
# The columns that name what was trained.
TRAINED = (
    DEVICE,
    text_column("data", lambda row: source(str(row["data"]))),
    BATCH,
    PRECISION,
    number_column("seeds", "seeds", 1),
    number_column("epochs", "epochs", 1),
)
# Most devices of a recipe whose trainings are drawn, unless all are asked for.
MOST_TRAINED = 2


ABOUT_LEARNED = (
    "Means over seeds, after the last epoch. The difference is precision − fp32, seed by seed. "
    f"Parity is judged from {ACCURACY.fewest} seeds on, at a margin that was fixed beforehand: "
    "{margins}. EQUIVALENT: the interval lies within ± the margin. NON-INFERIOR: it may be "
    "better, but not worse, by more. WORSE: all of it is worse by more. INCONCLUSIVE: it holds "
    "the margin on the worse side. Above the entropy: of the data called markov the entropy rate "
    "is known, the least test loss that can be expected; the mean is over seeds, each with "
    "sequences of its own."
)


def training(rows: pd.DataFrame) -> list[Table | None]:
    """Return what training learned and what it cost; nothing where nothing was trained."""
    trained = records(rows[rows["train_status"].notna()])
    return [_learned(trained), _cost(trained)]


def waiting(rows: pd.DataFrame) -> list[Finding]:
    """Return the arms, of any workloads, whose training the loader limits."""
    reached = rows["train_samples_per_s"] / rows["samples_per_s"]
    is_limited = (rows["data_wait_pct"] >= WAITING_PCT) & ~(reached >= OF_THE_STEP)
    found = []
    for row in records(rows.assign(reached=reached)[is_limited]):
        arm = f"{row['workload']} on {row['where']}{at_batch(row)}, {row['precision']}"
        text = (
            "the loader limits training, which waited for batches "
            f"{number(row['data_wait_pct'], 2)} % of its time"
        )
        if known(row["reached"]):
            percent = number(100 * row["reached"], 2)
            text += (
                f" and reached {percent} % of the throughput of its steps on data already on the "
                "device"
            )
        found.append(Finding(subject=arm, result=text))
    return found


def _learned(rows: list[Row]) -> Table | None:
    differences = []
    for metric in learned():
        named = described(metric, rows)
        header = f"difference ({named.unit or named.label}) [90 % interval]"
        differences.append(number_column(header, partial(_difference, named)))
    columns = [
        *TRAINED,
        *optional_columns(
            number_column("train loss", "train_loss", status="train_status"),
            number_column("test loss", "test_loss"),
            number_column("above the entropy (nats)", "above_entropy"),
            number_column("perplexity", "perplexity"),
            number_column(
                "test accuracy (%) ± sd",
                _accuracy,
                status="train_status",
                lost="lost_train",
            ),
            *quality_columns(rows),
            *differences,
            text_column("parity", "accuracy_verdict"),
        ),
    ]
    margins = {}
    for row in rows:
        judge = judged_by(row)
        if judge is not None:
            margin = f"{judge.margin:g} {judge.unit}".rstrip()
            margins[f"{margin} of {judge.label}"] = True
    about = ABOUT_LEARNED.format(margins=", ".join(margins) or "the suite's")
    return make_table("Training", rows, columns, about)


def _accuracy(row: Row) -> str:
    spread = ""
    if known(row["accuracy_sd_points"]):
        spread = f" ± {decimals(row['accuracy_sd_points'])}"
    return f"{decimals(row['accuracy_pct'])}{spread}"


def _difference(metric: Metric, row: Row) -> str:
    if row["precision"] == BASELINE:
        return "baseline"
    return written(metric, [row[name] for name in metric.changes])


def _epoch_speedup(row: Row) -> str:
    return over_fp32(row, "epoch_speedup", "epoch_speedup_low", "epoch_speedup_high")


def _cost(rows: list[Row]) -> Table | None:
    columns = [
        *TRAINED,
        *optional_columns(
            number_column(
                "time/epoch (s)",
                "time_per_epoch_s",
                status="train_status",
                lost="lost_train",
            ),
            number_column("epoch speedup [95 % interval]", _epoch_speedup),
            number_column("step speedup [95 % interval]", over_fp32),
            text_column("data from", lambda row: STORAGE.get(row["data_storage"])),
            number_column("waiting for data (%)", "data_wait_pct", 2),
            number_column("total time (s)", "total_s"),
            number_column("checkpoint (MiB)", "checkpoint_bytes", per=MIB),
        ),
    ]
    about = (
        "Time per epoch is training alone, loading included; the total includes evaluation. The "
        "epoch speedup is fp32's time per epoch divided by the precision's, seed by seed, with "
        "Student's interval over the seeds; the step speedup is that of the tables above, on data "
        "already on the device. A checkpoint is the model's weights."
    )
    return make_table("Training: time and storage", rows, columns, about)


# Figures.


def charts(material: Material) -> Iterator[tuple[str, Chart | str | None]]:
    """Describe the trainings of each recipe, device and batch size, and what they learned."""
    for metric in learned():
        yield OVERVIEW, differences(material.summary, metric)
    subjects = material.summary[[*SUBJECT, "workload", "where", "slug"]].drop_duplicates()
    epochs = material.runs.details["epochs"].merge(subjects, on=SUBJECT)
    for name, trained in epochs.groupby("workload", sort=False):
        workload = str(name)
        devices = trained["where"].nunique()
        if material.figures != "all" and devices > MOST_TRAINED:
            drawn = "is drawn by run_bench.py report --figures all."
            yield workload, f"The course of training on {devices} devices {drawn}"
            continue
        cells = trained.groupby(["where", "slug", "batch_size"], sort=False)
        for (where, subject, batch), group in cells:
            caption = f"{workload} on {where}: training at batch size {batch:.0f}"
            file = f"{subject}-training-b{batch:.0f}"
            yield workload, course(group, name=file, caption=caption)


def differences(summary: pd.DataFrame, metric: Metric) -> Chart | None:
    """Describe each precision's accuracy or loss less fp32's; None if none has an interval."""
    center, low, high = metric.changes
    compared = summary[summary[center].notna() & summary[low].notna()]
    if compared.empty:
        return None
    panels = []
    labels = []
    for workload, rows in compared.groupby("workload", sort=False):
        lines = records(rows)
        names: list[str] = []
        described = metric.of(lines[0])
        labels.append(described.label)
        margin = described.margin
        marks: list[Mark] = [
            Bar(
                x=(-margin, margin),
                low=0,
                high=len(lines),
                tint=chart.SOFT,
                faint=True,
            ),
            Rule(at=0.0, axis="x"),
        ]
        for row in lines:
            ends = row[low], row[high]
            marks += chart.estimate(row[center], *ends, len(names) + 0.5, row["precision"])
            batch = ""
            if rows["batch_size"].nunique() > 1:
                batch = f" batch {row['batch_size']}"
            names.append(f"{row['label']}{batch} {row['precision']}")
        label = titled(described.label, described.unit, f"{described.better} is better")
        panels.append(chart.rows_panel(str(workload), Axis(label=label), names, marks))
    return Chart(
        name=metric.name,
        caption=f"{capital(enumerated(dict.fromkeys(labels)))} less fp32's",
        about="Means over seeds with 90 % intervals; the band is the margin.",
        panels=panels,
        legend=chart.legend(compared),
    )


REPORT = PhaseReport(
    tables=(Entry(53, EACH_RECIPE, lambda material: training(material.rows)),),
    charts=charts,
    findings=lambda material: [Findings(findings=waiting(material.rows))],
)
