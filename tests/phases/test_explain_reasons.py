"""Why a precision gains: speedups and reasons of made-up figures, one cause at a time."""

import math

import pandas as pd
import pytest

from bench.phases.explain.reasons import CLASSES, explanations
from bench.report.reading.load import CELL

COLUMNS = ["precision", "kind", "name", "round", "work", "detail", "value"]
FP32 = {"other products": 60.0, "elementwise": 15.0, "normalisation and softmax": 5.0, "optimizer": 10.0, "idle": 10.0}
GAINS = {"other products": 24.0, "elementwise": 8.0, "normalisation and softmax": 3.0, "optimizer": 10.0, "idle": 10.0}


def figure(precision, kind, name, value, *, number=math.nan, work="", detail=""):
    return dict(zip(COLUMNS, (precision, kind, name, number, work, detail, value), strict=True))


def step(precision, ms, *, profiler=1.0, gpu=True, noise=(1.0, 1.01, 0.99, 1.0)):
    total = sum(ms.values())
    rows = []
    for number, factor in enumerate(noise):
        rows.append(figure(precision, "step", "timed", total * factor, number=number))
        rows.append(figure(precision, "step", "profiled", total * profiler * factor, number=number))
        rows += [
            figure(precision, "class", work, ms.get(work, 0.0) * profiler * factor, number=number) for work in CLASSES
        ]
        rows += [figure(precision, "step", "kernels", 200, number=number)] if gpu else []
    return rows


def cell(**columns):
    return (
        dict.fromkeys(CELL, "x") | {"batch_size": 64, "techniques": "", "workload": "mlp", "where": "GPU 0"} | columns
    )


def explain(*rows, arm="amp-bf16"):
    frame = pd.DataFrame([row for part in rows for row in part])
    (result,) = explanations(frame.assign(**cell()))
    assert result.arm.precision == arm
    return result


def plain(arm=GAINS, base=FP32, *, gpu=False, extra=()):
    return explain(step("fp32", base, gpu=gpu), step("amp-bf16", arm, gpu=gpu), extra)


def test_a_step_that_gains_as_its_operators_do_needs_no_reason():
    result = plain()
    assert result.reasons == []
    assert result.speedup.center == pytest.approx(100 / 55, rel=1e-3)
    assert result.unexplained.center == pytest.approx(0, abs=0.01)


def test_what_the_profiler_adds_to_one_arm_is_unexplained():
    result = explain(step("fp32", FP32), step("amp-bf16", GAINS, profiler=1.3))
    assert result.unexplained.center == pytest.approx(0.3 * 55 / 45, rel=0.02)
    faster = explain(step("fp32", GAINS), step("amp-bf16", FP32, profiler=1.3))
    assert faster.unexplained.center == pytest.approx(-0.3 * 100 / 45, rel=0.02)
    assert faster.unexplained.low < faster.unexplained.center < faster.unexplained.high


def test_nothing_is_unexplained_of_a_difference_within_its_noise():
    noisy = (1.0, 1.3, 0.7, 1.1)
    result = explain(step("fp32", FP32, noise=noisy), step("amp-bf16", FP32, noise=noisy[::-1]))
    assert result.unexplained is None


def test_steps_without_time_in_any_class_are_not_explained():
    rows = [
        figure(name, "step", kind, 10.0, number=0) for name in ("fp32", "amp-bf16") for kind in ("timed", "profiled")
    ]
    rows += [figure(name, "class", work, 0.0, number=0) for name in ("fp32", "amp-bf16") for work in CLASSES]
    assert explanations(pd.DataFrame(rows).assign(**cell())) == []


@pytest.mark.parametrize(
    ("wait_ms", "check_ms", "rules"), [(0.5, 0.5, []), (6.0, 0.0, ["loss scaling"]), (0.0, 6.0, ["loss scaling"])]
)
def test_loss_scalings_are_its_own_work_and_idle_time_only_as_far_as_the_gpu_waits_for_it(wait_ms, check_ms, rules):
    arm = GAINS | {"idle": 20.0, "matrix units": 1.0, "loss scaling": check_ms}
    steps = step("fp32", FP32), step("amp-fp16", arm)
    waited = [figure("amp-fp16", "step", "scaling wait", wait_ms)]
    assert [reason.rule for reason in explain(*steps, waited, arm="amp-fp16").reasons] == rules


