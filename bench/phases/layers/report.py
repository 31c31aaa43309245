"""What the layers phase found: its answer, and how much each module harms the gradients."""

from __future__ import annotations

from collections.abc import Iterator

import pandas as pd

from bench.report.format import records
from bench.report.parts import Finding, Findings, PhaseReport
from bench.report.reading.load import KEY
from bench.report.tables.table import (
    ARM_COLUMNS,
    EACH_RECIPE,
    Entry,
    Material,
    Table,
    make_table,
    number_column,
    text_column,
)
from bench.results.records import MEASURED
from bench.spec.precisions import BASELINE, keeping

# Modules of an arm that are listed, those with the largest errors first.
SHOWN = 12
# The answers, as names of figures, in words.
ANSWERS = {
    "fine": "none",
    "concentrated": "these",
    "diffuse": "no small set",
    "loss": "the loss itself",
}
# Figures of the whole model, by their names, with the headers of their columns.
OF_MODEL = {
    "error": "error of the gradients (%)",
    "kept": "with these kept (%)",
    "limit": "limit (%)",
}
ABOUT_ANSWERS = (
    f"Gradients of the precision against {BASELINE}'s, on the same weights and two batches, "
    "dropout off: the larger of the relative error of all gradients as one vector and the root "
    "mean square of the parameters' own. Keep is an option of the precision, as in "
    "amp-bf16:keep=head."
)
ABOUT_MODULES = (
    f"Each module alone in the narrow type, the rest in fp32: up to {SHOWN} with the largest "
    "errors. Only a module's own operations count, not those of modules within it. Share is that "
    "of the sum of squared errors."
)
ANSWER_COLUMNS = (
    *ARM_COLUMNS,
    text_column("which modules need fp32", "answer"),
    text_column("keep", "keep", wrap=True),
    *(number_column(header, name, 2, per=0.01) for name, header in OF_MODEL.items()),
)
MODULE_COLUMNS = (
    *ARM_COLUMNS,
    text_column("module", "layer", wrap=True),
    number_column("error (%)", "error", 2, per=0.01),
    number_column("share (%)", "share", 2, per=0.01),
)


def searched(numerics: pd.DataFrame) -> pd.DataFrame:
    """Return the rows that a search wrote; those of the whole model have no ``layer``."""
    return numerics[numerics["kind"] == "module"]


def kept(of_model: pd.DataFrame) -> str:
    """Return the option ``keep`` that was found for an arm; empty if no small set is to blame."""
    if "concentrated" not in set(of_model["name"]):
        return ""
    return "+".join(of_model.loc[of_model["name"] == "keep", "layer"])


def kept_names(numerics: pd.DataFrame) -> dict[str, str]:
    """Return the precisions that keep what was found, each with its name without the option."""
    names = {}
    for key, arm in searched(numerics).groupby(KEY, sort=False):
        precision = str(key[-1])
        patterns = kept(arm)
        if patterns:
            names[keeping(precision, patterns)] = precision
    return names


def answers(rows: pd.DataFrame) -> Table | None:
    """Return each arm's answer, of rows of ``searched`` with the column ``where``."""
    lines = []
    for _, arm in rows.groupby(KEY, sort=False):
        of_model = arm[arm["layer"] == ""].set_index("name")["value"]
        line = arm.iloc[0].to_dict()
        for name in OF_MODEL:
            line[name] = of_model.get(name)
        line["keep"] = kept(arm)
        line["answer"] = ""
        for name, text in ANSWERS.items():
            if name in of_model:
                line["answer"] = text
        lines.append(line)
    return make_table("Which modules need fp32", lines, ANSWER_COLUMNS, ABOUT_ANSWERS)


def worst_modules(rows: pd.DataFrame) -> Table | None:
    """Return the error and share of the ``SHOWN`` worst modules of each arm."""
    figures = ["error", "share"]
    is_of_module = rows["layer"] != ""
    of_modules = rows[is_of_module & rows["name"].isin(figures)]
    names = [*KEY, "where", "layer"]
    wide = of_modules.pivot_table(index=names, columns="name", values="value", sort=False)
    # Both columns also where no module has a figure.
    wide = wide.reindex(columns=figures).reset_index()
    wide = wide.sort_values("error", ascending=False, kind="stable")
    worst = wide.groupby(KEY, sort=False).head(SHOWN)
    return make_table("Modules narrow alone", records(worst), MODULE_COLUMNS, ABOUT_MODULES)


def tables(material: Material) -> list[Table | None]:
    """Return the tables of one recipe."""
    rows = searched(material.named(material.runs.details["layers_figures"]))
    return [answers(rows), worst_modules(rows)]


def findings(material: Material) -> Iterator[Findings]:
    """Yield what each search has found, which is the detail of its row."""
    trials = material.trials
    found = []
    is_measured = trials["status"].isin(MEASURED)
    is_search = trials["phase"] == "layers"
    for trial in records(trials[is_search & is_measured]):
        advice, _, evidence = str(trial["detail"]).partition(": ")
        subject = (
            f"{trial['workload']} on {trial['where']}, batch {trial['batch_size']:.0f}, "
            f"{trial['precision']}"
        )
        found.append(Finding(subject=subject, result=f"{advice} — {evidence}"))
    yield Findings(findings=found)


REPORT = PhaseReport(tables=(Entry(63, EACH_RECIPE, tables),), findings=findings)
