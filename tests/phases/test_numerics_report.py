"""The report of the numerics phase: formats, shares, errors and plots of figures that are known."""

import math
from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from bench.phases.numerics.report import charts, last_steps, numerics
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.figures.chart import Bar, Line, Rule
from bench.report.format import error
from bench.report.reading.load import load
from bench.results.records import Numeric, TrialResult
from tests.report.builders import RunBuilder, material_of
from tests.report.tables.lines import lines


def figures(trial, precision, *, scale=None, losses=(2.0, 1.5, 1.0), zero=0.0, skipped=()):
    def row(kind, step, name, value, layer=""):
        return Numeric(
            trial=trial, precision=precision, kind=kind, step=step, layer=layer, name=name, value=float(value)
        )

    rows = []
    for step, loss in enumerate(losses):
        rows += [row("step", step, "loss", loss), row("step", step, "skipped", step in skipped)]
        rows += [row("step", step, "finite", math.isfinite(loss))]
        rows += [row("step", step, "loss_scale", scale)] if scale else []
    for step in (0, len(losses) - 1):
        rows += [
            row("gradient", step, "zero", zero),
            row("gradient", step, "-20", 75),
            row("gradient", step, "-30", 25),
            *(row("gradient", step, "-10", 3, layer) for layer in ("fc", "conv1")),
            row("gradient", step, "zero", 1, "conv1"),
        ]
        rows += [row("error", step, "loss", 1e-4), row("error", step, "gradient", 0.01)]
        rows += [row("error", step, "gradient", 0.02, "fc"), row("error", step, "gradient", 0.005, "conv1")]
    return [*rows, row("activation", 1, "largest", 655.04, "fc"), row("activation", 0, "largest", 3, "conv1")]


def steps_of(run):
    return run.details["numerics_figures"]


@pytest.fixture
def run(tmp_path):
    builder = RunBuilder(tmp_path / "run")
    for name, more in (
        ("fp32", {}),
        ("amp-fp16", {"scale": 1024.0, "zero": 100.0, "skipped": (1,)}),
        ("fp16", {"losses": (2.0, math.nan)}),
    ):
        trial = builder.trial("numerics", [name], 128)
        lost = name == "fp16"
        detail = "the loss became nan at step 1" if lost else ""
        builder.add(trial, TrialResult(precision=name, status="nonfinite" if lost else "ok", detail=detail))
        builder.append(*figures(trial.id, name, **more))
    return load([builder.folder])


def test_tables_hold_the_figures_of_each_precision_in_order(run):
    first, gradients, errors, types = numerics(steps_of(run).assign(where="GPU"))
    assert types is None
    assert [row[2:7] for row in first.rows] == [
        ["fp32", "3", "–", "2.000", "1.000"],
        ["amp-fp16", "3", "1", "2.000", "1.000"],
        ["fp16", "2", "–", "2.000", "not finite"],
    ]
    assert first.headers[3:7] == ["steps", "skipped", "first loss", "last loss"]
    assert first.rows[1][7:] == ["1,024", "655.0 (fc)", "1.0"]
    assert [row[3:] for row in gradients.rows] == [
        ["parameters", "0.00", "25.0", "75.0", "0.00 % (fc)", "65,536", "25.0", "0.00"],
        ["parameters", "50.0", "12.5", "37.5", "0.00 % (fc)", "1,024", "12.5", "0.00"],
        ["parameters", "0.00", "25.0", "75.0", "0.00 % (fc)", "65,536", "25.0", "0.00"],
    ]
    assert errors.rows[0][3:] == ["1.0e−4", "0.01", "1.0e−4", "0.01", "0.02 (fc)"]
    assert [error(value) for value in (1.5e-7, 0.069, 1.0, math.nan)] == ["1.5e−7", "0.069", "1", "–"]


@pytest.mark.parametrize(
    ("lost", "table", "row"),
    [
        ({"kind": "step"}, 0, ["–", "–", "–", "–", "–", "655.0 (fc)"]),
        ({"kind": "gradient", "layer": ""}, 1, ["parameters", "–", "–", "–", "0.00 % (fc)", "65,536", "–", "–"]),
        ({"kind": "gradient", "step": 2, "layer": "fc"}, 1, ["parameters", "0.00", "25.0", "75.0", "0.00 % (conv1)"]),
        ({"kind": "error", "step": 0}, 2, ["–", "–", "1.0e−4", "0.01", "0.02 (fc)"]),
    ],
)
def test_of_a_file_that_lost_rows_the_rest_is_shown_for_what_it_is(run, lost, table, row):
    rows = steps_of(run).assign(where="GPU")
    is_lost = (rows["precision"] == "fp32") & (rows[[*lost]] == pd.Series(lost)).all(axis=1)
    (line,) = (line for line in numerics(rows[~is_lost])[table].rows if line[2] == "fp32")
    assert line[3 : 3 + len(row)] == row


