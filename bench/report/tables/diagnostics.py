"""Tables of machines, precision switches and notes on trials; and what could not be measured."""

from __future__ import annotations

import textwrap
from collections import defaultdict

import pandas as pd

from bench.report.analysis.summary import CORE_STATUSES, UNSUPPORTED
from bench.report.format import GIB, records
from bench.report.parts import parts
from bench.report.reading.labels import subjects
from bench.report.reading.load import SUBJECT, Run, Runs
from bench.report.tables.table import (
    PRECISION,
    Entry,
    Table,
    make_table,
    number_column,
    optional_columns,
    text_column,
    whole,
)
from bench.results.records import MEASURED

UNSTEADY = "step times had not settled when warm-up ended"
OOM = "oom"
# Characters of a reason; the CSV has it whole.
LONGEST = 160


RUN = text_column("run", "run")
OF_HOST = ("host", "os", "python", "torch", "cuda", "cudnn", "driver", "started")
HOST = (
    RUN,
    *(text_column(name, name) for name in OF_HOST),
    *optional_columns(
        text_column("overrides removed", "removed_variables", wrap=True),
        text_column("environment variables", "variables", wrap=True),
    ),
)
DEVICE = (
    RUN,
    text_column("placement", "placement"),
    text_column("device", "name"),
    text_column("architecture", "architecture"),
    number_column("memory (GiB)", "memory_total_bytes", lambda size: f"{size:.1f}", per=GIB),
    number_column("power limit (W)", "power_limit_w", whole),
    number_column("cores", "cores", whole),
    number_column("threads", "threads", whole),
)
SWITCHES = ("fp32_matmul", "fp32_conv", "fp32_rnn", "autocast", "loss_scaling")
SWITCH_COLUMNS = (
    RUN,
    text_column("device", "device"),
    PRECISION,
    *(text_column(name.replace("_", " "), name) for name in SWITCHES),
    number_column("fp32 matmul error", "matmul_error", 2),
)
ABOUT_SWITCHES = (
    "Read back in the measuring process. The error is that of an fp32 matrix product against "
    "float64, outside autocast: about 1e-6 or less is IEEE fp32, about 3e-4 is TF32."
)
NOTE_COLUMNS = (
    text_column("suite", "workload"),
    text_column("device", "where"),
    text_column("batch sizes", lambda row: ", ".join(map(whole, row["sizes"]))),
    text_column("phase", lambda row: ", ".join(row["phases"])),
    PRECISION,
    text_column("status", "status"),
    number_column("trials", "trials", whole),
    text_column("detail", "detail", wrap=True),
)


def machines(runs: list[Run]) -> list[Table | None]:
    """Return the hosts and their software, and the devices, as run.json has them."""
    # A fact that run.json lacks is an empty cell.
    hosts = []
    devices = []
    for run in runs:
        host = defaultdict(str, run.environment, run=run.label, started=run.info.get("started"))
        for name in ("removed_variables", "variables"):
            host[name] = ", ".join(host[name])
        hosts.append(host)
        devices += [defaultdict(str, device, run=run.label) for device in run.devices]
    return [make_table("", hosts, HOST), make_table("", devices, DEVICE)]


def switches(trials: pd.DataFrame) -> Table | None:
    """Return the switches of each precision as read back, in a row for each different reading."""
    has_switch = (trials[[*SWITCHES]] != "").any(axis=1)
    names = ["run", "device", "precision", *SWITCHES]
    errors = trials[has_switch].groupby(names, sort=False)["matmul_error"]
    # The largest error, because one trial in TF32 is enough to make a precision's figures TF32's.
    settings = errors.max().reset_index()
    return make_table("", records(settings), SWITCH_COLUMNS, ABOUT_SWITCHES)


# The statuses of rows that answer what was asked; the others tell of a failure.
ANSWERED = (*MEASURED, OOM, UNSUPPORTED)


def _named(trials: pd.DataFrame) -> pd.DataFrame:
    """Return trials with the names of their subjects: ``workload``, ``where`` and ``label``."""
    names = subjects(trials)[[*SUBJECT, "workload", "where", "label"]]
    return trials.merge(names, on=SUBJECT)


