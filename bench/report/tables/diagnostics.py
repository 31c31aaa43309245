"""Tables of diagnostics: machines, precision switches, compute types, timing, and notes on trials."""

from __future__ import annotations

import json
import textwrap
from collections import defaultdict
from typing import Any

import pandas as pd

from bench.report.analysis.summary import IEEE_ERROR, MEASURES, UNSUPPORTED, other_types
from bench.report.format import GIB, known, records
from bench.report.parts import parts
from bench.report.reading.labels import subjects
from bench.report.reading.load import KEY, SUBJECT, Run, Runs
from bench.report.tables.table import (
    ARM,
    PRECISION,
    RECIPE,
    Entry,
    Row,
    Table,
    figures,
    optional,
    table,
    whole,
    words,
)
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

UNSTEADY = "step times had not settled when warm-up ended"
OOM = "oom"
LONGEST = 160
"""Characters of a reason; the CSV has it whole."""


def machines(runs: list[Run]) -> list[Table | None]:
    """Return the hosts and their software, and the devices, as run.json has them."""
    hosts: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    for run in runs:
        hosts.append(defaultdict(str, run.environment, run=run.label, started=run.info.get("started")))
        devices += [defaultdict(str, device, run=run.label) for device in run.devices]
    return [table("", hosts, HOST), table("", devices, DEVICE)]


HOST = (
    *(words(name, name) for name in ("run", "host", "os", "python", "torch", "cuda", "cudnn", "driver", "started")),
    *optional(
        words("overrides removed", lambda row: ", ".join(row["removed_variables"]), wrap=True),
        words("environment variables", lambda row: ", ".join(row["variables"]), wrap=True),
    ),
)
DEVICE = (
    words("run", "run"),
    words("placement", "placement"),
    words("device", "name"),
    words("architecture", "architecture"),
    figures("memory (GiB)", "memory_total_bytes", lambda size: f"{size:.1f}", per=GIB),
    figures("power limit (W)", "power_limit_w", whole),
    figures("cores", "cores", whole),
    figures("threads", "threads", whole),
)


def switches(trials: pd.DataFrame) -> Table | None:
    """Return the switches of each precision as read back; a precision has two rows where its trials differ."""
    names = ["fp32_matmul", "fp32_conv", "fp32_rnn", "autocast", "loss_scaling"]
    reported = trials[(trials[names] != "").any(axis=1)]
    reported = reported.assign(other_types=other_types(reported))
    alike = reported.groupby(["run", "device", "precision", *names], sort=False)
    settings = alike.agg({"matmul_error": "max", "other_types": "first"}).reset_index()
    columns = [
        words("run", "run"),
        words("device", "device"),
        PRECISION,
        *(words(name.replace("_", " "), name) for name in names),
        figures("fp32 matmul error", "matmul_error", 2),
        words("so fp32 products are", _arithmetic),
    ]
    about = (
        "Read back in the measuring process. The error is that of an fp32 matrix product against float64, "
        "outside autocast: about 1e-6 or less is IEEE fp32, about 3e-4 is TF32."
    )
    return table("", records(settings), columns, about)


def _arithmetic(row: Row) -> str:
    if not known(row["matmul_error"]):
        return ""
    if row["precision"] == BASELINE and known(row["other_types"]):
        return f"not fp32: it {row['other_types']}"
    return "IEEE fp32" if row["matmul_error"] <= IEEE_ERROR else "rounded (TF32 or less)"


def conversions(trials: pd.DataFrame) -> Table | None:
    """Return which linear layers each arm's precision converted, and which not; ``trials`` has the column ``where``."""
    rows = trials[trials["converted_layers"] != ""].drop_duplicates([*KEY, "kept_layers"])
    arms = []
    for row in records(rows):
        kept = json.loads(row["kept_layers"] or "{}")
        why = "; ".join(f"{name} ({reason})" for name, reason in kept.items())
        arms.append(row | {"converted": len(listed(row["converted_layers"])), "why": why or "none"})
    columns = [
        *ARM,
        figures("converted", "converted", whole),
        words("not converted, and why", "why", wrap=True),
    ]
    about = (
        "Converted: linear layers that torchao replaced. They multiply in the precision's narrow type, forward and "
        "backward; the rest of the model is as under its autocast. How it was measured says what was computed in which "
        "type: one type in another is emulation, operands rounded to the first and multiplied in the second."
    )
    return table("Converted layers", arms, columns, about)


