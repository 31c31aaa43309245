"""A swept parameter: its values in one table and one plot."""

import json
import math

import numpy as np
import pytest
from scipy import stats as scipy_stats

from bench.report.analysis.factors import varied
from bench.report.analysis.summary import summarise
from bench.report.figures.chart import Line
from bench.report.figures.comparisons import against_value, positions
from bench.report.page import compose
from bench.report.reading.load import load
from bench.report.tables.comparisons import along as sweep_table
from bench.spec.trial import SuiteRef
from tests.report.builders import RunBuilder
from tests.report.tables.lines import column, lines

FIRST = "× step of the first value [95 % interval]"


def run_of(folder, sweep, *variants, batch=512):
    """Write a run with a speed cell for each variant: its parameters, and the step times of fp32 in its processes."""
    run = RunBuilder(folder)
    info = json.loads((folder / "run.json").read_text())
    info["request"] = {"sweep": [[name, words] for name, words in sweep.items()]}
    (folder / "run.json").write_text(json.dumps(info))
    for parameters, steps_ms in variants:
        run.suite = SuiteRef(name="mlp", parameters=parameters)
        size = dict(parameters).get("batch_size", batch)
        run.alone("fp32", steps_ms, batch=size).alone("amp-fp16", [step / 2 for step in steps_ms], batch=size)
    return run


def swept_in(run):
    runs = load([run.folder])
    return varied(summarise(runs.trials), runs)


ALIGNED, MISALIGNED = [10.0, 10.1, 9.9], [15.0, 15.2, 14.9]


def test_each_value_stands_against_the_first_with_welchs_interval(tmp_path):
    variants = [((("width", 4097),), MISALIGNED), ((("width", 4096),), ALIGNED)]  # the first measured is the first
    (sweep,) = swept_in(run_of(tmp_path / "run", {"width": ["4097", "4096"]}, *variants))
    made = sweep_table(sweep)
    order = [("4097", "fp32"), ("4097", "amp-fp16"), ("4096", "fp32"), ("4096", "amp-fp16")]
    assert [(line["width"], line["precision"]) for line in lines(made)] == order
    assert column(made, FIRST)[:2] == ["first", "first"]
    bounds = scipy_stats.ttest_ind(np.log(ALIGNED), np.log(MISALIGNED), equal_var=False).confidence_interval(0.95)
    ratio = math.exp(np.log(ALIGNED).mean() - np.log(MISALIGNED).mean())
    low, high = math.exp(bounds.low), math.exp(bounds.high)
    assert column(made, FIRST)[2] == f"{ratio:.3f} [{low:.3f}, {high:.3f}]"
    assert column(made, "speedup [95 % interval]")[3].startswith("2.000 [")
    assert "batch size" in made.headers


def test_batch_sizes_that_were_swept_stand_together(tmp_path):
    variants = [((("batch_size", size),), steps) for size, steps in ((512, ALIGNED), (513, MISALIGNED))]
    (sweep,) = swept_in(run_of(tmp_path / "run", {"batch_size": ["512", "513"]}, *variants))
    made = sweep_table(sweep)
    assert "batch size" not in made.headers
    assert column(made, "batch_size") == ["512", "512", "513", "513"]
    assert column(made, FIRST)[-1].startswith("1.503 [")


def test_a_product_is_compared_along_each_parameter_with_the_others_alike(tmp_path):
    steps = {(4096, 2): 10.0, (4096, 3): 15.0, (4097, 2): 20.0, (4097, 3): 45.0}
    variants = [((("depth", d), ("width", w)), [ms, ms * 1.01]) for (w, d), ms in steps.items()]
    sweeps = swept_in(run_of(tmp_path / "run", {"width": ["4096", "4097"], "depth": ["2", "3"]}, *variants))
    assert [sweep.name for sweep in sweeps] == ["width", "depth"]
    fp32 = [line for line in lines(sweep_table(sweeps[0])) if line["precision"] == "fp32"]
    assert {(line["other parameters"], line["width"]): line[FIRST].split(" ")[0] for line in fp32} == {
        ("depth=2", "4096"): "first",
        ("depth=2", "4097"): "2.00",
        ("depth=3", "4096"): "first",
        ("depth=3", "4097"): "3.00",
    }


def test_what_was_only_set_is_no_sweep_and_neither_is_a_single_value(tmp_path):
    variants = [((("lr", 0.1), ("width", width)), ALIGNED) for width in (8, 16)]
    assert [sweep.name for sweep in swept_in(run_of(tmp_path / "a", {"width": ["8", "16"]}, *variants))] == ["width"]
    assert swept_in(run_of(tmp_path / "b", {}, *variants)) == []
    assert swept_in(run_of(tmp_path / "c", {"width": ["8"]}, variants[0])) == []


def test_a_sweep_of_which_nothing_was_timed_is_none(tmp_path):
    run = run_of(tmp_path / "run", {"width": ["8", "16"]})
    run.lost("ladder_memory", "fp32", "failed", "it broke")
    assert swept_in(run) == []  # a ladder alone
    run.suite = SuiteRef(name="mlp", parameters=(("width", 8),))
    run.lost("memory", "fp32", "failed", "it broke")
    assert swept_in(run) == []


def test_numbers_are_drawn_and_words_are_not(tmp_path):
    numbers = [((("width", width),), ALIGNED) for width in (8, 1024)]
    run = run_of(tmp_path / "a", {"width": ["8", "1024"]}, *numbers)
    (sweep,) = swept_in(run)
    chart = against_value(sweep)
    assert chart.name == "sweep-mlp-width"
    (panel,) = chart.panels
    assert panel.x.ticks == [(8.0, "8"), (1024.0, "1024")]
    assert [mark.points for mark in panel.marks if isinstance(mark, Line) and mark.dots] == [
        [(8.0, pytest.approx(2.0)), (1024.0, pytest.approx(2.0))]
    ]
    words = [((("kind", kind),), ALIGNED) for kind in ("relu", "gelu")]
    (sweep,) = swept_in(run_of(tmp_path / "b", {"kind": ["relu", "gelu"]}, *words))
    assert against_value(sweep) is None
    assert len(sweep_table(sweep).rows) == 4
    report = compose(load([run.folder]), tmp_path, figures="none")
    assert report.sections[1].title == "Sweep of mlp's width"
    assert [section.title for section in report.sections[2:4]] == ["mlp (width=1024)", "mlp (width=8)"]


def test_values_that_would_touch_are_drawn_evenly_spaced():
    assert positions([512, 1024], [256, 512, 1024]) == [512.0, 1024.0]
    assert positions([64, 128], [64, 65, 128]) == [0.0, 2.0]
