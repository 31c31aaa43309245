"""Tables of diagnostics: machines, precision switches, compute types, timing, and notes on trials."""

from __future__ import annotations

import json
import re
import textwrap
from collections import defaultdict
from collections.abc import Callable
from typing import Any

import pandas as pd

from bench.report.analysis.doubts import CROWDED_PCT
from bench.report.analysis.summary import IEEE_ERROR, MEASURES, UNSUPPORTED, other_types
from bench.report.format import GIB, change, enumerated, known, records
from bench.report.reading.labels import short, subjects
from bench.report.reading.load import KEY, SUBJECT, Run, Runs, is_emulated
from bench.report.tables.table import (
    ARM,
    PRECISION,
    RECIPE,
    Entry,
    Material,
    Row,
    Table,
    figures,
    optional,
    table,
    whole,
    word,
    words,
)
from bench.results.columns import listed
from bench.results.records import MEASURED
from bench.spec.generations import generation_rank
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE, find_precision, precision_rank

CROWDED = "other programs took up to {:.0f} % of the machine's cores while timing"
UNSTEADY = "step times had not settled when warm-up ended"
NO_NOTES = "Every trial was measured, and no interval within a process is wider than was asked for."
OOM = "oom"
LONGEST = 160
"""Characters of a reason; the table "Not supported" has it whole."""
SHOWN = 400
"""Longest detail in a note, in characters; the CSV has the full text."""


def machines(runs: list[Run]) -> list[Table | None]:
    """Return the hosts and their software, and the devices, as run.json has them."""
    environments: list[dict[str, Any]] = []
    devices: list[dict[str, Any]] = []
    for run in runs:
        environment = run.part("environment")
        joined = {name: ", ".join(environment.get(name, ())) for name in ("removed_variables", "variables")}
        extra = {"run": run.label, "started": run.info.get("started")}
        environments.append(defaultdict(str, environment | joined | extra))
        devices += [defaultdict(str, device, run=run.label) for device in environment.get("devices", ())]
    return [
        table("", environments, [*(words(header, name) for header, name in HOST.items()), *optional(VARIABLES)]),
        table("", devices, DEVICE),
    ]


def _as_written(name: str) -> Callable[[Row], str]:
    return lambda row: word(row[name])


HOST = {
    "run": "run",
    "host": "host",
    "system": "os",
    "Python": "python",
    "torch": "torch",
    "CUDA": "cuda",
    "cuDNN": "cudnn",
    "driver": "driver",
    "overrides removed": "removed_variables",
    "started": "started",
}
"""Headers of the table of hosts, and their fields."""
VARIABLES = words("environment variables", "variables", wrap=True)
DEVICE = (
    words("run", "run"),
    words("placement", "placement"),
    words("device", "name"),
    words("architecture", "architecture"),
    words("capability", "compute_capability"),
    words("cannot do", lambda device: ", ".join(name for name in device["unsupported"] or () if ":" not in name)),
    figures("memory (GiB)", "memory_total_bytes", lambda size: f"{size:.1f}", per=GIB),
    figures("power limit (W)", _as_written("power_limit_w")),
    figures("cores", _as_written("cores")),
    figures("threads", _as_written("threads")),
)


def switches(trials: pd.DataFrame) -> Table | None:
    """Return the switches of each precision as read back; a precision has two rows where its trials differ."""
    names = ["fp32_matmul", "fp32_conv", "fp32_rnn", "autocast", "loss_scaling"]
    reported = trials[(trials[names] != "").any(axis=1) | trials["matmul_error"].notna()]
    reported = reported.assign(strayed=other_types(reported))
    alike = reported.groupby(["run", "device", "precision", *names], sort=False)
    settings = alike.agg({"matmul_error": "max", "strayed": "first"}).reset_index()
    settings["rank"] = settings["precision"].map(precision_rank)
    settings = settings.sort_values(["run", "device", "rank"], kind="stable")
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
    if row["precision"] == BASELINE and known(row["strayed"]):
        return f"not fp32: it {row['strayed']}"
    return "IEEE fp32" if row["matmul_error"] <= IEEE_ERROR else "rounded (TF32 or less)"


