"""The report of the layers phase: the verdict, the tables and the figure of the modules."""

import math

import pytest

from bench.phases.layers import Layers
from bench.phases.layers.report import kept_names, tables
from bench.report.page import compose
from bench.report.reading.load import load
from bench.results.records import Numeric, TrialResult
from tests.report.builders import RunBuilder, material_of
from tests.report.fleet import edit_rows

KEPT = "amp-bf16:keep=blocks.*.norm"
DETAIL = (
    f"keep blocks.*.norm in fp32, as in --precisions '{KEPT}': gradients differ by 3 % then, by 80 "
    "% without"
)


@pytest.fixture
def run(tmp_path):
    """A run that searched one precision: an infinite module, a bad one, and more healthy ones than
    tables list.
    """
    builder = RunBuilder(tmp_path / "searched")
    trial = builder.trial("layers", ["amp-bf16"], 128)
    modules = {"blocks.0.norm": (0.9, 0.7), "blocks.1.norm": (math.inf, 1.0)} | {
        f"f{n}": (0.01, 0.0) for n in range(20)
    }
    figures = [
        ("concentrated", 1.0, ""),
        ("error", 0.8, ""),
        ("kept", 0.03, ""),
        ("limit", 0.125, ""),
    ]
    figures += [("keep", 1.0, "blocks.*.norm")]
    for module, (error, share) in modules.items():
        figures += [("error", error, module), ("share", share, module)]
    records = [
        Numeric(
            trial=trial.id,
            precision="amp-bf16",
            kind="module",
            step=0,
            layer=layer,
            name=figure,
            value=value,
        )
        for figure, value, layer in figures
    ]
    result = TrialResult(
        precision="amp-bf16", status="ok", detail=DETAIL, row=Layers(gradient_error=0.8)
    )
    builder.add(trial, result, records=records)
    return load([builder.folder])


def test_tables_have_the_answer_and_the_worst_modules_first(run):
    answers, modules = tables(material_of(run))
    (row,) = (dict(zip(answers.headers, row, strict=True)) for row in answers.rows)
    assert (row["which modules need fp32"], row["keep"]) == ("these", "blocks.*.norm")
    assert (row["error of the gradients (%)"], row["with these kept (%)"], row["limit (%)"]) == (
        "80",
        "3.0",
        "12",
    )
    first, second, *rest = (dict(zip(modules.headers, row, strict=True)) for row in modules.rows)
    assert (first["module"], first["error (%)"], second["module"]) == (
        "blocks.1.norm",
        "inf",
        "blocks.0.norm",
    )
    assert [second[name] for name in ("error (%)", "share (%)")] == ["90", "70"]
    assert len(rest) == 10
    assert kept_names(run.details["layers_figures"]) == {KEPT: "amp-bf16"}
    diffuse = run.details["layers_figures"].assign(
        name=run.details["layers_figures"]["name"].replace("concentrated", "diffuse")
    )
    assert kept_names(diffuse) == {}  # what was found is no advice


@pytest.mark.parametrize("status", ["failed", "unsupported"])
def test_modules_that_a_search_had_named_before_it_stopped_are_no_advice(run, status):
    folder = run.runs[0].folder
    edit_rows(folder, lambda row: row.update(status=status))
    assert kept_names(load([folder]).details["layers_figures"]) == {}


def test_the_report_leads_with_the_modules_and_asks_for_no_verdict_on_speed(run, tmp_path):
    report = compose(run, tmp_path, figures="none")
    assert (report.lead, report.grid.groups) == ([], {})
    (verdict,) = report.sentences
    assert f"--precisions '{KEPT}' — gradients differ by 3 % then" in verdict


def test_a_report_of_both_runs_has_the_speed_with_and_without_the_modules(run, tmp_path):
    timed = (
        RunBuilder(tmp_path / "timed")
        .speed("amp-bf16", (2.0, 2.0, 2.0))
        .speed(KEPT, (1.5, 1.5, 1.5))
    )
    report = compose(load([run.runs[0].folder, timed.folder]), tmp_path, figures="none")
    assert report.sentences
    (timings,) = report.architectures
    speedups = {}
    for row in timings.rows:
        cells = dict(zip(timings.headers, row, strict=True))
        speedups[cells["precision"]] = cells["speedup [95 % interval]"][:3]
    assert (speedups["amp-bf16"], speedups[KEPT]) == ("2.0", "1.5")
