"""The table of the layers phase: how much each module harms the gradients where it alone is narrow."""

from __future__ import annotations

import math

import pandas as pd

from bench.report.analysis.verdict import Verdict
from bench.report.format import known, number, ratio, records
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, RECIPE, Entry, Material, Table, figures, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, keeping

LIKE = ["suite", "parameters", "techniques", "data", "device", "batch_size"]
"""What the search has in common with the run that times what it advises."""
SHOWN = 12
"""Modules of an arm that are listed, those with the largest errors first."""


def modules(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each module of each arm, of rows of ``Runs.numerics``: its figures, the largest error first."""
    each = rows[(rows["kind"] == "module") & (rows["layer"] != "") & (rows["name"] != "keep")]
    names = [*dict.fromkeys((*KEY, "where", "batch_size", "precision")), "layer"]
    columns = [*names, "error", "worst", "share", "flops"]
    if each.empty:
        return pd.DataFrame(columns=columns)
    wide = each.pivot_table(index=names, columns="name", values="value", sort=False).reset_index()
    return wide.reindex(columns=columns).sort_values("error", ascending=False, kind="stable")


def whole(rows: pd.DataFrame) -> dict[str, float]:
    """Return an arm's figures of the whole model by their names."""
    figures = rows[(rows["kind"] == "module") & (rows["layer"] == "")]
    return dict(zip(figures["name"], figures["value"], strict=True))


def kept(rows: pd.DataFrame) -> str:
    """Return the value of the option ``keep`` that was found for an arm; empty where no small set is to blame."""
    if not ((rows["kind"] == "module") & (rows["name"] == "concentrated")).any():
        return ""
    return "+".join(rows.loc[(rows["kind"] == "module") & (rows["name"] == "keep"), "layer"])


def kept_names(numerics: pd.DataFrame) -> dict[str, list[tuple[str, str]]]:
    """Return, for each suite with modules to keep, the precisions' names without and with the option."""
    pairs: dict[str, list[tuple[str, str]]] = {}
    for (suite, precision), arm in numerics.groupby(["suite", "precision"], sort=False):
        if patterns := kept(arm):
            pairs.setdefault(str(suite), []).append((str(precision), keeping(str(precision), patterns)))
    return pairs


def verdicts(material: Material) -> list[Verdict]:
    """Return what each search found, with the speed of what it advises where that was timed beside it."""
    trials, timed = material.trials, material.summary.dropna(subset=["speedup"])
    verdicts = []
    for row in records(trials[(trials["phase"] == "layers") & trials["status"].isin(MEASURED)]):
        alike = timed[(timed[LIKE] == [row[name] for name in LIKE]).all(axis=1)]
        speeds = dict(zip(alike["precision"], map(ratio, alike["speedup"], alike["low"], alike["high"]), strict=True))
        arm = material.numerics[material.numerics["trial"] == row["trial"]]
        names = [keeping(row["precision"], kept(arm)), row["precision"]] if kept(arm) else []
        pace = "; ".join(f"{name} is {speeds[name]}× as fast as {BASELINE}" for name in names if name in speeds)
        advice, _, evidence = str(row["detail"]).partition(": ")
        verdicts.append(
            Verdict(
                subject=f"{row['workload']} on {row['where']}, batch {row['batch_size']:.0f}, {row['precision']}",
                advice=advice,
                evidence="; ".join(filter(None, [evidence, pace])),
            )
        )
    return verdicts


def snippet(patterns: str) -> str:
    """Return code for a training of one's own that does what ``keep`` does under autocast."""
    return f"""\
from fnmatch import fnmatchcase
import torch
from torch.utils._pytree import tree_map

def in_fp32(forward, kind):
    wide = lambda leaf: leaf.float() if isinstance(leaf, torch.Tensor) and leaf.is_floating_point() else leaf
    def run(*args, **kwargs):
        with torch.autocast(kind, enabled=False):
            return tree_map(wide, forward(*tree_map(wide, args), **tree_map(wide, kwargs)))
    return run

for name, module in model.named_modules():  # before torch.compile and DistributedDataParallel
    if any(fnmatchcase(name, pattern) for pattern in {patterns.split("+")!r}):
        module.forward = in_fp32(module.forward, device.type)
"""


def searched(rows: pd.DataFrame) -> list[Table | None]:
    """Return the tables of one workload: each arm's answer, and its modules."""
    arms = [arm for _, arm in rows[rows["kind"] == "module"].groupby(KEY, sort=False)]
    answers = [
        {name: arm.iloc[0][name] for name in ("where", "batch_size", "precision")}
        | whole(arm)
        | {"answer": next((ANSWERS[word] for word in ANSWERS if word in whole(arm)), ""), "keep": kept(arm)}
        for arm in arms
    ]
    columns = [
        *ARM,
        words("which modules need fp32", "answer"),
        words("keep", "keep", wrap=True),
        figures("error of the gradients (%)", lambda row: row.get("error"), per=0.01, write=_percent),
        figures("with these kept (%)", lambda row: row.get("kept"), per=0.01, write=_percent),
        figures("as trained (%)", lambda row: row.get("trained"), per=0.01, write=_percent),
        figures("limit (%)", lambda row: row.get("limit"), per=0.01, write=_percent),
        figures("sampling noise (%)", lambda row: row.get("noise"), per=0.01, write=_percent),
        figures("updates lost (%)", lambda row: row.get("lost_updates"), per=0.01, write=_percent),
    ]
    about = (
        f"Gradients of the precision against {BASELINE}'s, on the same weights and two batches, dropout off: the "
        "larger of the relative error of all gradients as one vector and the root mean square of the parameters' own. "
        "Keep is an option of the precision, as in amp-bf16:keep=head. Sampling noise is how much gradients differ "
        "between two batches. Updates lost: parameters whose first update mostly disappears in 16-bit weights."
    )
    parts = records(modules(rows).groupby(KEY, sort=False).head(SHOWN))
    detail = (
        f"Each module alone in the narrow type, the rest in fp32: up to {SHOWN} with the largest errors. Only a "
        "module's own operations count, not those of modules within it. Share is that of the sum of squared errors."
    )
    listed = [
        *ARM,
        words("module", "layer", wrap=True),
        figures("error (%)", "error", per=0.01, write=_percent),
        figures("share (%)", "share", per=0.01, write=_percent),
        figures("worst parameter: signal to noise (dB)", "worst", write=_decibels),
        figures("share of the FLOPs (%)", "flops", per=0.01, write=_percent),
    ]
    return [
        table("Which modules need fp32", answers, columns, about),
        table("Modules narrow alone", parts, listed, detail),
    ]


ANSWERS = {
    "fine": "none",
    "concentrated": "these",
    "diffuse": "no small set",
    "everything": "all: scale the loss",
    "loss": "the loss itself",
}
"""The answers, as names of figures, in words."""


def _percent(value: float) -> str:
    return "∞" if math.isinf(value) else number(value, 2)


def _decibels(error: float) -> str:
    return (
        "–" if not known(error) else "−∞" if math.isinf(error) else f"{-20 * math.log10(error):.0f}" if error else "∞"
    )


TABLES = (Entry(62, RECIPE, lambda material: searched(material.numerics)),)
