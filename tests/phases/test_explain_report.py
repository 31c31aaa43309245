"""The explanation of a precision as a terminal shows it."""

from dataclasses import replace

import pandas as pd
import pytest

from bench.phases.explain.report import gain, memory_pair, memory_sentences, most_changed, sentences, time_by_class
from bench.phases.memory.report import memory_held
from bench.report.figures.chart import MEMORY_KINDS
from bench.report.reading.load import CELL
from bench.stats import Interval
from tests.phases.test_explain_reasons import CAUSES, explain, figure, plain, step


def test_the_table_has_each_class_and_adds_up():
    result = plain(arm={"other products": 24.0, "casts and layout": 6.0, "optimizer": 0.1, "idle": 10.0})
    rows = {row[0]: row[1:] for row in time_by_class(result).rows}
    assert rows["casts and layout"] == ["0.00", "6.00", "+6.000"]
    assert "communication" not in rows
    parts = [name for name in rows if name not in ("all, profiled", "the step, not profiled")]
    for column in (0, 1):
        assert sum(float(rows[name][column]) for name in parts) == pytest.approx(
            float(rows["all, profiled"][column]), rel=0.02
        )


def test_reasons_are_sentences_and_techniques_are_named_once():
    result = plain(**CAUSES["launch-bound"])
    first, *_, last = sentences(result)
    assert first.startswith("Launching limits it")
    assert result.techniques == ["cuda-graphs", "compile"]
    assert "--techniques cuda-graphs,compile " in last
    result.cell["techniques"] = "cuda-graphs+compile"
    assert (result.techniques, len(list(sentences(result)))) == ([], 1)
    assert len(list(sentences(plain()))) == 1


def test_what_other_programs_took_is_told():
    quiet = plain(extra=[figure("fp32", "step", "foreign load", 5.0)])
    assert list(sentences(quiet)) == list(sentences(plain()))
    *_, last = sentences(plain(extra=[figure("fp32", "step", "foreign load", 66.4)]))
    assert last.startswith("Other programs took 66 % of the CPU")


def test_steps_that_the_profiler_makes_much_longer_are_told():
    fp32, arm = ({"other products": ms, "elementwise": 5.0} for ms in (60.0, 25.0))
    for profiler, warned in ((1.2, False), (3.4, True)):
        result = explain(step("fp32", fp32), step("amp-bf16", arm, profiler=profiler))
        assert any("amp-bf16's 3.4 times" in sentence for sentence in sentences(result)) is warned


@pytest.mark.parametrize(
    ("center", "low", "high", "says"),
    [
        (1.5, 1.25, 1.75, "1.50× ±18 % in"),
        (0.16, 0.125, 0.2, "6.2× slower ±26 % in"),
        (1.01, 0.99, 1.03, "1.01× ±2 % in"),
        (1.5, None, None, "1.50× in"),
    ],
)
def test_a_gain_has_its_interval(center, low, high, says):
    assert says in gain(replace(plain(), speedup=Interval(center=center, low=low, high=high, n=7)))


def test_operators_have_both_times_and_the_change():
    assert most_changed(plain()) is None
    result = plain(extra=[figure("fp32", "operator", "aten::mm", 6.0), figure("amp-bf16", "operator", "aten::mm", 2.0)])
    assert [row[1:] for row in most_changed(result).rows] == [["6.00", "2.00", "−4.000"]]


# Why memory rises or falls, of made-up figures.


MIB = 2**20
FULL = {"parameters": 100, "gradients": 100, "optimizer": 200, "activations": 600, "temporaries": 10}


def trial(precision, kinds, *, status="ok", **more):
    row = dict.fromkeys(CELL, "x") | {"phase": "memory", "status": status, "precision": precision}
    row |= {
        name: float("nan")
        for name in ("peak_allocated_bytes", "peak_resident_bytes", "peak_reserved_bytes", "weight_copy_bytes")
    }
    row["most_weight_copy_bytes"] = float("nan")
    row |= {MEMORY_KINDS[kind]: value * MIB for kind, value in kinds.items()}
    row |= {"tracked_peak_bytes": sum(kinds.values()) * MIB, "fp32_activation_bytes": float("nan")}
    return row | {name: value * MIB for name, value in more.items()}


def changed(*rows):
    return memory_pair(memory_held(pd.DataFrame(rows)), dict.fromkeys(CELL, "x"), "amp-bf16")


def test_the_kinds_that_made_the_peak_fall_are_named_largest_first():
    result = changed(trial("fp32", FULL), trial("amp-bf16", FULL | {"activations": 350, "temporaries": 60}))
    (text,) = memory_sentences(*result)
    assert text.index("activations −250") < text.index("temporaries +50")
    assert "parameters" not in text
    assert "−20 %" in text


def test_a_peak_that_hardly_moves_has_no_cause():
    (text,) = memory_sentences(*changed(trial("fp32", FULL), trial("amp-bf16", FULL | {"temporaries": 12})))
    assert "1,010" in text or "1,012" in text
    assert "+" not in text


def test_copies_of_weights_are_told_of_the_precision_that_makes_them():
    mixed = trial(
        "amp-bf16",
        FULL | {"activations": 650},
        weight_copy_bytes=50,
        most_weight_copy_bytes=70,
        fp32_activation_bytes=130,
    )
    result = changed(trial("fp32", FULL, weight_copy_bytes=0, fp32_activation_bytes=600), mixed)
    rises, copies, kept = memory_sentences(*result)
    assert "activations +50" in rises
    assert copies.index("70.0 MiB") < copies.index("50.0 MiB")
    assert "130 MiB" in kept
    assert "20 %" in kept


def test_without_the_kinds_of_both_nothing_is_said():
    assert changed(trial("fp32", FULL), trial("amp-bf16", FULL, status="oom")) is None
