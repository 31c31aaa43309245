#!/usr/bin/env python3
"""Fill the generated parts of the documents.

    python docs/update.py             # rewrite what has changed
    python docs/update.py --check     # change nothing; exit with 1 if a document is out of date

Generated are tables of what the registries hold. A part stands between two markers, ``<!-- table:
NAME -->`` and ``<!-- end -->``.
"""

from __future__ import annotations

import ast
import inspect
import re
import sys
import textwrap
from collections.abc import Callable, Iterable
from functools import cache, partial
from itertools import pairwise
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.devices import nvidia
from bench.planning import suite_registry
from bench.report import load
from bench.report.reading.trials import ABOUT, TRIALS
from bench.results import columns
from bench.results.records import Identity, Ran
from bench.spec.metrics import METRICS
from bench.spec.phases import PHASES
from bench.spec.precisions import PRECISIONS, Feature, Precision
from bench.spec.techniques import TECHNIQUES

ROOT = Path(__file__).resolve().parents[1]
PART = re.compile(r"(<!-- table: (?P<name>[\w.-]+) -->\n).*?(<!-- end -->)", re.DOTALL)

# Describes each feature in words.
FEATURES: dict[Feature, str] = {
    "": "–",
    "tf32": "TF32 products",
    "cudnn-tf32": "cuDNN's TF32",
    "fp16": "fp16 arithmetic",
    "bf16": "bf16 arithmetic",
    "fp8": "float8 products",
}


def precisions() -> str:
    """Describe every precision."""
    rows = []
    for name, precision in PRECISIONS.items():
        needs, options = FEATURES[precision.needs], _code(precision.options)
        rows.append((f"`{name}`", precision.summary, needs, options, _default(precision)))
    return markdown(
        ("precision", "description", "the device must have", "options", "by default"), rows
    )


def _default(precision: Precision) -> str:
    if not precision.default:
        return "–"
    return "on GPUs" if precision.compute == "float16" else "yes"


def _code(words: Iterable[str]) -> str:
    return ", ".join(f"`{word}`" for word in words) or "–"


# Cards of the table of capabilities, with torch's names of their architectures.
CARDS = {
    "P100": "sm_60",
    "V100": "sm_70",
    "T4": "sm_75",
    "A100": "sm_80",
    "L4": "sm_89",
    "H100": "sm_90",
    "B200": "sm_100",
    "RTX 5090": "sm_120",
}


def capabilities() -> str:
    """Say which card does which precision."""
    header = ["precision"]
    for card, model in CARDS.items():
        header.append(f"{card} ({model})")
    rows = []
    for name, precision in PRECISIONS.items():
        row = [f"`{name}`"]
        for model in CARDS.values():
            row.append("yes" if nvidia.lacks(precision.needs, model) is None else "–")
        rows.append(row)
    return markdown(header, rows)


def techniques() -> str:
    """Describe every technique."""
    rows = [(f"`{entry.name}`", entry.summary) for entry in TECHNIQUES.values()]
    return markdown(("technique", "effect"), rows)


def suites() -> str:
    """Describe every suite that ships with ampmeter."""
    rows = []
    for name in suite_registry.names():
        suite = suite_registry.load(suite_registry.refer(name))
        rows.append((f"`{suite.name}`", suite.title))
    return markdown(("suite", "model and data"), rows)


def phases() -> str:
    """Describe every phase."""
    rows = []
    for phase in PHASES.values():
        on_several = "yes" if phase.joint else "no"
        rows.append((f"`{phase.name}`", phase.summary, phase.option, phase.key or "–", on_several))
    return markdown(
        ("phase", "measures", "selected by", "repeated over", "on several devices"), rows
    )


@cache
def descriptions(record: type) -> dict[str, str]:
    """Return the docstring of each field of a record and of the records that it extends."""
    documented = {}
    for base in record.__mro__[-2::-1]:  # all but object, which has none
        (node,) = ast.parse(textwrap.dedent(inspect.getsource(base))).body
        assert isinstance(node, ast.ClassDef)
        for field, after in pairwise(node.body):
            if isinstance(field, ast.AnnAssign) and isinstance(after, ast.Expr):
                text = ast.literal_eval(after.value)
                documented[ast.unparse(field.target)] = " ".join(text.split())
    return documented


def about(field: columns.Field) -> str:
    """Return the description of a column of a CSV."""
    assert field.record is not None
    return descriptions(field.record)[field.name]


def csv_columns(fields: Iterable[columns.Field]) -> str:
    """Describe columns of CSVs."""
    rows = [(f"`{field.name}`", field.values, about(field)) for field in fields]
    return markdown(("column", "values", "meaning"), rows)


def own_columns(*, stored: bool) -> str:
    """Describe the columns of each phase's own, stored or derived; one of several phases once."""
    phases_of: dict[tuple[str, str, str], list[str]] = {}
    for phase in PHASES.values():
        for field in columns.fields_of(phase.row) if phase.row is not None else ():
            if field.column.stored is stored:
                described = (f"`{field.name}`", field.values, about(field))
                phases_of.setdefault(described, []).append(phase.name)
    rows = [(", ".join(names), *described) for described, names in phases_of.items()]
    return markdown(("phase", "column", "values", "meaning"), rows)


