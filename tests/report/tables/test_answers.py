"""The answers at a glance, in a terminal of any width and on the page."""

import pytest

from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import answers
from bench.report.reading.load import load
from bench.report.tables.answers import grid, terminal
from tests.report.builders import RunBuilder
from tests.report.tables.lines import column, lines


def found(*runs):
    return grid(answers(summarise(load([run.folder for run in runs]).trials)))


def row(run):
    """The cells of a run's only answer as a terminal shows them, by their headers."""
    (table,) = terminal(found(run))
    return lines(table)[0]


def standing(run):
    """How the page shows what is said of the accuracy of a run's only answer."""
    ((line,),) = found(run).groups.values()
    return line.standing


@pytest.fixture
def gain(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.3, 1.7]).memory("fp32", 100).memory("amp-bf16", 60)
    for name in ("fp32", "amp-bf16"):
        run.train(name, [90.0] * 5)
    return run


def test_an_answer_names_precision_speedup_memory_accuracy_and_batch(gain):
    expected = {"device": "Test 1", "use": "amp-bf16", "faster": "1.98× ±58 %", "memory": "−40 %"}
    assert row(gain) == expected | {"accuracy": "not worse", "batch": "128"}


def test_the_terminal_has_the_words_of_the_page_on_accuracy(tmp_path):
    once = RunBuilder(tmp_path / "once").speed().train("fp32", [90.0]).train("amp-bf16", [90.0])
    assert row(RunBuilder(tmp_path / "timed").speed())["accuracy"] == "not trained"
    assert row(once)["accuracy"] == "too few seeds"


def test_staying_with_fp32_and_a_baseline_out_of_memory_are_answers_too(tmp_path):
    slow = row(RunBuilder(tmp_path / "slow").speed(speedups=[0.09, 0.091, 0.089]))
    big = row(RunBuilder(tmp_path / "big").lost("speed", "fp32", "oom").alone("amp-bf16", [5.0, 5.1]))
    assert (slow["use"], slow["faster"], slow.keys() & {"memory", "accuracy"}) == (
        "fp32",
        "amp-bf16: 11× slower",
        set(),
    )
    assert (big["use"], big["accuracy"]) == ("amp-bf16", "fp32 oom")


def test_without_a_speedup_the_answer_says_what_trainings_have_shown(tmp_path):
    run = RunBuilder(tmp_path / "trained")
    for name, accuracy in (("fp32", 90.0), ("amp-bf16", 90.0), ("bf16", 80.0)):
        run.train(name, [accuracy] * 5)
    assert row(run)["accuracy"] == "amp-bf16 not worse, bf16 worse"
    assert standing(run) == "bad"
    good = RunBuilder(tmp_path / "good").train("fp32", [90.0] * 5).train("bf16", [90.0] * 5)
    assert standing(good) == "good"


@pytest.mark.parametrize("width", [30, 60, 80])
def test_a_terminal_shows_every_cell_whatever_its_width(gain, width, monkeypatch):
    monkeypatch.setenv("COLUMNS", str(width))
    (table,) = terminal(found(gain))
    assert (max(map(len, table.text.splitlines())) <= width) or table.text.startswith("- device: Test 1; use: amp-bf16")
    assert all(word in table.text for cell in row(gain).values() for word in cell.split())


def test_a_device_is_a_row_in_the_table_of_each_suite(gain, tmp_path):
    tables = terminal(found(gain, RunBuilder(tmp_path / "other", suite="vit").speed()))
    assert [(table.title, column(table, "device")) for table in tables] == [("mlp", ["Test 1"]), ("vit", ["Test 1"])]