def what_ran(rows: pd.DataFrame) -> Table | None:
    """Return the compute types of one workload's steps, and their throughput against the device's peak."""
    columns = [
        *ARM,
        *optional(
            words("computed in", "compute_dtypes"),
            words("attention by", "attention"),
            figures("GFLOP/step", "flops_per_step", per=1e9),
            figures("TFLOP/s", "tflops", 3),
            figures("ceiling (TFLOP/s)", "peak_tflops", 3),
            figures("share of ceiling (%)", "pct_of_peak", 2),
            figures("host/GPU time", "host_ratio", 2),
        ),
    ]
    about = (
        "Computed in: the types of matrix products and convolutions, with their shares of a step's FLOPs, recorded in "
        "one step that is not timed. Attention by: the backends of scaled_dot_product_attention in that step, with "
        "their calls. The ceiling is the rate of large matrix products in that precision, measured in "
        "the same process; a share above 100 % means that it was measured too low. Host/GPU time near 1: launching "
        "kernels limits the step."
    )
    measured = rows[rows["flops_per_step"].notna() | rows["peak_tflops"].notna()]
    return table("What ran", records(measured), columns, about)


def conversions(trials: pd.DataFrame) -> Table | None:
    """Return which linear layers each arm's precision converted, and which not; ``trials`` has the column ``where``."""
    if "converted_layers" not in trials or not (converted := trials["converted_layers"] != "").any():
        return None
    rows = trials[converted].assign(typed=trials["compute_dtypes"] == "").sort_values("typed", kind="stable")
    arms = rows.drop_duplicates([*KEY, "kept_layers"]).sort_index()
    arms["converted"] = [len(listed(cell)) for cell in arms["converted_layers"]]
    arms["kept"] = [json.loads(cell or "{}") for cell in arms["kept_layers"]]
    columns = [
        *ARM,
        figures("linear layers", lambda row: row["converted"] + len(row["kept"]), whole),
        figures("converted", "converted", whole),
        words("not converted, and why", _why_kept, wrap=True),
        words("products computed in", "compute_dtypes"),
    ]
    about = (
        "Converted: linear layers that torchao replaced. They multiply in the precision's narrow type, forward and "
        "backward; the rest of the model is as under its autocast. "
        "Where a product is said to be of one type in another, its operands were rounded to the first and multiplied "
        "in the second: emulation."
    )
    return table("Converted layers", records(arms), columns, about)


def _why_kept(row: Row) -> str:
    return "; ".join(f"{name} ({why})" for name, why in row["kept"].items()) or "none"


def compiling(trials: pd.DataFrame) -> Table | None:
    """Return each arm's compile time, the median over processes; ``trials`` must have the column ``where``."""
    rows = trials[trials["compile_s"].notna() & (trials["phase"] != "inference")]  # inference compiles no backward pass
    times = rows.groupby([*KEY, "where"], sort=False)["compile_s"].agg(["median", "size"]).reset_index()
    columns = [*ARM, figures("compiling (s)", "median", 3), figures("processes", "size", whole)]
    about = (
        "Time of the steps until none compiled, less that of as many ordinary ones: of forward and backward "
        "with the technique compile. Each arm "
        "begins with an empty cache, but the first of a process takes up to a quarter longer; 0 is that of one whose "
        "graphs another arm of its process had compiled. No other time includes it. A training pays it once."
    )
    return table("Compiling", records(times), columns, about)


def how_timed(rows: pd.DataFrame) -> Table | None:
    """Return the timing diagnostics of one workload."""
    columns = [
        *ARM,
        *optional(
            figures("rounds", "rounds", whole),
            figures("steps/block", "block_steps", 2),
            figures("switch warm-up (steps)", "switch_warmup_steps", 2),
            figures("first step after switch", "switch_transient_pct", change, per=100),
            figures("p50 (ms)", "step_p50_ms", 3),
            figures("p95 (ms)", "step_p95_ms", 3),
            figures("others' load (%)", "foreign_load_pct", 2),
            words("power limit", lambda row: "held the clock down" if row["power_capped"] is True else ""),
            figures("A/A noise (%)", "noise", lambda share: f"{100 * share:.1f}"),
        ),
    ]
    about = (
        "Counts are sums over all processes, other figures medians. A/A noise is how far fp32 measured "
        "against itself was from 1; where it was not measured, 1 % is assumed. Precisions that take turns share a "
        "clock that the power limit holds down."
    )
    return table("How it was timed", records(rows[rows["block_steps"].notna()]), columns, about)


DETAILED = ("fit", "numerics")
"""Phases whose ``ok`` rows all have a detail, as a part of the result; others have one only where something happened.
"""


