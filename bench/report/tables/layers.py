"""The tables of the layers phase: what it found, and how much each module harms the gradients where it is narrow."""

from __future__ import annotations

import pandas as pd

from bench.report.analysis.verdict import Verdict
from bench.report.format import records
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, RECIPE, Entry, Table, figures, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, keeping

SHOWN = 12
"""Modules of an arm that are listed, those with the largest errors first."""
ANSWERS = {
    "fine": "none",
    "concentrated": "these",
    "diffuse": "no small set",
    "everything": "all: scale the loss",
    "loss": "the loss itself",
}
"""The answers, as names of figures, in words."""
OF_MODEL = {
    "error": "error of the gradients (%)",
    "kept": "with these kept (%)",
    "trained": "as trained (%)",
    "limit": "limit (%)",
    "noise": "sampling noise (%)",
    "lost_updates": "updates lost (%)",
}
"""Figures of the whole model, by their names, with the headers of their columns."""


def modules(rows: pd.DataFrame) -> pd.DataFrame:
    """Return a row for each module of each arm, of rows of ``Runs.numerics``: its figures, the largest error first."""
    of_modules = rows[(rows["kind"] == "module") & (rows["layer"] != "") & rows["name"].isin(("error", "share"))]
    names = [*KEY, "where", "layer"]
    wide = of_modules.pivot_table(index=names, columns="name", values="value", sort=False).reset_index()
    return wide.reindex(columns=[*names, "error", "share"]).sort_values("error", ascending=False, kind="stable")


def kept(arm: pd.DataFrame) -> str:
    """Return the value of the option ``keep`` that was found for an arm; empty where no small set is to blame."""
    figures = arm[arm["kind"] == "module"]
    if "concentrated" not in set(figures["name"]):
        return ""
    return "+".join(figures.loc[figures["name"] == "keep", "layer"])


def kept_names(numerics: pd.DataFrame) -> dict[str, str]:
    """Return the names of the precisions that keep what was found, each with its name without the option."""
    names = {}
    for _, arm in numerics.groupby(KEY, sort=False):
        precision, patterns = str(arm["precision"].iloc[0]), kept(arm)
        if patterns:
            names[keeping(precision, patterns)] = precision
    return names


def verdicts(trials: pd.DataFrame) -> list[Verdict]:
    """Return what each search found, of rows of ``Material.trials``."""
    verdicts = []
    for trial in records(trials[(trials["phase"] == "layers") & trials["status"].isin(MEASURED)]):
        advice, _, evidence = str(trial["detail"]).partition(": ")
        subject = f"{trial['workload']} on {trial['where']}, batch {trial['batch_size']:.0f}, {trial['precision']}"
        verdicts.append(Verdict(subject=subject, advice=advice, evidence=evidence))
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
    answers = []
    for _, arm in rows[rows["kind"] == "module"].groupby(KEY, sort=False):
        of_model = arm[arm["layer"] == ""].set_index("name")["value"].to_dict()
        answer = next((text for name, text in ANSWERS.items() if name in of_model), "")
        first = arm.iloc[0].to_dict()
        answers.append(first | dict.fromkeys(OF_MODEL) | of_model | {"answer": answer, "keep": kept(arm)})
    columns = [*ARM, words("which modules need fp32", "answer"), words("keep", "keep", wrap=True)]
    columns += [figures(header, name, 2, per=0.01) for name, header in OF_MODEL.items()]
    about = (
        f"Gradients of the precision against {BASELINE}'s, on the same weights and two batches, dropout off: the "
        "larger of the relative error of all gradients as one vector and the root mean square of the parameters' own. "
        "Keep is an option of the precision, as in amp-bf16:keep=head. Sampling noise is how much gradients differ "
        "between two batches. Updates lost: parameters whose first update mostly disappears in 16-bit weights."
    )
    listed = [
        *ARM,
        words("module", "layer", wrap=True),
        figures("error (%)", "error", 2, per=0.01),
        figures("share (%)", "share", 2, per=0.01),
    ]
    detail = (
        f"Each module alone in the narrow type, the rest in fp32: up to {SHOWN} with the largest errors. Only a "
        "module's own operations count, not those of modules within it. Share is that of the sum of squared errors."
    )
    return [
        table("Which modules need fp32", answers, columns, about),
        table("Modules narrow alone", records(modules(rows).groupby(KEY, sort=False).head(SHOWN)), listed, detail),
    ]


TABLES = (Entry(62, RECIPE, lambda material: searched(material.numerics)),)
