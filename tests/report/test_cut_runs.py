"""Runs of which a file has lost rows: what is left of them is reported, compared and explained."""

import re
import shutil

import pandas as pd
import pytest

from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.compare.page import show_comparison
from bench.phases.explain.report import explain
from bench.report import document, render, report, terminal
from bench.report.reading.load import load
from bench.run.reporting import next_step
from bench.spec.errors import UsageError
from tests.golden.cases import MADE
from tests.report.fleet import begin

NOTHING_LEFT = (
    "has no finished trial yet, so there is nothing to report"
    "|There is nothing to explain"
    "|have no measured cell and precision in common"
    "|has ablations alone"
)
"""What may be said of a run of which too little is left."""
KEPT = (slice(0), slice(None, None, 2))
"""Rows that a file keeps: none, and every other."""


def reported(whole, left):
    out = left.with_name("report")
    assert terminal(report([left], out, figures="all"), out)
    assert document.dumps(document.report(load([left])))
    next_step(left)


def compared(whole, left):
    comparison = compare(whole, left, 0.05)
    assert document.dumps(of_comparison(comparison))
    show_comparison(comparison)


def explained(whole, left):
    assert render.in_words(explain([left]))


def slow(name):
    return pytest.param(name, marks=pytest.mark.slow)


@pytest.fixture(
    scope="module",
    params=[
        "script",
        slow("failures"),
        slow("ladder"),
        slow("explain"),
        slow("layers"),
    ],
)
def whole(request, tmp_path_factory):
    """A made-up run, of another day than what is left of it."""
    folder = tmp_path_factory.mktemp("runs")
    run = MADE[request.param](folder / request.param)
    begin(run, "2026-01-01")
    return run


@pytest.mark.parametrize(
    "file",
    [
        "speed.csv",
        slow("memory.csv"),
        slow("train.csv"),
        slow("blocks.csv"),
        slow("epochs.csv"),
        slow("explain.csv"),
        slow("explain_figures.csv"),
        slow("layers.csv"),
    ],
)
def test_what_is_left_of_a_run_whose_file_lost_rows_is_reported(file, whole, tmp_path, monkeypatch):
    # Drawing takes most of the time.
    monkeypatch.setattr("bench.report.figures.draw.draw", lambda _chart, _out: "")
    if not (whole / file).is_file():
        pytest.skip("such a run has no such file")
    rows = pd.read_csv(whole / file, dtype=str, keep_default_na=False)
    for place, kept in enumerate(KEPT):
        left = tmp_path / str(place) / "left"
        shutil.copytree(whole, left)
        begin(left, "2026-03-03")
        rows[kept].to_csv(left / file, index=False, lineterminator="\n")
        for ask in (reported, compared, explained):
            try:
                ask(whole, left)
            except UsageError as error:
                if not re.search(NOTHING_LEFT, str(error)):
                    raise
