"""Runs whose phases stopped after any row, and whose files lost any rows: what is left of them is reported."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.compare.page import comparison_page, show_comparison
from bench.phases.explain.report import explain
from bench.report import document, render, report, terminal
from bench.report.reading.load import load
from bench.run.reporting import next_step
from bench.spec.errors import UsageError
from tests.report.cutting import begin, cut, runs_of_every_phase

QUICK, ALL = 20, 300
DRAWN = 15
"""Of so many cases one has its figures drawn, and not only described."""
NOTHING_LEFT = (
    "has no finished trial yet, so there is nothing to report",
    "There is nothing to explain",
    "have no measured cell and precision in common",
    "has ablations alone",
)
"""What may be said of a run of which too little is left."""


@pytest.fixture(scope="module")
def runs(tmp_path_factory) -> list[Path]:
    return runs_of_every_phase(tmp_path_factory.mktemp("runs"))


def written(folder: Path, *, published: bool) -> None:
    out = folder.with_name("report")
    assert terminal(report([folder], out, published=published, figures="all"), out)
    assert all((out / name).stat().st_size for name in ("report.md", "report.html"))


def exported(folder: Path) -> None:
    assert document.dumps(document.report(load([folder])))
    next_step(folder)


def compared(old: Path, new: Path) -> None:
    comparison = compare(old, new, 0.05)
    assert document.dumps(of_comparison(comparison))
    assert comparison_page(comparison, "md")
    show_comparison(comparison)


def in_words(folder: Path) -> None:
    assert render.in_words(explain([folder]))


def unless_nothing_is_left(ask: Callable[[], None]) -> None:
    try:
        ask()
    except UsageError as error:
        if not any(words in str(error) for words in NOTHING_LEFT):
            raise


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, ALL))])
def test_what_is_left_of_a_run_that_was_cut_anywhere_is_reported(runs, seed, tmp_path, monkeypatch):
    if seed % DRAWN:
        monkeypatch.setattr(
            "bench.report.figures.draw.draw", lambda _chart, _out: None
        )  # takes most of a report's time
    draw = Random(seed)
    whole = draw.choice(runs)
    folder, twin = tmp_path / whole.name, tmp_path / "twin"
    shutil.copytree(whole, folder)
    print(whole.name, *cut(folder, draw), sep="\n")
    shutil.copytree(folder, twin)
    begin(twin, "2026-03-03")
    unless_nothing_is_left(partial(written, folder, published=draw.random() < 0.2))
    further = (
        partial(exported, folder),
        partial(compared, whole, twin),
        partial(compared, twin, whole),
        partial(compared, folder, twin),
        partial(in_words, folder),
    )
    unless_nothing_is_left(further[seed % len(further)])
