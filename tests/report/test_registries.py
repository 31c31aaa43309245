"""A metric that a phase declares, with a field of its row, reaches every part of a report, and
``compare``.
"""

from dataclasses import dataclass, replace

import pytest

from bench.compare.comparison import compare
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.report import document
from bench.report.reading import trials
from bench.report.reading.load import load
from bench.results import columns
from bench.results.columns import COLUMNS
from bench.spec.errors import UsageError
from bench.spec.metric import Metric
from bench.spec.metrics import METRICS
from bench.spec.phases import MEASURING, PHASES
from tests.report.builders import RunBuilder, text_of, write_report
from tests.rows import edit_rows

COMPILING = Metric(
    name="compiling",
    phase="speed",
    label="compile time",
    unit="s",
    about="What torch.compile took.",
    columns=("compile_s",),
    figure="compiling_s",
)
COPIED = Metric(
    name="copied",
    phase="memory",
    label="bytes copied to the device",
    unit="bytes",
    about="Bytes of a step's batch that are copied to the device.",
    columns=("copied_bytes",),
    replicate="once",
    fewest=1,
)


@dataclass(frozen=True, kw_only=True, slots=True)
class CopyingPeak(MemoryPeak):
    """The row of the memory phase with a figure more."""

    copied_bytes: float | None = None
    """Bytes that a step copies."""


def declare(monkeypatch, row, metric):
    """Let the metric's phase declare a row and a metric more, with all that the harness derives."""
    name = metric.phase
    metrics = (*PHASES[name].metrics, metric)
    phase = replace(PHASES[name], row=row, metrics=metrics)
    monkeypatch.setitem(PHASES, name, phase)
    monkeypatch.setitem(MEASURING, name, phase)
    monkeypatch.setitem(METRICS, metric.name, metric)
    of_files = columns._columns()
    monkeypatch.setitem(COLUMNS, phase.file, of_files[phase.file])
    for column, field in trials._columns().items():
        monkeypatch.setitem(trials.TRIALS, column, field)


def test_a_metric_reaches_table_figure_and_json(tmp_path, monkeypatch):
    declare(monkeypatch, Speed, COMPILING)
    run = RunBuilder(tmp_path / "run").speed().folder

    def compiled(row):
        off = 0.01 * int(row["replicate"])
        seconds = 8.0 if row["precision"] == "fp32" else 16.0
        row["compile_s"] = str(seconds + off)

    edit_rows(run, compiled, "speed.csv")
    page = write_report([run], tmp_path / "out", figures="all")
    text = text_of(page)
    assert "compile time (s)" in text
    assert "compile time vs fp32 [95 % interval]" in text
    assert "Compile time at batch size 128 on Test 1: mlp" in text
    results = document.report(load([run]))["results"]
    fp32, other = results
    assert fp32["compiling_s"] == pytest.approx(8.01)
    assert fp32["compiling_ratio"] is None
    assert other["compiling_s"] == pytest.approx(16.01)
    assert other["compiling_ratio"] == pytest.approx(2.0, rel=1e-3)
    assert other["compiling_ratio_low"] < 2.0 < other["compiling_ratio_high"]


def test_a_field_of_a_phases_row_is_a_typed_column_of_its_csv_and_the_figure_of_its_metric(
    tmp_path, monkeypatch
):
    declare(monkeypatch, CopyingPeak, COPIED)
    run = RunBuilder(tmp_path / "run")
    run.result("memory", "fp32", row=CopyingPeak(copied_bytes=4096.0))
    run.result("memory", "amp-bf16", row=CopyingPeak(copied_bytes=2048.0))
    runs = load([run.folder])
    fp32, other = document.report(runs)["results"]
    assert fp32["copied_bytes"] == 4096.0
    assert fp32["copied_ratio"] is None
    assert other["copied_bytes"] == 2048.0
    assert other["copied_ratio"] == 0.5
    edit_rows(run.folder, lambda row: row.update(copied_bytes="-1"))
    with pytest.raises(UsageError, match="copied_bytes cannot be '-1'"):
        load([run.folder])


def learned(run, precision, mean, described):
    """Add a training for each of five seeds, near a figure of merit."""
    figures = []
    for off in (0.0, 0.01, 0.04, 0.09, 0.16):
        figures.append({"RMSE": mean + off})
    run.train(precision, [None] * 5, test_loss=None, figures=figures, **described)


@pytest.mark.parametrize(
    ("better", "margin", "verdict", "changed"),
    [
        ("less", 0.5, "EQUIVALENT", "SAME"),
        pytest.param("less", 0.1, "WORSE", "REGRESSED", marks=pytest.mark.slow),
        pytest.param("more", 0.1, "NON-INFERIOR", "IMPROVED", marks=pytest.mark.slow),
    ],
)
def test_a_suites_own_figure_of_merit_is_judged_and_shown_as_the_suite_describes_it(
    better, margin, verdict, changed, *, tmp_path
):
    described = {
        "quality_name": "RMSE",
        "quality_unit": "°C",
        "quality_better": better,
        "quality_margin": margin,
    }
    old = RunBuilder(tmp_path / "old")
    new = RunBuilder(tmp_path / "new")
    for run, mean in ((old, 4.3), (new, 4.6)):
        learned(run, "fp32", 4.0, described)
        learned(run, "amp-bf16", mean, described)
    row = old.row()
    assert row["accuracy_verdict"] == verdict
    assert row["quality"] == pytest.approx(4.36)
    assert row["quality_change"] == pytest.approx(0.3)
    page = write_report([old.folder], tmp_path / "out", figures="overview")
    assert "RMSE (°C)" in text_of(page)
    _, other = compare(old.folder, new.folder).rows
    assert other.changes["quality"].verdict == changed
    assert other.changes["quality"].metric.label == "RMSE"
    described["quality_margin"] = 9.0  # two margins, fixed by nobody
    old.train("fp32", [None], figures=[{"RMSE": 4.0}], **described)
    assert old.row()["accuracy_verdict"] != verdict
