"""A metric that a phase declares, with a field of its row, reaches every part of a report, and
``compare``.
"""

from dataclasses import dataclass, replace

import pytest

from bench.compare.comparison import compare
from bench.phases.memory import MemoryPeak
from bench.phases.speed import Speed
from bench.report import document
from bench.report.analysis.summary import summarise
from bench.report.figures.devices import charts
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


def declare(monkeypatch: pytest.MonkeyPatch, row: type, metric: Metric) -> None:
    """Let the metric's phase declare a row and a metric more, with all that the harness derives."""
    name = metric.phase
    phase = PHASES[name]
    phase = replace(phase, row=row, metrics=(*phase.metrics, metric))
    monkeypatch.setitem(PHASES, name, phase)
    monkeypatch.setitem(MEASURING, name, phase)
    monkeypatch.setitem(METRICS, metric.name, metric)
    monkeypatch.setitem(COLUMNS, phase.file, columns._columns()[phase.file])
    for column, field in trials._columns().items():
        monkeypatch.setitem(trials.TRIALS, column, field)


def test_a_metric_reaches_table_figure_and_json(tmp_path, monkeypatch):
    declare(monkeypatch, Speed, COMPILING)
    run = RunBuilder(tmp_path / "run").speed().folder

    def compiled(row: dict[str, str]) -> None:
        seconds = 8.0 if row["precision"] == "fp32" else 16.0
        off = int(row["replicate"]) / 100 - 0.01
        row["compile_s"] = repr(seconds * (1 + off))

    edit_rows(run, compiled, "speed.csv")
    page = text_of(write_report([run], tmp_path / "out", figures="none"))
    assert "compile time (s)" in page
    assert "compile time vs fp32 [95 % interval]" in page
    runs = load([run])
    captions = [chart.caption for _, chart in charts(summarise(runs.trials)) if chart is not None]
    assert "Compile time at batch size 128 on Test 1: mlp" in captions
    fp32, row = document.report(runs)["results"]
    assert (fp32["compiling_s"], fp32["compiling_ratio"]) == (8.0, None)
    assert (row["compiling_s"], row["compiling_ratio"]) == (16.0, pytest.approx(2.0))
    assert row["compiling_ratio_low"] < 2.0 < row["compiling_ratio_high"]


def test_a_field_of_a_phases_row_is_a_typed_column_of_its_csv_and_the_figure_of_its_metric(
    tmp_path, monkeypatch
):
    declare(monkeypatch, CopyingPeak, COPIED)
    run = RunBuilder(tmp_path / "run")
    for precision, copied in (("fp32", 4096.0), ("amp-bf16", 2048.0)):
        run.result("memory", precision, row=CopyingPeak(copied_bytes=copied))
    assert load([run.folder]).trials["copied_bytes"].tolist() == [4096.0, 2048.0]
    fp32, other = document.report(load([run.folder]))["results"]
    assert (fp32["copied_bytes"], fp32["copied_ratio"]) == (4096.0, None)
    assert (other["copied_bytes"], other["copied_ratio"]) == (2048.0, 0.5)
    edit_rows(run.folder, lambda row: row.update(copied_bytes="-1"))
    with pytest.raises(UsageError, match="copied_bytes cannot be '-1'"):
        load([run.folder])


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
    runs = []
    for name, off in (("old", 0.3), ("new", 0.6)):
        run = RunBuilder(tmp_path / name)
        for precision, mean in (("fp32", 4.0), ("amp-bf16", 4.0 + off)):
            figures = [{"RMSE": mean + 0.01 * seed**2} for seed in range(5)]
            run.train(precision, [None] * 5, test_loss=None, figures=figures, **described)
        runs.append(run)
    first, second = runs
    row = first.row()
    assert (row["accuracy_verdict"], row["quality"]) == (verdict, pytest.approx(4.36))
    assert row["quality_change"] == pytest.approx(0.3)
    page = text_of(write_report([first.folder], tmp_path / "out", figures="overview"))
    assert "RMSE (°C)" in page
    assert "RMSE less fp32" in page
    _fp32, other = compare(first.folder, second.folder).rows
    quality = other.changes["quality"]
    assert (quality.verdict, quality.metric.label) == (changed, "RMSE")
    first.train("fp32", [None], figures=[{"RMSE": 4.0}], **described | {"quality_margin": 9.0})
    assert first.row()["accuracy_verdict"] != verdict  # two margins, fixed by nobody