def test_the_outputs_error_is_shown_as_a_ratio_of_signal_to_noise(run):
    outputs = steps_of(run)[(steps_of(run)["kind"] == "error") & (steps_of(run)["layer"] == "")].assign(name="output")
    rows = pd.concat([steps_of(run), outputs.assign(value=0.05)]).assign(where="GPU")
    *_, errors, _ = numerics(rows.drop_duplicates(["precision", "kind", "step", "layer", "name"]))
    assert [row[-2:] for row in errors.rows] == [["26.0", "26.0"]] * 3
    assert "SQNR" in errors.about


def test_the_last_five_steps_are_taken_together_and_a_failed_one_alone(run):
    steps = steps_of(run)[steps_of(run)["kind"] == "gradient"].iloc[:1]
    frame = steps.loc[steps.index.repeat(7)].assign(step=[0.0, 30.0, 55.0, 56.0, 57.0, 58.0, 59.0])
    assert list(last_steps(frame)["step"]) == [55.0, 56.0, 57.0, 58.0, 59.0]
    assert list(last_steps(frame.iloc[:2].assign(step=[0.0, 1.0]))["step"]) == [1.0]


def test_a_histogram_has_every_share_where_its_power_of_two_is_and_float16s_limits(run):
    ((_, chart),) = charts(material_of(run))
    first, _ = chart.panels
    drawn = [mark for mark in first.marks if isinstance(mark, Line) and mark.tint == "amp-fp16"]
    line, zeros = ({x: y for x, y in mark.points if y > 0} for mark in drawn)
    assert line == {-29.5: pytest.approx(12.5), -19.5: pytest.approx(37.5)}
    assert list(zeros.values()) == [pytest.approx(50.0)]
    assert [mark.x[1] for mark in first.marks if isinstance(mark, Bar)] == [-25, -14]
    assert [mark.at for mark in first.marks if isinstance(mark, Rule)] == [-25 - 10]  # at its scale of 1024


def test_gradients_of_outputs_have_a_table_and_a_figure(run):
    counts = {"zero": 60, "-30": 30, "-20": 8, "1": 2}
    of_fp16 = steps_of(run)[(steps_of(run)["precision"] == "amp-fp16") & (steps_of(run)["name"] == "loss")].iloc[:1]
    bins = [of_fp16.assign(kind="output_gradient", name=name, value=float(count)) for name, count in counts.items()]
    frame = pd.concat([steps_of(run), *bins, bins[1].assign(layer="fc"), bins[0].assign(layer="conv1")])
    _, gradients, *_ = numerics(frame.assign(where="GPU"))
    of_outputs = ["GPU", "128", "amp-fp16", "layers' outputs"]
    assert gradients.rows[3:] == [[*of_outputs, "60.0", "30.0", "8.00", "100 % (fc)", "1,024", "30.0", "0.00"]]
    assert "mlp-nvidia-test-1-b128-output-gradients" in {
        chart.name for _, chart in charts(material_of(replace(run, details={**run.details, "numerics_figures": frame})))
    }


@pytest.mark.parametrize("scale", [1.0, 2.0**10, 2.0**24])
def test_what_float16_loses_is_what_numpys_casting_loses(run, scale):
    chance = np.random.default_rng(0)
    values = np.exp2(chance.uniform(-45, 14, 4000)).astype(np.float32)
    with np.errstate(over="ignore"):
        plain, scaled = ((values * np.float32(by)).astype(np.float16) for by in (1.0, scale))
    names, counts = np.unique(np.floor(np.log2(values)).astype(int).astype(str), return_counts=True)
    steps = steps_of(run)[(steps_of(run)["precision"] == "amp-fp16") & (steps_of(run)["kind"] == "step")]
    steps = steps.assign(value=steps["value"].mask(steps["name"] == "loss_scale", scale))
    last = steps.iloc[-1:].assign(kind="gradient")
    bins = [last.assign(name=name, value=float(count)) for name, count in zip(names, counts, strict=True)]
    (line,) = lines(numerics(pd.concat([steps, *bins]).assign(where="GPU"))[1])
    lost, subnormal = plain == 0, (plain > 0) & (plain < 2.0**-14)
    expected = [lost, subnormal, lost & (scaled > 0), np.isinf(scaled)]
    headers = ["in fp16: zero (%)", "subnormal (%)", "S brings into range (%)", "overflow at S (%)"]
    assert [float(line[each]) for each in headers] == pytest.approx([100 * part.mean() for part in expected], abs=0.1)


def test_where_only_numerics_were_looked_at_there_is_no_answer(run):
    assert answers(summarise(run.trials)) == []
