"""The report of the numerics phase: shares, errors and plots of figures that are known."""

import math

import numpy as np
import pandas as pd
import pytest

from bench.phases.numerics.report import charts, numerics
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.figures.chart import Bar, Curve, Rule
from bench.report.reading.load import KEY, load
from bench.report.tables.table import material_of
from bench.results.records import TrialResult
from tests.report.builders import RunBuilder, numeric
from tests.report.tables.lines import lines

PLAIN = {
    "step loss": [2.0, 1.5, 1.0],
    "step lost_updates": [0.5, 0.25, 1.0],
    "gradient zero": [9.0, 0.0],
    "gradient -20": [5.0, 75.0],
    "gradient -30": [1.0, 25.0],
    "error loss": [1e-3, 1e-4],
    "error gradient": [0.01, 0.03],
    "error output": [0.1, 0.05],
    "activation largest conv1": [3.0],
    "activation largest fc": [1.0, 655.04],
}
SCALED = {
    **PLAIN,
    "step loss_scale": [2048.0, 2048.0, 1024.0],
    "step skipped": [0.0, 1.0, 0.0],
    "gradient zero": [9.0, 100.0],
}
FIGURES = {
    "fp32": PLAIN,
    "amp-fp16": SCALED,
    "fp16": PLAIN | {"step loss": [2.0, math.nan]},
}
"""By precision, the kind, name and layer of a figure, and step."""


def load_run(folder, by_precision):
    builder = RunBuilder(folder)
    for precision, figures in by_precision.items():
        trial = builder.trial("numerics", [precision], 128)
        builder.add(trial, TrialResult(arm=precision, status="ok"))
        for key, values in figures.items():
            kind, name, *layer = key.split()
            of_figure = {"kind": kind, "name": name, "layer": "".join(layer)}
            for step, value in enumerate(values):
                builder.append(numeric(trial.id, precision, **of_figure, step=step, value=value))
    return load([folder])


def test_tables_hold_the_figures_of_each_precision_in_order(tmp_path):
    rows = load_run(tmp_path, FIGURES).details["numerics_figures"]
    steps, gradients = numerics(rows.assign(where="GPU"))
    assert steps.headers[3:7] == ["steps", "skipped", "first loss", "last loss"]
    assert [row[2:7] for row in steps.rows] == [
        ["fp32", "3", "–", "2.000", "1.000"],
        ["amp-fp16", "3", "1", "2.000", "1.000"],
        ["fp16", "2", "–", "2.000", "not finite"],
    ]
    assert steps.rows[1][7:] == [
        "1,024",
        "25",
        "655.0 (fc)",
        "1.0",
        "1.0e−4",
        "0.01",
        "0.03",
        "26.0",
    ]
    assert [row[3:] for row in gradients.rows] == [
        ["parameters", "0.00", "25.0", "75.0", "65,536", "25.0", "0.00"],
        ["parameters", "50.0", "12.5", "37.5", "1,024", "12.5", "0.00"],
        ["parameters", "0.00", "25.0", "75.0", "65,536", "25.0", "0.00"],
    ]


def of_class(kind, panel):
    return [mark for mark in panel.marks if isinstance(mark, kind)]


def histogram(run):
    """Return the panel, and the points of amp-fp16: its line's, and its zeros."""
    ((_, chart),) = charts(material_of(run))
    (panel,) = chart.panels
    points = []
    for mark in of_class(Curve, panel):
        if mark.tint == "amp-fp16":
            points.append([(x, y) for x, y in mark.points if y > 0])
    return panel, *points


def test_a_histogram_has_every_share_where_its_power_of_two_is_and_float16s_limits(tmp_path):
    panel, line, zeros = histogram(load_run(tmp_path, FIGURES))
    assert line == [(-29.5, pytest.approx(12.5)), (-19.5, pytest.approx(37.5))]
    (zero,) = zeros
    assert zero[1] == pytest.approx(50.0)
    lost, coarse = of_class(Bar, panel)
    assert lost.x[1] == -25
    assert coarse.x == (-25, -14)
    (rule,) = of_class(Rule, panel)
    assert rule.at == -25 - 16  # at fp32's scale, GradScaler's first


def test_gradients_that_are_all_zero_have_a_histogram_of_zeros_alone(tmp_path):
    figures = {"amp-fp16": {"gradient zero": [100.0]}}
    _, line, zeros = histogram(load_run(tmp_path, figures))
    assert line == []
    (zero,) = zeros
    assert zero[1] == pytest.approx(100.0)


@pytest.mark.parametrize(
    ("scale", "kind", "of"),
    [
        (1.0, "gradient", "parameters"),
        (2.0**10, "gradient", "parameters"),
        (2.0**24, "output_gradient", "layers' outputs"),
    ],
)
def test_what_float16_loses_is_what_numpys_casting_loses(scale, kind, of):
    chance = np.random.default_rng(0)
    exponents = chance.uniform(-45, 14, 4000)
    values = np.exp2(exponents).astype(np.float32)
    powers = np.floor(np.log2(values)).astype(int)
    counts = pd.Series(powers.astype(str)).value_counts()
    rows = pd.DataFrame({"kind": kind, "name": counts.index, "value": counts})
    rows.loc["scale"] = ["step", "loss_scale", scale]
    cell = dict.fromkeys((*KEY, "where"), "")
    cell["batch_size"] = 4.0
    _, gradients = numerics(rows.assign(**cell, step=0))
    (line,) = lines(gradients)
    assert line["gradients of"] == of
    plain = values.astype(np.float16)
    multiplied = values * np.float32(scale)
    with np.errstate(over="ignore"):
        scaled = multiplied.astype(np.float16)
    lost = plain == 0
    expected = {
        "in fp16: zero (%)": lost,
        "subnormal (%)": (plain > 0) & (plain < 2.0**-14),
        "S brings into range (%)": lost & (scaled > 0),
        "overflow at S (%)": np.isinf(scaled),
    }
    for header, part in expected.items():
        shown = float(line[header])
        assert shown == pytest.approx(100 * part.mean(), abs=0.1)


def test_where_only_numerics_were_looked_at_there_is_no_answer(tmp_path):
    run = load_run(tmp_path, {"fp32": PLAIN})
    assert answers(summarise(run.trials)) == []
