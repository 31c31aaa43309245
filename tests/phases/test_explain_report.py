"""The explanation of a precision as a terminal and the page show it."""

from dataclasses import replace

import pytest

from bench.phases.explain import Explained
from bench.phases.explain.reasons import CLASSES
from bench.phases.explain.report import (
    chart_of,
    findings,
    operators_changed,
    sentences,
    time_by_class,
)
from bench.report.figures.chart import WORK
from bench.report.reading.load import load
from bench.results.records import TrialResult
from tests.phases.test_explain_reasons import EXAMPLES, FP32, GAINS, figure, held, plain, step
from tests.report.builders import RunBuilder

MEMORY = [
    *held(
        "fp32",
        ("convolution", "body.0", 60),
        ("relu", "body.1", 40),
    ),
    *held(
        "amp-bf16",
        ("_to_copy", "body.0", 30),
        ("relu", "body.1", 20),
    ),
]


def test_the_table_has_each_class_and_adds_up_to_the_step():
    result = plain({"other products": 24.0, "casts and layout": 6.0, "optimizer": 0.1})
    *classes, total = time_by_class(result).rows
    names = [row[0] for row in classes]
    assert "communication" not in names
    casts = classes[names.index("casts and layout")]
    assert casts[1:] == ["0.00", "6.00", "+6.000"]
    assert total[0] == "the step"
    for column in (1, 2):
        total_ms = float(total[column])
        for row in classes:
            total_ms -= float(row[column].replace("−", "-"))
        assert total_ms == pytest.approx(0, abs=0.5)


def test_reasons_are_sentences_and_techniques_are_named_once():
    result = plain(**EXAMPLES["launch-bound"])
    first, last = sentences(result)
    assert first.startswith("Launching kernels limits it")
    assert "--ladder --techniques cuda-graphs,compile " in last
    result.cell["data"] = "script"
    _, last = sentences(result)
    assert "--ladder" not in last  # which scripts have not
    result.cell["techniques"] = "cuda-graphs+compile"
    (sentence,) = sentences(result)
    assert sentence == first


def test_without_a_reason_the_largest_part_of_the_step_is_named():
    (sentence,) = sentences(plain())
    assert "other products: 44 %, 24.0 ms, and 60.0 ms in fp32" in sentence


def test_operators_have_both_figures_and_the_change():
    assert list(operators_changed(plain())) == []
    fp32 = figure("fp32", "operator", "aten::mm", 6.0)
    arm = figure("amp-bf16", "operator", "aten::mm", 2.0)
    by_time, by_memory = operators_changed(plain(extra=[fp32, arm, *MEMORY]))
    assert by_time.rows == [["mm", "6.00", "2.00", "−4.000"]]
    assert by_memory.rows[0][1:] == ["60.0", "0.00", "−60.000"]


def test_memory_at_the_peak_is_told_with_what_changed_it_and_where_it_is_reached():
    *_, sentence = sentences(plain(extra=MEMORY))
    assert "hold 50.0 MiB, and 100 MiB in fp32 (−50 %)" in sentence
    assert "convolution in body.0" in sentence
    assert sentence.endswith("The peak comes at _to_copy in body.0.")


def test_bars_are_stacked_without_gaps_and_in_one_order():
    times_ms = dict.fromkeys(CLASSES, 1.0)
    result = plain(times_ms, times_ms, extra=MEMORY)
    step = replace(result.arm, precision="amp-fp16")
    other = replace(result, arm=step)
    time, memory = chart_of("mlp-why", [result, other]).panels
    _, names = zip(*time.y.ticks, strict=True)
    assert names == ("fp32", "amp-bf16", "amp-fp16")
    assert [bar.tint for bar in time.marks] == 3 * list(WORK.values())
    end = 0
    for bar in time.marks[: len(WORK)]:
        assert bar.x[0] == end
        end = bar.x[1]
    lengths_mib = [bar.x[1] for bar in memory.marks]
    assert lengths_mib == [100, 50, 50]


def test_devices_and_batches_have_panels_of_their_own():
    result = plain(extra=MEMORY)
    cell = {**result.cell, "batch_size": 128}
    other = replace(result, cell=cell)
    chart = chart_of("mlp-why", [result, other])
    assert len(chart.panels) == 4


@pytest.mark.parametrize(("arm_mib", "is_named"), [(60, True), (9, False)])
def test_memory_of_the_run_that_grows_beyond_its_tensors_is_named_with_the_operator_at_their_peak(
    tmp_path, arm_mib, is_named
):
    """As of a CPU whose libraries compile kernels for each of many shapes: tensors fall, the
    process grows.
    """
    run = RunBuilder(tmp_path)
    run.memory("fp32", 10).memory("amp-bf16", arm_mib)
    trial = run.trial("explain", ["fp32", "amp-bf16"], 128)
    figures = []
    for row in (*step("fp32", FP32), *step("amp-bf16", GAINS), *MEMORY):
        figures.append(Explained(trial=trial.id, **row))
    fp32 = TrialResult(arm="fp32", status="ok")
    arm = TrialResult(arm="amp-bf16", status="ok")
    run.add(trial, fp32, arm, records=figures)
    (group,) = findings(load([tmp_path]))
    (finding,) = group.findings
    text = " ".join(finding.reasons)
    sentence = "Peak memory grows from 10 to 60 MiB, and 50 MiB of that are in no tensor"
    assert (sentence in text) == is_named
    assert ("where tensors hold most, _to_copy in body.0" in text) == is_named
