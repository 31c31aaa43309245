"""Runs whose files lost any rows: what is left of them is reported."""

import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path
from random import Random

import pytest

from bench.compare.comparison import compare
from bench.compare.document import document as of_comparison
from bench.compare.page import show_comparison
from bench.phases.explain.report import explain
from bench.report import document, render, report, terminal
from bench.report.reading.load import load
from bench.run.reporting import next_step
from bench.spec.errors import UsageError
from perf.synthetic_fleet import Shape, write_run
from tests.golden.cases import MADE
from tests.report import ablations, cutting
from tests.report.builders import RunBuilder
from tests.report.cutting import begin, cut
from tests.report.reading.test_load import COMMITTED

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
    """The committed runs, and made-up ones with what those lack."""
    folder = tmp_path_factory.mktemp("runs")
    searched = RunBuilder(folder / "searched")
    for fill in (cutting.numerics, cutting.layers, cutting.explain, cutting.inference):
        fill(searched)
    ablations.apart(RunBuilder(folder / "apart"), {name: [ms] * 3 for name, ms in ablations.STEPS_MS.items()})
    cutting.of_a_gpu(folder / "timed")
    shape = Shape(gpus=["P100", "A100"], models=["resnet50"], batch_sizes=[64, 128], seeds=2, epochs=3, rounds=4)
    write_run(folder / "fleet", shape)
    for case in ("failures", "script", "ladder"):
        MADE[case](folder / case)
    made = sorted(folder.iterdir())
    for run in made:
        begin(run, "2026-01-01")
    return [*COMMITTED, *made]


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
    show_comparison(comparison)


def in_words(folder: Path) -> None:
    assert render.in_words(explain([folder]))


def unless_nothing_is_left(ask: Callable[[], None]) -> None:
    try:
        ask()
    except UsageError as error:
        if not any(words in str(error) for words in NOTHING_LEFT):
            raise


def undrawn(chart, _out):
    """Return a chart as it is."""
    return chart


@pytest.mark.parametrize("seed", [*range(QUICK), *(pytest.param(n, marks=pytest.mark.slow) for n in range(QUICK, ALL))])
def test_what_is_left_of_a_run_that_was_cut_anywhere_is_reported(runs, seed, tmp_path, monkeypatch):
    if seed % DRAWN:
        monkeypatch.setattr("bench.report.figures.draw.draw", undrawn)  # drawing takes most of a report's time
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
