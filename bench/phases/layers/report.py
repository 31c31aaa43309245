"""What the layers phase found: its answer, and how much each module harms the gradients where it is narrow."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from bench.report.figures import chart
from bench.report.figures.chart import Axis, Bar, Chart, Panel
from bench.report.format import number, records
from bench.report.parts import Finding, Findings, PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import ARM, RECIPE, Entry, Material, Table, figures, table, words
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, keeping

SHOWN = 12
"""Modules of an arm that are listed, those with the largest errors first."""
ANSWERS = {
    "fine": "none",
    "concentrated": "these",
    "diffuse": "no small set",
    "loss": "the loss itself",
}
"""The answers, as names of figures, in words."""
OF_MODEL = {
    "error": "error of the gradients (%)",
    "kept": "with these kept (%)",
    "limit": "limit (%)",
    "noise": "sampling noise (%)",
}
"""Figures of the whole model, by their names, with the headers of their columns."""
ABOUT_ANSWERS = (
    f"Gradients of the precision against {BASELINE}'s, on the same weights and two batches, dropout off: the "
    "larger of the relative error of all gradients as one vector and the root mean square of the parameters' own. "
    "Keep is an option of the precision, as in amp-bf16:keep=head. Sampling noise is how much gradients differ "
    "between two batches."
)
ABOUT_MODULES = (
    f"Each module alone in the narrow type, the rest in fp32: up to {SHOWN} with the largest errors. Only a "
    "module's own operations count, not those of modules within it. Share is that of the sum of squared errors."
)
ANSWER_COLUMNS = (
    *ARM,
    words("which modules need fp32", "answer"),
    words("keep", "keep", wrap=True),
    *(figures(header, name, 2, per=0.01) for name, header in OF_MODEL.items()),
)
MODULE_COLUMNS = (
    *ARM,
    words("module", "layer", wrap=True),
    figures("error (%)", "error", 2, per=0.01),
    figures("share (%)", "share", 2, per=0.01),
)


def searched(numerics: pd.DataFrame) -> pd.DataFrame:
    """Return the rows of ``Runs.details`` that a search wrote; those of the whole model have no ``layer``."""
    return numerics[numerics["kind"] == "module"]


def kept(of_model: pd.DataFrame) -> str:
    """Return the value of the option ``keep`` that was found for an arm; empty where no small set is to blame."""
    if "concentrated" not in set(of_model["name"]):
        return ""
    return "+".join(of_model.loc[of_model["name"] == "keep", "layer"])


def kept_names(numerics: pd.DataFrame) -> dict[str, str]:
    """Return the names of the precisions that keep what was found, each with its name without the option."""
    names = {}
    for key, arm in searched(numerics).groupby(KEY, sort=False):
        precision, patterns = str(key[-1]), kept(arm)
        if patterns:
            names[keeping(precision, patterns)] = precision
    return names


def answers(rows: pd.DataFrame) -> Table | None:
    """Return each arm's answer, of rows of ``searched`` with the column ``where``."""
    lines = []
    for _, arm in rows.groupby(KEY, sort=False):
        of_model = arm[arm["layer"] == ""].set_index("name")["value"].to_dict()
        line = arm.iloc[0].to_dict() | dict.fromkeys(OF_MODEL) | of_model
        answer = next((text for name, text in ANSWERS.items() if name in of_model), "")
        lines.append(line | {"answer": answer, "keep": kept(arm)})
    return table("Which modules need fp32", lines, ANSWER_COLUMNS, ABOUT_ANSWERS)


def worst_modules(rows: pd.DataFrame) -> pd.DataFrame:
    """Return the error and share of the ``SHOWN`` worst modules of each arm, the largest error first."""
    of_modules = rows[(rows["layer"] != "") & rows["name"].isin(("error", "share"))]
    names = [*KEY, "where", "layer"]
    wide = of_modules.pivot_table(index=names, columns="name", values="value", sort=False).reset_index()
    wide = wide.reindex(columns=[*names, "error", "share"]).sort_values("error", ascending=False, kind="stable")
    return wide.groupby(KEY, sort=False).head(SHOWN)


def tables(material: Material) -> list[Table | None]:
    """Return the tables of one recipe."""
    rows = searched(material.named(material.runs.details["layers_figures"]))
    modules = records(worst_modules(rows))
    return [answers(rows), table("Modules narrow alone", modules, MODULE_COLUMNS, ABOUT_MODULES)]


def charts(material: Material) -> Iterator[tuple[str, Chart]]:
    """Describe the modules' shares of the harm: a figure for each recipe, device and batch size."""
    rows = searched(material.named(material.runs.details["layers_figures"]))
    for (workload, where, slug, batch), of_batch in rows.groupby(
        ["workload", "where", "slug", "batch_size"], sort=False
    ):
        modules = worst_modules(of_batch).dropna(subset="share")
        panels = [_shares(str(key[-1]), arm) for key, arm in modules.groupby(KEY, sort=False)]
        if panels:
            yield (
                str(workload),
                Chart(
                    name=f"{slug}-b{batch:.0f}-layers",
                    caption=f"{workload} on {where} at batch size {batch:.0f}: modules that harm the gradients",
                    about="Each module alone in the narrow type: its share of the sum of squared errors.",
                    panels=panels,
                ),
            )


def _shares(precision: str, arm: pd.DataFrame) -> Panel:
    names, marks = [], []
    for place, module in enumerate(records(arm)):
        percent = 100 * module["share"]
        names.append(str(module["layer"]))
        says = f"{module['layer']}: {number(percent, 2)} %"
        marks.append(Bar(x=(0.0, percent), low=place + 0.15, high=place + 0.85, tint=precision, says=says))
    return chart.rows_panel(precision, Axis(label="share of the squared error (%)", low=0.0), names, marks)


def findings(material: Material) -> Iterator[Findings]:
    """Yield what each search has found, which is the detail of its row."""
    trials = material.trials
    found = []
    for trial in records(trials[(trials["phase"] == "layers") & trials["status"].isin(MEASURED)]):
        advice, _, evidence = str(trial["detail"]).partition(": ")
        subject = f"{trial['workload']} on {trial['where']}, batch {trial['batch_size']:.0f}, {trial['precision']}"
        found.append(Finding(subject=subject, result=f"{advice} — {evidence}"))
    yield Findings(findings=found)


REPORT = PhaseReport(tables=(Entry(62, RECIPE, tables),), charts=charts, findings=findings)
