"""What the terminal shows after a run, at the widths at which it is looked at."""

import pytest
from rich.console import Console

from bench.report.analysis.summary import summarise
from bench.report.analysis.verdict import sentences
from bench.report.reading.load import load
from bench.report.tables.answers import grid, row, tables
from tests.report.builders import RunBuilder


def answers(*runs):
    return [sentence.answer for sentence in sentences(summarise(load([run.folder for run in runs]).trials))]


def standing(run):
    """How the page shows what is said of the accuracy of a run's only answer."""
    summary = summarise(load([run.folder]).trials)
    ((line,),) = grid(sentences(summary), summary).groups.values()
    return line.standing


def drawn(found, width):
    console = Console(width=width, color_system=None)
    with console.capture() as capture:
        for table in tables(found, width):
            console.print(table)
    return capture.get()


@pytest.fixture
def gain(tmp_path):
    run = RunBuilder(tmp_path / "run").speed(speedups=[2.0, 2.3, 1.7]).memory("fp32", 100).memory("amp-bf16", 60)
    for name in ("fp32", "amp-bf16"):
        run.train(name, [90.0] * 5)
    return run


def test_an_answer_names_precision_speedup_memory_accuracy_and_batch(gain):
    (answer,) = answers(gain)
    assert row(answer) == ("amp-bf16", "1.98× ±58 %", "−40 %", "not worse", "128", "–")


def test_what_was_not_trained_is_not_called_not_shown(tmp_path):
    (timed,) = answers(RunBuilder(tmp_path / "timed").speed())
    (once,) = answers(RunBuilder(tmp_path / "once").speed().train("fp32", [90.0]).train("amp-bf16", [90.0]))
    assert (row(timed)[3], row(once)[3]) == ("not trained", "not shown")


def test_staying_with_fp32_and_a_baseline_out_of_memory_are_answers_too(tmp_path):
    slow = RunBuilder(tmp_path / "slow").speed(speedups=[0.09, 0.091, 0.089])
    big = RunBuilder(tmp_path / "big").lost("speed", "fp32", "oom").alone("amp-bf16", [5.0, 5.1])
    assert row(answers(slow)[0]) == ("fp32", "amp-bf16 11× slower", "–", "–", "128", "–")
    assert row(answers(big)[0]) == ("amp-bf16", "–", "–", "fp32 oom", "128", "–")


def test_without_a_speedup_the_answer_says_what_trainings_have_shown(tmp_path):
    run = (
        RunBuilder(tmp_path / "trained")
        .train("fp32", [90.0] * 5)
        .train("amp-bf16", [90.0] * 5)
        .train("bf16", [80.0] * 5)
    )
    (answer,) = answers(run)
    assert row(answer)[3] == "amp-bf16 not worse, bf16 worse"
    assert standing(run) == "bad"
    good = RunBuilder(tmp_path / "good").train("fp32", [90.0] * 5).train("bf16", [90.0] * 5)
    assert standing(good) == "good"


@pytest.mark.parametrize(("width", "last"), [(60, "batch"), (54, "accuracy"), (42, "memory"), (30, "faster")])
def test_columns_are_left_out_from_the_right_where_the_terminal_is_narrow(gain, width, last):
    header, _, line, *caption = (line for line in drawn(answers(gain), width).splitlines() if line.strip())
    assert header.split()[-1] == last
    assert len(header) <= width
    said = " ".join(" ".join(caption).split())
    assert said.startswith("Without ") == (width < 60)  # what is left out is said
    assert ("batch, for want of width" in said) == (width < 60)
    assert "1.98× ±58 %" in line


def test_a_device_is_a_row_in_the_table_of_each_suite(gain, tmp_path):
    other = RunBuilder(tmp_path / "other", suite="vit").speed()
    text = drawn(answers(gain, other), 80)
    assert text.index("mlp") < text.index("vit")
    assert text.count("Test 1 ") == 2