ANSWERED = (*MEASURED, "oom", "unsupported")
"""The statuses of rows that say how it is; others say that something went wrong."""


def failures(runs: Runs) -> list[str]:
    """Return which precision has rows without an answer, in which phases, one line for each on each device."""
    trials = runs.tried()
    rows = trials[~trials["status"].isin(ANSWERED)]
    if rows.empty:
        return []
    rows = rows.merge(subjects(trials), on=SUBJECT, how="left")
    alike = rows.groupby(["workload", "label", "precision", "status"], sort=False)["phase"].unique().reset_index()
    return [
        f"{row['workload']} on {row['label']}: {row['precision']} {row['status']} in the {enumerated(row['phase'])} "
        f"phase{'s' if len(row['phase']) > 1 else ''}"
        for row in records(alike)
    ]


def unsupported(trials: pd.DataFrame) -> Table | None:
    """Return which device does not support what, and why, once for all suites and phases."""
    rows = trials[trials["status"] == "unsupported"].drop_duplicates(["device", "precision", "detail"])
    columns = [words("device", "device"), PRECISION, words("reason", "detail", wrap=True)]
    return table("Not supported", records(rows), columns)


def notes(trials: pd.DataFrame) -> Table | None:
    """Return notes on trials that were not ``ok``, not steady, crowded or disturbed, or have a detail although ``ok``.

    Equal notes share a row, which counts their trials; so do equal notes on the steps of one ablation, and on phases.
    """
    measured = trials[trials["status"].isin(MEASURED)]
    disturbed = measured[measured["disturbance"] != ""]
    rows = pd.concat(
        [
            trials[(trials["status"] != "ok") | (~trials["phase"].isin(DETAILED) & (trials["detail"] != ""))],
            measured[measured["steady"] == "no"].assign(status="not steady", detail=UNSTEADY),
            measured[measured["foreign_load_pct"] > CROWDED_PCT].assign(status="crowded"),
            disturbed.assign(status="disturbed", detail=disturbed["disturbance"]),
        ]
    )
    steps = [listed(cell) for cell in rows["arm_techniques"]]
    shown = [f"+ {added[-1]}" if added else name for name, added in zip(rows["precision"], steps, strict=True)]
    rows = rows.assign(arm=rows["precision"].mask(rows["ablation"] == "yes", ""), shown=shown)
    key = [*SUBJECT, "phase", "arm", "status"]
    highest_load = rows.groupby(key, sort=False)["foreign_load_pct"].transform("max")
    rows["detail"] = rows["detail"].mask(rows["status"] == "crowded", highest_load.map(CROWDED.format))
    equal = rows.sort_values("batch_size", kind="stable").groupby([*key, "detail"], sort=False)
    counted = equal.agg(
        sizes=("batch_size", lambda sizes: tuple(sizes.unique())),
        shown=("shown", lambda names: tuple(names.unique())),
        trials=("trial", "nunique"),
    )
    alike = counted.reset_index().groupby([*SUBJECT, "arm", "status", "detail", "sizes", "shown"], sort=False)
    together = alike.agg(phases=("phase", "unique"), trials=("trials", "sum")).reset_index()
    columns = [
        words("suite", "workload"),
        words("device", "where"),
        words("batch sizes", lambda row: ", ".join(map(whole, row["sizes"]))),
        words("phase", lambda row: ", ".join(row["phases"])),
        words("precision", lambda row: ", ".join(row["shown"])),
        words("status", "status"),
        figures("trials", "trials", whole),
        words("detail", lambda row: _short(row["detail"]), wrap=True),
    ]
    return table("", records(together.merge(subjects(trials), on=SUBJECT, how="left")), columns)


