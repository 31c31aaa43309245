"""The explanation of a precision as a terminal and the page show it."""

import itertools
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
    *held("fp32", ("convolution", "body.0", 60), ("relu", "body.1", 40)),
    *held("amp-bf16", ("_to_copy", "body.0", 30), ("relu", "body.1", 20)),
]


def test_the_table_has_each_class_and_adds_up_to_the_step():
    result = plain(
        arm={"other products": 24.0, "casts and layout": 6.0, "optimizer": 0.1, "idle": 10.0}
    )
    rows = {row[0]: row[1:] for row in time_by_class(result).rows}
    assert rows["casts and layout"] == ["0.00", "6.00", "+6.000"]
    assert "communication" not in rows
    total = rows.pop("the step")
    for column in (0, 1):
        total_ms = 0.0
        for row in rows.values():
            total_ms += float(row[column].replace("−", "-"))
        assert total_ms == pytest.approx(float(total[column]), rel=0.02)


def test_reasons_are_sentences_and_techniques_are_named_once():
    result = plain(**EXAMPLES["launch-bound"])
    first, *_, last = sentences(result)
    assert first.startswith("Launching kernels limits it")
    assert result.techniques == ["cuda-graphs", "compile"]
    assert "--techniques cuda-graphs,compile " in last
    result.cell["data"] = "script"
    *_, last = sentences(result)
    assert "--ladder" not in last  # which scripts have not
    result.cell["techniques"] = "cuda-graphs+compile"
    assert result.techniques == []
    assert len([*sentences(result)]) == 1


def test_without_a_reason_the_largest_part_of_the_step_is_named():
    (sentence,) = sentences(plain())
    assert "other products: 44 %, 24.0 ms, and 60.0 ms in fp32" in sentence


def test_operators_have_both_figures_and_the_change():
    assert list(operators_changed(plain())) == []
    times = [
        figure("fp32", "operator", "aten::mm", 6.0),
        figure("amp-bf16", "operator", "aten::mm", 2.0),
    ]
    by_time, by_memory = operators_changed(plain(extra=[*times, *MEMORY]))
    assert [row[1:] for row in by_time.rows] == [["6.00", "2.00", "−4.000"]]
    assert by_memory.rows[0][1:] == ["60.0", "0.00", "−60.000"]


def test_memory_at_the_peak_is_told_with_what_changed_it_and_where_it_is_reached():
    *_, sentence = sentences(plain(extra=MEMORY))
    assert "hold 50.0 MiB, and 100 MiB in fp32 (−50 %)" in sentence
    assert "convolution in body.0" in sentence
    assert sentence.endswith("The peak comes at _to_copy in body.0.")


def test_bars_are_stacked_without_gaps_and_in_one_order():
    times_ms = dict.fromkeys(CLASSES, 1.0)
    result = plain(base=times_ms, arm=times_ms, extra=MEMORY)
    other = replace(result, arm=replace(result.arm, precision="amp-fp16"))
    time, memory = chart_of("mlp-why", [result, other]).panels
    assert [bar.tint for bar in time.marks] == 3 * list(WORK.values())
    stack = time.marks[: len(WORK)]
    assert stack[0].x[0] == 0
    assert all(left.x[1] == right.x[0] for left, right in itertools.pairwise(stack))
    assert [text for _, text in time.y.ticks] == ["fp32", "amp-bf16", "amp-fp16"]
    assert [bar.x[1] for bar in memory.marks] == [100, 50, 50]


def test_devices_and_batches_have_panels_of_their_own():
    result = plain(extra=MEMORY)
    other = replace(result, cell=dict(result.cell) | {"batch_size": 128})
    assert len(chart_of("mlp-why", [result, other]).panels) == 4


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
    figures = [*step("fp32", FP32), *step("amp-bf16", GAINS), *MEMORY]
    results = [TrialResult(arm=name, status="ok") for name in trial.arm_names]
    run.add(trial, *results, records=[Explained(trial=trial.id, **row) for row in figures])
    (group,) = findings(load([tmp_path]))
    (finding,) = group.findings
    sentence = "Peak memory grows from 10 to 60 MiB, and 50 MiB of that are in no tensor"
    grown = [reason for reason in finding.reasons if reason.startswith(sentence)]
    assert len(grown) == is_named
    assert all("_to_copy in body.0" in reason for reason in grown)