MISSED = figure("amp-bf16", "types", "float32", 40.0, detail="head, body.3")
STRAYED = figure("fp32", "types", "bfloat16", 92.0, detail="middle")
CAUSES = {
    "other types": {"arm": FP32, "extra": [STRAYED, figure("fp32", "types", "float32", 8.0)]},
    "launch-bound": {
        "gpu": True,
        "base": {"other products": 10.0, "idle": 50.0},
        "arm": {"matrix units": 8.0, "idle": 50.0},
    },
    "no gain from products": {"arm": FP32},
    "no matrix units": {"gpu": True},
    "memory-bound": {
        "base": {"other products": 20.0, "elementwise": 70.0, "idle": 10.0},
        "arm": {"other products": 8.0, "elementwise": 35.0, "idle": 10.0},
    },
    "casts": {"arm": GAINS | {"casts and layout": 15.0}},
    "optimizer-bound": {"base": FP32 | {"optimizer": 40.0}, "arm": GAINS | {"optimizer": 40.0}},
    "skipped steps": {"extra": [figure("amp-bf16", "step", "skipped", 20.0)]},
    "copies": {"base": FP32 | {"copies": 20.0}, "arm": GAINS | {"copies": 20.0}},
    "loader": {"extra": [figure("amp-bf16", "step", "waiting", 30.0)]},
    "autocast missed": {"extra": [MISSED]},
    "unknown": {"arm": GAINS | {"unknown": 20.0}},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_rule_fires_on_its_cause_and_no_other_does(cause):
    result = plain(**CAUSES[cause])
    assert [reason.rule for reason in result.reasons] == [cause]


def test_the_first_sentence_says_that_fp32_was_none_and_the_device_is_not_blamed():
    sentences = [reason.sentence for reason in plain(**CAUSES["other types"]).reasons]
    text = "fp32 computed 92 % of its products in bfloat16, so this is no comparison with FP32 and no reason is given"
    assert sentences == [text]


@pytest.mark.parametrize(
    ("gpu", "profiler", "rules"),
    [(True, 1.0, ["launch-bound"]), (True, 1.2, ["launch-bound"]), (True, 2.0, []), (False, 1.0, [])],
)
def test_launching_is_a_gpus_idle_time_without_the_time_that_the_profiler_adds(gpu, profiler, rules):
    """Half of a step in which the profiler recorded 6 ms of kernels and 6 ms without; it adds to the latter."""
    ms = {"matrix units": 6.0, "idle": 6.0}
    rows = [row for name in ("fp32", "amp-bf16") for row in step(name, ms, gpu=gpu)]
    for row in rows:
        if row["name"] == "timed":
            row["value"] /= profiler
    (result,) = explanations(pd.DataFrame(rows).assign(**cell()))
    assert [reason.rule for reason in result.reasons if reason.rule == "launch-bound"] == rules


def test_the_operators_whose_time_changed_most_come_first_and_one_of_another_name_took_none():
    times_ms = {"fp32": {"aten::addmm": 6.0, "aten::relu": 1.0, "aten::_efficient": 3.0}}
    times_ms["amp-bf16"] = {"aten::addmm": 2.0, "aten::relu": 0.5, "aten::_flash": 1.5}
    rows = [
        figure(name, "operator", operator, ms, detail="64x64")
        for name, operators in times_ms.items()
        for operator, ms in operators.items()
    ]
    assert plain(extra=rows).changed == [
        ("aten::addmm 64x64", 6.0, 2.0),
        ("aten::_efficient 64x64", 3.0, 0.0),
        ("aten::_flash 64x64", 0.0, 1.5),
        ("aten::relu 64x64", 1.0, 0.5),
    ]
