"""The report of the layers phase: the verdict, the tables and the figure of the modules."""

import math

import pytest

from bench.phases.layers import Layers
from bench.phases.layers.report import kept_names, tables
from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.tables.table import material_of
from bench.results.records import Numeric, TrialResult
from tests.report.builders import RunBuilder
from tests.report.fleet import edit_rows
from tests.report.tables.lines import lines

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
    modules = {"blocks.0.norm": (0.9, 0.7), "blocks.1.norm": (math.inf, 1.0)}
    modules |= {f"f{n}": (0.01, 0.0) for n in range(20)}
    records = []

    def add(name, value, layer=""):
        of_arm = {"trial": trial.id, "precision": "amp-bf16", "kind": "module", "step": 0}
        records.append(Numeric(**of_arm, layer=layer, name=name, value=value))

    for name, value in (("concentrated", 1.0), ("error", 0.8), ("kept", 0.03), ("limit", 0.125)):
        add(name, value)
    add("keep", 1.0, "blocks.*.norm")
    for module, (error, share) in modules.items():
        add("error", error, module)
        add("share", share, module)
    result = TrialResult(arm="amp-bf16", status="ok", detail=DETAIL, row=Layers(gradient_error=0.8))
    builder.add(trial, result, records=records)
    return load([builder.folder])


def test_tables_have_the_answer_and_the_worst_modules_first(run):
    answers, modules = tables(material_of(run))
    (row,) = lines(answers)
    assert (row["which modules need fp32"], row["keep"]) == ("these", "blocks.*.norm")
    headers = ("error of the gradients (%)", "with these kept (%)", "limit (%)")
    assert [row[header] for header in headers] == ["80", "3.0", "12"]
    assert [row[3:] for row in modules.rows[:2]] == [
        ["blocks.1.norm", "inf", "100"],
        ["blocks.0.norm", "90", "70"],
    ]
    assert len(modules.rows) == 12
    found = run.details["layers_figures"]
    assert kept_names(found) == {KEPT: "amp-bf16"}
    diffuse = found.assign(name=found["name"].replace("concentrated", "diffuse"))
    assert kept_names(diffuse) == {}  # what was found is no advice


@pytest.mark.parametrize("status", ["failed", "unsupported"])
def test_modules_that_a_search_had_named_before_it_stopped_are_no_advice(run, status):
    folder = run.runs[0].folder
    edit_rows(folder, lambda row: row.update(status=status))
    assert kept_names(load([folder]).details["layers_figures"]) == {}


def test_the_report_leads_with_the_modules_and_asks_for_no_verdict_on_speed(run, tmp_path):
    report = compose(material_of(run))
    assert (report.lead, report.grid.groups) == ([], {})
    (verdict,) = report.sentences
    assert f"--precisions '{KEPT}' — gradients differ by 3 % then" in verdict


def test_a_report_of_both_runs_has_the_speed_with_and_without_the_modules(run, tmp_path):
    timed = (
        RunBuilder(tmp_path / "timed")
        .speed("amp-bf16", (2.0, 2.0, 2.0))
        .speed(KEPT, (1.5, 1.5, 1.5))
    )
    report = compose(material_of(load([run.runs[0].folder, timed.folder])))
    assert report.sentences
    (timings,) = report.by_workload
    speedups = {row["precision"]: row["speedup [95 % interval]"][:3] for row in lines(timings)}
    assert (speedups["amp-bf16"], speedups[KEPT]) == ("2.0", "1.5")