ANSWERED = (*MEASURED, "oom", "unsupported")
"""The statuses of rows that say how it is; others say that something went wrong."""


def failures(runs: Runs) -> list[str]:
    """Return which precision has rows without an answer, in which phases, one line for each on each device."""
    trials = runs.tried()
    rows = trials[~trials["status"].isin(ANSWERED)].merge(subjects(trials), on=SUBJECT)
    alike = rows.groupby(["workload", "label", "precision", "status"], sort=False)["phase"].unique()
    return [
        f"{row['workload']} on {row['label']}: {row['precision']} {row['status']} ({', '.join(row['phase'])})"
        for row in records(alike.reset_index())
    ]


def notes(trials: pd.DataFrame) -> Table | None:
    """Return notes on trials that were not ``ok``, not steady or disturbed, or have a detail although ``ok``.

    Equal notes on an arm share a row, which counts their trials. ``not_measured`` has what is unsupported.
    """
    measured = trials[trials["status"].isin(MEASURED)]
    disturbed = measured[measured["disturbance"] != ""]
    detailed = [name for name, part in parts().items() if part.has_details]
    has_detail = ~trials["phase"].isin(detailed) & (trials["detail"] != "")
    rows = pd.concat(
        [
            trials[((trials["status"] != "ok") | has_detail) & (trials["status"] != UNSUPPORTED)],
            measured[measured["steady"] == "no"].assign(status="not steady", detail=UNSTEADY),
            disturbed.assign(status="disturbed", detail=disturbed["disturbance"]),
        ]
    )
    alike = rows.groupby([*SUBJECT, "precision", "status", "detail"], sort=False)
    counted = alike.agg(
        sizes=("batch_size", "unique"), phases=("phase", "unique"), trials=("trial", "nunique")
    ).reset_index()
    columns = [
        words("suite", "workload"),
        words("device", "where"),
        words("batch sizes", lambda row: ", ".join(map(whole, row["sizes"]))),
        words("phase", lambda row: ", ".join(row["phases"])),
        PRECISION,
        words("status", "status"),
        figures("trials", "trials", whole),
        words("detail", "detail", wrap=True),
    ]
    return table("", records(counted.merge(subjects(trials), on=SUBJECT)), columns)


def not_measured(summary: pd.DataFrame, runs: Runs) -> list[str]:
    """Return a sentence for each reason why precisions are unsupported, and for what did not fit of each model.

    A reason names phases, models and devices where it does not hold for all.
    """
    trials = runs.trials.merge(subjects(runs.trials)[[*SUBJECT, "workload", "label"]], on=SUBJECT)
    rows = trials[trials["status"] == UNSUPPORTED].copy()
    rows["reason"] = list(map(_reason, rows["precision"], rows["detail"]))
    sentences = []
    for reason, alike in rows.groupby("reason", sort=False):
        names = alike["precision"].unique()
        places = []
        for column in ("phase", "workload", "label"):
            values = alike[column].unique()
            if len(values) < trials[column].nunique():
                places.append(", ".join(values))
        where = f" ({'; '.join(places)})" if places else ""
        sentences.append(f"{', '.join(names)}{where}: {reason}.")
    lost = summary[(summary[MEASURES] == OOM).any(axis=1)]
    for (workload, label), subject in lost.groupby(["workload", "label"], sort=False):
        first = subject.groupby("precision", sort=False)["batch_size"].min()
        sizes = [f"{precision} from batch {size:.0f}" for precision, size in first.items()]
        sentences.append(f"{workload} on {label}, out of memory: {', '.join(sizes)}.")
    return sentences


def _reason(name: str, detail: str) -> str:
    """Return a row's reason without the precision's name at its head, and not longer than ``LONGEST``."""
    text = detail.removeprefix(name).lstrip(": ")
    return textwrap.shorten(text, LONGEST, placeholder=" …").rstrip(".") or UNSUPPORTED


def warnings(runs: list[Run]) -> list[str]:
    """Return the runs' warnings, each prefixed with its run where there are several."""
    return [f"{run.label}: {text}" if len(runs) > 1 else text for run in runs for text in run.list("warnings")]


TABLES = (
    Entry(10, "Machines", lambda material: machines(material.runs.runs)),
    Entry(57, RECIPE, lambda material: [conversions(material.trials)]),
    Entry(80, "Precision switches", lambda material: [switches(material.runs.trials)]),
    Entry(90, "Notes", lambda material: [notes(material.runs.tried())]),
)
