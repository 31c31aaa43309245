"""Tables of figures: what every cell measured, arm by arm."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from itertools import compress
from typing import Any

import pandas as pd

from bench.report.analysis import batches
from bench.report.analysis.verdict import reference_batch
from bench.report.reading.load import SUBJECT
from bench.report.tables.format import UNKNOWN, change, known, memory_unit, number, ratio, records
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE

WORDS = {"run (host)", "placement", "precision", "verdict", "measured in", "architecture", "device", "parity"}
WORDS |= {"run", "host", "system", "Python", "torch", "CUDA", "cuDNN", "driver", "overrides removed", "started"}
WORDS |= {"capability", "cannot do", "fp32 matmul", "fp32 conv", "autocast", "loss scaling", "so fp32 products are"}
WORDS |= {"computed in", "suite", "batch sizes", "phase", "status", "detail", "data", "source", "note"}
WORDS |= {"rung", "stands on", "limited by"}
WORDS |= {"bound by", "data from", "other parameters", "setup", "devices", "scaling", "one device"}
"""Headers of columns that hold words."""
SUM = "Peak memory of devices that train together is the largest device's; then the sum of the peaks of all."
LEGEND = {
    "†": "unconverged: the interval is wider than was asked for.",
    "‡": "some of its trials did not count; the notes say which and why.",
}


@dataclass(frozen=True, kw_only=True, slots=True)
class Table:
    """A table as text, before it is markdown or HTML."""

    headers: list[str]
    rows: list[list[str]]
    title: str = ""
    about: str = ""
    """A sentence that says what the table compares."""
    footnotes: list[str] = field(default_factory=list)

    @property
    def figures(self) -> list[bool]:
        """Whether each column holds figures, which are set to the right; the others hold words."""
        return [header not in WORDS for header in self.headers]


def table(title: str, headers: list[str], rows: list[list[str]], about: str = "") -> Table:
    """Make a table, with the legend of the marks that are in it."""
    text = "".join(cell for row in rows for cell in row)
    footnotes = [f"{mark} {legend}" for mark, legend in LEGEND.items() if mark in text]
    return Table(title=title, headers=headers, rows=rows, about=about, footnotes=footnotes)


def without_empty(made: Table, keep: int) -> Table:
    """Leave out the columns that hold no figure in any row; the first ``keep`` stay."""
    columns = zip(*made.rows, strict=True)
    full = [index < keep or not set(cells) <= {UNKNOWN, "baseline"} for index, cells in enumerate(columns)]
    rows = [list(compress(row, full)) for row in made.rows]
    return replace(made, headers=list(compress(made.headers, full)), rows=rows)


def _plain(status: object, text: str) -> str:
    """Return a figure, or the status word in its place where there is none."""
    return UNKNOWN if not known(status) else text if status in MEASURED else str(status)


def decimals(value: float) -> str:
    """Write an accuracy in per cent."""
    return f"{value:.2f}" if known(value) else UNKNOWN


def told(status: object, text: str, lost: object = 0) -> str:
    """Return a figure, or the status word in its place where there is none, marked where it needs reading twice."""
    if status not in MEASURED:
        return _plain(status, text)
    mark = "†" if status == "unconverged" else ""
    return f"{text}{mark}{'‡' if known(lost) and lost else ''}"


def cells(rows: pd.DataFrame, hosts: dict[str, str]) -> Table:
    """Return the table of one device: every batch size and precision, of all its runs."""
    unit, size, digits = memory_unit(rows["memory_bytes"].max())
    several_runs, several_places = len(hosts) > 1, rows["placement"].nunique() > 1
    headers = ["run (host)"] * several_runs + ["placement"] * several_places
    headers += ["batch size", "precision", "time/epoch (s)", "throughput (samples/s)", "step (ms)"]
    headers += ["speedup [95 % interval]", "verdict", "measured in", f"peak memory ({unit})", "memory vs fp32"]
    headers += ["test accuracy (%)"]
    body = []
    for row in records(rows):
        baseline = row["precision"] == BASELINE
        held = "–" if not known(row["memory_bytes"]) else f"{row['memory_bytes'] / size:,.{digits}f}"
        held += f"; sum {row['all_devices_bytes'] / size:,.{digits}f}" if known(row["all_devices_bytes"]) else ""
        speedup = ratio(row["speedup"], row["low"], row["high"])
        body.append(
            [hosts[row["run"]]] * several_runs
            + [row["placement"]] * several_places
            + [
                f"{row['batch_size']:.0f}",
                row["precision"],
                told(row["train_status"], number(row["time_per_epoch_s"]), row["lost_train"]),
                _plain(row["speed_status"], number(row["samples_per_s"])),
                _plain(row["speed_status"], number(row["step_ms"])),
                told(row["speed_status"], "baseline" if baseline else speedup, row["lost_speed"]),
                word(row["verdict"]),
                word(row["measured_in"]),
                told(row["memory_status"], held),
                "baseline" if baseline and known(row["memory_bytes"]) else change(row["memory_change"]),
                told(row["train_status"], decimals(row["accuracy_pct"]), row["lost_train"]),
            ]
        )
    first = rows.iloc[0]
    title = f"{first['architecture']} · {first['device']}" if first["architecture"] else str(first["device"])
    return table(title, headers, body, about=SUM if rows["all_devices_bytes"].notna().any() else "")


def word(value: object) -> str:
    """Return a word, or a dash where there is none."""
    return str(value) if known(value) else UNKNOWN


def architectures(rows: pd.DataFrame, hosts: dict[str, str]) -> Table:
    """Return the speedups of one workload on several devices side by side."""
    arms = [name for name in _precisions(rows) if name != BASELINE]
    body = []
    for _, subject in rows.groupby(SUBJECT, sort=False):
        batch = reference_batch(subject)
        cell = {row["precision"]: row for row in records(subject[subject["batch_size"] == batch])}
        first = subject.iloc[0]
        shown = [_speedup(cell[name]) if name in cell else UNKNOWN for name in arms]
        body.append(
            [
                first["architecture"] or UNKNOWN,
                first["device"],
                first["placement"],
                hosts[first["run"]],
                f"{batch}",
                *shown,
            ]
        )
    about = "Speedup over fp32 of the same device, with its 95 % interval, at the batch size of the verdict."
    headers = ["architecture", "device", "placement", "run (host)", "batch size", *arms]
    return table("By architecture", headers, body, about=about)


def _speedup(row: Mapping[Hashable, Any]) -> str:
    text = f"{ratio(row['speedup'], row['low'], row['high'])}"
    return told(row["speed_status"], f"{text} {row['verdict']}" if known(row["verdict"]) else text, row["lost_speed"])


def best_batch(rows: pd.DataFrame) -> Table | None:
    """Return each precision at its own best batch size, and the ratios of throughput between precisions."""
    best = batches.best_rows(rows)
    if best.empty:
        return None
    names = _precisions(best)
    body = []
    for _, subject in best.groupby(SUBJECT, sort=False):
        others = {row["precision"]: row for row in records(subject)}
        body += [
            [
                row["where"],
                row["precision"],
                f"{row['batch_size']:.0f}",
                told(row["speed_status"], number(row["samples_per_s"])),
                *(_over(row, others[name]) if name in others else UNKNOWN for name in names),
            ]
            for row in others.values()
        ]
    about = (
        "Each precision at the measured batch size, of those that fit, at which its throughput was highest. "
        "The ratios are of throughputs, this row's over the other precision's, with 95 % intervals: the speedup "
        "itself where both are at one batch size, else, as the two were not measured side by side, Welch's "
        "interval over their processes, which is wider."
    )
    headers = ["device", "precision", "best batch", "throughput (samples/s)", *(f"÷ {name}" for name in names)]
    return table("Best batch", headers, body, about=about)


def _over(row: dict[Hashable, Any], other: dict[Hashable, Any]) -> str:
    if row["precision"] == other["precision"]:
        return ratio(1.0)
    apart = batches.over(row, other)
    return ratio(apart.center, apart.low, apart.high)


def same_and_best(rows: pd.DataFrame) -> Table | None:
    """Return the speedup at one batch size beside that of each precision at its own best; None where it is one size."""
    body = []
    for _, subject in rows.groupby(SUBJECT, sort=False):
        batch = reference_batch(subject)
        cell = {row["precision"]: row for row in records(subject[subject["batch_size"] == batch])}
        for name, best in batches.best_speedups(subject).items():
            same = _speedup(cell[name]) if name in cell else UNKNOWN
            where = subject.iloc[0]["where"]
            body.append([where, name, f"{batch}", same, f"{best.fp32}", f"{best.own}", str(best)])
    if not body:
        return None
    about = (
        "Two different numbers. At the same batch size the speedup is what changing the precision alone brings. At the "
        "best batch each precision has the batch size of its highest throughput, and fp32 its own: what memory saved "
        "can buy beside. Another batch size is another training, which may need another learning rate."
    )
    headers = ["device", "precision", "same batch", "same-batch speedup [95 % interval]"]
    headers += ["fp32's best batch", "its own best batch", "best-batch speedup [95 % interval]"]
    return table("Same batch and best batch", headers, body, about=about)


def largest_batch(trials: pd.DataFrame, rows: pd.DataFrame) -> Table | None:
    """Return the largest batch that fits of each precision; None where it was not looked for."""
    body = batches.largest(trials, rows)
    if not body:
        return None
    about = (
        "The largest batch of which a few training steps fit, found by doubling and bisection to a sixteenth of its "
        "size, one precision alone in a fresh process each time. Bound by: memory, if the next larger one tried ran "
        "out of it; predicted memory, if on a CPU less than a fifth of what is available would have been left; time, "
        "if its step or the whole attempt was predicted to take too long, so that more may fit (docs/measuring.md)."
    )
    headers = ["device", "precision", "largest batch", "× fp32's", "bound by", "held at its peak (GiB)"]
    return table("Largest batch", [*headers, "free before (GiB)"], body, about=about)


def _precisions(rows: pd.DataFrame) -> list[str]:
    return list(rows.sort_values("rank", kind="stable")["precision"].unique())
