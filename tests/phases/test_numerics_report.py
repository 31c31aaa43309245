"""The report of the numerics phase: shares, errors and plots of figures that are known."""

import math

import numpy as np
import pandas as pd
import pytest

from bench.phases.numerics.report import charts, numerics
from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.figures.chart import Bar, Curve, Rule
from bench.report.reading.load import load
from bench.report.tables.table import material_of
from bench.results.records import Numeric, TrialResult
from tests.report.builders import RunBuilder
from tests.report.tables.lines import lines


def figures(trial, precision, *, scale=None, losses=(2.0, 1.5, 1.0), zero=0.0, skipped=()):
    """Return the figures of a training, in the first and the last step gradients and errors."""
    rows = []

    def add(kind, step, name, value, layer=""):
        row = Numeric(
            trial=trial,
            precision=precision,
            kind=kind,
            step=step,
            layer=layer,
            name=name,
            value=float(value),
        )
        rows.append(row)

    for step, loss in enumerate(losses):
        add("step", step, "loss", loss)
        add("step", step, "skipped", step in skipped)
        if scale:
            add("step", step, "loss_scale", scale)
    for step in (0, len(losses) - 1):
        add("gradient", step, "zero", zero)
        add("gradient", step, "-20", 75)
        add("gradient", step, "-30", 25)
        add("error", step, "loss", 1e-4)
        add("error", step, "gradient", 0.01 * (step + 1))
        add("error", step, "output", 0.05)
    add("activation", 1, "largest", 655.04, "fc")
    add("activation", 0, "largest", 3, "conv1")
    return rows


def steps_of(run):
    return run.details["numerics_figures"].assign(where="GPU")


@pytest.fixture
def run(tmp_path):
    builder = RunBuilder(tmp_path / "run")

    def add(name, status="ok", **more):
        trial = builder.trial("numerics", [name], 128)
        builder.add(trial, TrialResult(arm=name, status=status))
        builder.append(*figures(trial.id, name, **more))

    add("fp32")
    add("amp-fp16", scale=1024.0, zero=100.0, skipped=(1,))
    add("fp16", "nonfinite", losses=(2.0, math.nan))
    return load([builder.folder])


def test_tables_hold_the_figures_of_each_precision_in_order(run):
    steps, gradients = numerics(steps_of(run))
    assert steps.headers[3:7] == ["steps", "skipped", "first loss", "last loss"]
    assert [row[2:7] for row in steps.rows] == [
        ["fp32", "3", "–", "2.000", "1.000"],
        ["amp-fp16", "3", "1", "2.000", "1.000"],
        ["fp16", "2", "–", "2.000", "not finite"],
    ]
    assert steps.rows[1][7:] == ["1,024", "655.0 (fc)", "1.0", "1.0e−4", "0.01", "0.03", "26.0"]
    assert [row[3:] for row in gradients.rows] == [
        ["parameters", "0.00", "25.0", "75.0", "65,536", "25.0", "0.00"],
        ["parameters", "50.0", "12.5", "37.5", "1,024", "12.5", "0.00"],
        ["parameters", "0.00", "25.0", "75.0", "65,536", "25.0", "0.00"],
    ]


def histogram(run):
    """Return the panel, and the points of amp-fp16 that are drawn: its line's, and its zeros."""
    ((_, chart),) = charts(material_of(run))
    (panel,) = chart.panels
    points = []
    for mark in panel.marks:
        if isinstance(mark, Curve) and mark.tint == "amp-fp16":
            points.append([(x, y) for x, y in mark.points if y > 0])
    return panel, *points


def test_a_histogram_has_every_share_where_its_power_of_two_is_and_float16s_limits(run):
    panel, line, zeros = histogram(run)
    assert line == [(-29.5, pytest.approx(12.5)), (-19.5, pytest.approx(37.5))]
    assert [share for _, share in zeros] == [pytest.approx(50.0)]
    shaded = [mark.x for mark in panel.marks if isinstance(mark, Bar)]
    assert [end for _, end in shaded] == [-25, -14]
    # At fp32's scale, GradScaler's first.
    (rule,) = [mark for mark in panel.marks if isinstance(mark, Rule)]
    assert rule.at == -25 - 16


def test_gradients_that_are_all_zero_have_a_histogram_of_zeros_alone(run):
    rows = run.details["numerics_figures"]
    is_power = (rows["kind"] == "gradient") & (rows["name"] != "zero")
    run.details["numerics_figures"] = rows[~is_power]
    _, line, zeros = histogram(run)
    assert line == []
    assert [share for _, share in zeros] == [pytest.approx(100.0)]


@pytest.mark.parametrize(
    ("scale", "kind", "of"),
    [
        (1.0, "gradient", "parameters"),
        (2.0**10, "gradient", "parameters"),
        (2.0**24, "output_gradient", "layers' outputs"),
    ],
)
def test_what_float16_loses_is_what_numpys_casting_loses(run, scale, kind, of):
    chance = np.random.default_rng(0)
    values = np.exp2(chance.uniform(-45, 14, 4000)).astype(np.float32)
    plain = values.astype(np.float16)
    with np.errstate(over="ignore"):
        scaled = (values * np.float32(scale)).astype(np.float16)
    powers = np.floor(np.log2(values)).astype(int)
    names, counts = np.unique(powers.astype(str), return_counts=True)
    rows = steps_of(run)
    is_scale = (rows["precision"] == "amp-fp16") & (rows["name"] == "loss_scale")
    steps = rows[is_scale].assign(value=scale)
    bins = steps.iloc[[-1] * len(names)].assign(kind=kind, name=names, value=counts.astype(float))
    _, gradients = numerics(pd.concat([steps, bins]))
    (line,) = lines(gradients)
    lost = plain == 0
    expected = {
        "in fp16: zero (%)": lost,
        "subnormal (%)": (plain > 0) & (plain < 2.0**-14),
        "S brings into range (%)": lost & (scaled > 0),
        "overflow at S (%)": np.isinf(scaled),
    }
    for header, part in expected.items():
        assert float(line[header]) == pytest.approx(100 * part.mean(), abs=0.1)
    assert line["gradients of"] == of


def test_where_only_numerics_were_looked_at_there_is_no_answer(run):
    assert answers(summarise(run.trials)) == []