# Describes changes by their form.
CHANGES = {
    "difference": "Change in {} from fp32.",
    "ratio": "The {}, divided by fp32's.",
    "speedup": "The speedup over fp32 in {}.",
    "share": "Share by which the {} is higher than fp32's.",
}
# Columns of summary.csv that no CSV of a run has and no metric declares.
SUMMARY = {
    "run": "The run, by the end of its folder's path.",
    "unfinished": "Whether its run is not finished.",
    "noise_ratio": "A/A noise: how far fp32 against itself was from 1; empty: not measured.",
    "speedup": "Times as fast as fp32: its step time divided by this one's.",
    "turns_speedup": (
        "Speedup in turns, where `speedup` is that of each precision alone (at the power limit)."
    ),
    "speed_verdict": "FASTER, SLOWER, SAME or INCONCLUSIVE.",
    "measured_in": "Processes that the speedup is over.",
    "accuracy_verdict": "Verdict on parity with fp32.",
    "accuracy_change_seeds": "Seeds that it rests on.",
    "diverged": "Seeds in which training diverged, and fp32's did not.",
    "fp32_diverged": "Seeds in which fp32's training diverged.",
    "seeds": "Seeds with which it was trained.",
    "accuracy_sd_points": "Standard deviation of the accuracy over seeds.",
    "perplexity": "e to the power of `test_loss_nats`.",
    "above_entropy": "`test_loss` less `entropy_nats`.",
    "stalled": "Losses, where it does not learn and fp32 does.",
    "other_types": "Products that ran in another type than the precision's.",
    "workload": "The recipe, as reports name it.",
    "where": "The device, as reports name it.",
    "label": "The same, shorter.",
    "fp32_strayed": "`other_types` of fp32.",
    "doubts": "Doubts about the figures, as words.",
}


def summary_columns() -> str:
    """Describe the columns of summary.csv that no CSV of a run has."""
    described = {name: ("", text) for name, text in ABOUT.items()}
    for metric in reversed(METRICS.values()):  # of a change that two have the first counts
        described[metric.figure] = ("%" if metric.unit == "points" else metric.unit, metric.about)
        unit, change = "", CHANGES[metric.shown_as]
        if metric.scale == "difference":
            unit, change = metric.unit, CHANGES["difference"]
        described[metric.change] = (unit, change.format(metric.label))
    for name, text in SUMMARY.items():
        described[name] = ("points" if name.endswith("_points") else "", text)
    names = [str(name) for name in load(ROOT / "results" / "resnet20-cpu-epyc").summary]
    rows = []
    for name in names:
        is_of_csv = name in TRIALS and TRIALS[name].record is not None
        if is_of_csv or name.endswith(("_low", "_high", "_status")) or name.startswith("lost_"):
            continue
        label = f"`{name}`"
        if f"{name}_low" in names:
            label += ", `_low`, `_high`"
        rows.append((label, *described[name]))
    return markdown(("column", "unit", "meaning"), rows)


def measured() -> str:
    """Return the table of ResNet-50 of the report of an H100."""
    report = (ROOT / "reports" / "h100-80gb-hbm3" / "report.md").read_text(encoding="utf-8")
    _, _, of_model = report.partition("**resnet50**\n\n")
    return of_model.partition("\n\n")[0]


TABLES: dict[str, Callable[[], str]] = {
    "measured": measured,
    "precisions": precisions,
    "capabilities": capabilities,
    "summary": summary_columns,
    "techniques": techniques,
    "suites": suites,
    "phases": phases,
    "first_columns": lambda: csv_columns(columns.fields_of(Identity)),
    "own_columns": lambda: own_columns(stored=True),
    "derived_columns": lambda: own_columns(stored=False),
    "last_columns": lambda: csv_columns(columns.fields_of(Ran)),
    **{file: partial(csv_columns, fields.values()) for file, fields in columns.COLUMNS.items()},
}


def markdown(header: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a table in markdown."""
    titles = list(header)
    lines = [titles, ["---"] * len(titles)]
    for row in rows:
        lines.append([cell.replace("|", "\\|") for cell in row])
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def update(text: str) -> str:
    """Return the text of a document with its generated parts as they are now."""
    return PART.sub(lambda part: f"{part[1]}{TABLES[part['name']]()}\n{part[3]}", text)


def main() -> int:
    """Update the documents, or check them; return the exit code."""
    is_check, outdated = "--check" in sys.argv[1:], []
    pages = [ROOT / "README.md", *sorted(ROOT.glob("docs/*.md")), ROOT / "results" / "README.md"]
    for page in pages:
        text = page.read_text()
        updated = update(text)
        if updated != text:
            outdated.append(str(page.relative_to(ROOT)))
            if not is_check:
                page.write_text(updated)
    if not outdated:
        return 0
    names = ", ".join(outdated)
    if is_check:
        print(f"Out of date: {names}. Run python docs/update.py.")
        return 1
    print(f"Updated: {names}.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