def not_measured(summary: pd.DataFrame, runs: Runs) -> list[str]:
    """Return a sentence for each precision that devices lack, each other reason, and what did not fit of each suite."""
    trials = runs.trials
    costs = ~trials["phase"].isin([name for name, phase in PHASES.items() if phase.arithmetic])
    rows = trials[(trials["status"] == UNSUPPORTED) & ~(costs & is_emulated(trials["precision"]))]
    every = subjects(trials)
    rows = rows.merge(every[[*SUBJECT, "workload", "label"]], on=SUBJECT).assign(reason="")
    lacking = {
        (run.label, device["placement"]): device.get("lacking") or () for run in runs.runs for device in run.devices
    }
    lacks: dict[str, dict[str, None]] = {}
    for at, row in zip(rows.index, records(rows), strict=True):
        precision = find_precision(row["precision"])
        if precision and precision.ability in lacking.get((row["run"], row["placement"]), ()):
            is_gpu = generation_rank(row["architecture"]) < generation_rank("")
            where = row["architecture"] if is_gpu else short(row["device"])
            lacks.setdefault(row["precision"], {})[where] = None
        else:
            rows.loc[at, "reason"] = _reason(row["precision"], row["detail"])
    sentences = [f"{name}: not on {', '.join(lacks[name])}." for name in sorted(lacks, key=precision_rank)]
    sentences += [
        f"{_refused(alike, every, trials)}: {reason}."
        for reason, alike in rows[rows["reason"] != ""].groupby("reason", sort=False)
    ]
    return sentences + _too_large(summary)


def _refused(rows: pd.DataFrame, every: pd.DataFrame, trials: pd.DataFrame) -> str:
    """Name the precisions of rows, the phases unless others were measured of none, and where, unless everywhere."""
    names = ", ".join(sorted(rows["precision"].unique(), key=precision_rank))
    alike = trials.merge(rows[[*SUBJECT, "precision"]].drop_duplicates())
    others = set(alike.loc[alike["status"].isin(MEASURED), "phase"])
    if others and not others & set(rows["phase"]):
        names = f"{', '.join(rows['phase'].unique())} of {names}"
    several = [name for name in ("workload", "label") if rows[name].nunique() < every[name].nunique()]
    return ", ".join([*filter(None, [" on ".join(", ".join(rows[name].unique()) for name in several)]), names])


def _reason(name: str, detail: str) -> str:
    """Return a row's reason without the precision's name at its head, and not longer than ``LONGEST``."""
    precision = find_precision(name)
    heads = "|".join(map(re.escape, (name, precision.base if precision else name)))
    text = re.sub(rf"^(?:{heads}):? ", "", detail)
    return textwrap.shorten(text, LONGEST, placeholder=" …").rstrip(".") or UNSUPPORTED


def _too_large(summary: pd.DataFrame) -> list[str]:
    """Say from which batch size on each precision ran out of memory."""
    devices: dict[str, list[str]] = {}
    for _, subject in summary[(summary[MEASURES] == OOM).any(axis=1)].groupby(SUBJECT, sort=False):
        first = subject.groupby("precision", sort=False)["batch_size"].min()
        sizes = [f"{size:.0f} ({', '.join(map(str, group.index))})" for size, group in first.groupby(first)]
        workload, label = subject[["workload", "label"]].iloc[0]
        devices.setdefault(workload, []).append(f"{label} from batch {' and '.join(sizes)}")
    return [f"{workload}, out of memory: {'; '.join(places)}." for workload, places in devices.items()]


def _notes(material: Material) -> list[Table | str | None]:
    """Return all notes; on what devices do not support there is one for each device, precision and reason."""
    trials = material.runs.trials
    tried = trials[trials["status"] != "unsupported"]
    tables = unsupported(trials), notes(pd.concat([tried, material.runs.ablations], ignore_index=True))
    return [*tables] if any(tables) else [NO_NOTES]


def _short(detail: str) -> str:
    """Shorten a long detail to its cause, which names the device, and its end, which names the error."""
    text = " ".join(detail.split())
    if len(text) <= SHOWN:
        return text
    head = min(len(text.partition(" | ")[0]), SHOWN // 2)
    return f"{text[:head]} … {text[head - SHOWN :]}"


def warnings(runs: list[Run]) -> list[str]:
    """Return the runs' warnings, each prefixed with its run where there are several."""
    return [f"{run.label}: {text}" if len(runs) > 1 else text for run in runs for text in run.list("warnings")]


TABLES = (
    Entry(10, "Machines", lambda material: machines(material.runs.runs)),
    Entry(56, RECIPE, lambda material: [what_ran(material.rows)]),
    Entry(57, RECIPE, lambda material: [conversions(material.trials)]),
    Entry(58, RECIPE, lambda material: [compiling(material.trials)]),
    Entry(59, RECIPE, lambda material: [how_timed(material.rows)]),
    Entry(80, "Precision switches", lambda material: [switches(material.runs.trials)]),
    Entry(90, "Notes", _notes),
)