def failures(runs: Runs) -> list[str]:
    """Return a line for each precision that has rows without an answer on a device.

    It has the reason of the first of them.
    """
    trials = _named(runs.tried())
    failed = trials[~trials["status"].isin(ANSWERED)]
    alike = failed.groupby(["workload", "label", "precision", "status"], sort=False)
    lines = []
    for (workload, label, precision, status), rows in alike:
        where = f"{workload} on {label}"
        names = ", ".join(rows["phase"].unique())
        line = f"{where}: {precision} {status} ({names})"
        details = rows.loc[rows["detail"] != "", "detail"]
        if not details.empty:
            line += f": {_shortened(details.iloc[0])}"
        lines.append(line)
    return lines


def notes(trials: pd.DataFrame) -> Table | None:
    """Return notes on trials that were not ``ok``, unsteady or disturbed, or have a detail.

    Equal notes on an arm share a row, which counts their trials. ``not_measured`` has what is
    unsupported.
    """
    trials = _named(trials)
    status = trials["status"]
    detail = trials["detail"]
    # The detail of these phases' rows is a result, which has a table of its own.
    detailed = [name for name, part in parts().items() if part.has_details]
    has_detail = (detail != "") & ~trials["phase"].isin(detailed)
    is_noted = (status != "ok") | has_detail
    is_measured = status.isin(MEASURED)
    unsteady = trials[is_measured & (trials["steady"] == "no")]
    disturbed = trials[is_measured & (trials["disturbance"] != "")]
    rows = pd.concat(
        [
            trials[is_noted & (status != UNSUPPORTED)],
            unsteady.assign(status="not steady", detail=UNSTEADY),
            disturbed.assign(status="disturbed", detail=disturbed["disturbance"]),
        ]
    )
    names = [*SUBJECT, "workload", "where", "precision", "status", "detail"]
    alike = rows.groupby(names, sort=False)
    counted = alike.agg(
        sizes=("batch_size", "unique"), phases=("phase", "unique"), trials=("trial", "nunique")
    )
    return make_table("", records(counted.reset_index()), NOTE_COLUMNS)


def not_measured(summary: pd.DataFrame, runs: Runs) -> list[str]:
    """Return a sentence for each reason why precisions are unsupported, and for what did not fit.

    A reason names phases, models and devices where it does not hold for all.
    """
    trials = _named(runs.trials)
    rows = trials[trials["status"] == UNSUPPORTED]
    rows = rows.assign(reason=list(map(_reason, rows["precision"], rows["detail"])))
    sentences = []
    for reason, alike in rows.groupby("reason", sort=False):
        places = []
        for column in ("phase", "workload", "label"):
            values = alike[column].unique()
            if len(values) < trials[column].nunique():
                places.append(", ".join(values))
        where = f" ({'; '.join(places)})" if places else ""
        names = ", ".join(alike["precision"].unique())
        sentences.append(f"{names}{where}: {reason}.")
    lost = summary[(summary[CORE_STATUSES] == OOM).any(axis=1)]
    for (workload, label), subject in lost.groupby(["workload", "label"], sort=False):
        # What does not fit at one size fits at no larger one.
        smallest = subject.groupby("precision", sort=False)["batch_size"].min()
        sizes = []
        for precision, size in smallest.items():
            sizes.append(f"{precision} from batch {size:.0f}")
        where = f"{workload} on {label}"
        sentences.append(f"{where}, out of memory: {', '.join(sizes)}.")
    return sentences


def _reason(name: str, detail: str) -> str:
    """Return a row's reason, shortened, without the precision's name at its head."""
    # So that precisions with the same reason share a sentence.
    text = detail.removeprefix(name).lstrip(": ")
    return _shortened(text) or UNSUPPORTED


def _shortened(text: str) -> str:
    return textwrap.shorten(text, LONGEST, placeholder=" …").rstrip(".")


def warnings(runs: list[Run]) -> list[str]:
    """Return the runs' warnings, each prefixed with its run where there are several."""
    texts = []
    for run in runs:
        prefix = f"{run.label}: " if len(runs) > 1 else ""
        texts += [prefix + text for text in run.list("warnings")]
    return texts


TABLES = (
    Entry(10, "Machines", lambda material: machines(material.runs.runs)),
    Entry(80, "Precision switches", lambda material: [switches(material.runs.trials)]),
    Entry(90, "Notes", lambda material: [notes(material.runs.tried())]),
)
