"""Why a precision gains: speedups and reasons of made-up figures, one cause at a time."""

import math

import pandas as pd
import pytest

from bench.report.analysis.explanation import CLASSES, explanations
from bench.report.reading.load import CELL

COLUMNS = ["precision", "kind", "name", "round", "work", "detail", "count", "value"]
FP32 = {"other products": 60.0, "elementwise": 15.0, "normalisation and softmax": 5.0, "optimizer": 10.0, "idle": 10.0}
GAINS = {"other products": 24.0, "elementwise": 8.0, "normalisation and softmax": 3.0, "optimizer": 10.0, "idle": 10.0}
ALONE = {"fp32": 2.0, "amp-bf16": 0.8}
"""Of a product that a step calls thirty times."""


def figure(precision, kind, name, value, *, number=math.nan, work="", detail="", count=math.nan):
    return dict(zip(COLUMNS, (precision, kind, name, number, work, detail, count, value), strict=True))


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


def products(alone):
    rows = [figure("fp32", "flops", "mm", 6e12, count=30), figure("fp32", "rate", "products TFLOP/s", 120.0)]
    for precision, ms in alone.items():
        rows.append(figure(precision, "best", "mm", ms, count=30))
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


def plain(arm=GAINS, base=FP32, alone=ALONE, *, gpu=False, extra=()):
    doubled = [
        figure(name, "step", "doubled", 1.9 * sum(ms.values())) for name, ms in (("fp32", base), ("amp-bf16", arm))
    ]
    given = [row for row in extra if row["kind"] == "step" and row["name"] == "doubled"]
    doubled = [row for row in doubled if row["precision"] not in {record["precision"] for record in given}]
    return explain(step("fp32", base, gpu=gpu), step("amp-bf16", arm, gpu=gpu), products(alone), doubled, extra)


def test_a_step_that_gains_as_its_operators_do_needs_no_reason():
    result = plain()
    assert result.reasons == ()
    assert result.speedup.center == pytest.approx(100 / 55, rel=1e-3)
    assert result.unexplained.center == pytest.approx(0, abs=0.01)


def test_what_the_profiler_adds_to_one_arm_is_unexplained():
    result = explain(step("fp32", FP32), step("amp-bf16", GAINS, profiler=1.3), products(ALONE))
    assert result.unexplained.center == pytest.approx(0.3 * 55 / 45, rel=0.02)
    faster = explain(step("fp32", GAINS), step("amp-bf16", FP32, profiler=1.3), products(ALONE))
    assert faster.unexplained.center == pytest.approx(-0.3 * 100 / 45, rel=0.02)
    assert faster.unexplained.low < faster.unexplained.center < faster.unexplained.high


def test_nothing_is_unexplained_of_a_difference_within_its_noise():
    noisy = (1.0, 1.3, 0.7, 1.1)
    result = explain(step("fp32", FP32, noise=noisy), step("amp-bf16", FP32, noise=noisy[::-1]), products(ALONE))
    assert result.unexplained is None


def test_products_that_gain_in_the_step_are_no_reason_though_they_do_not_alone():
    alone = {"fp32": 2.0, "amp-bf16": 2.1}
    assert "no gain from products" in {reason.rule for reason in plain(FP32, alone=alone).reasons}
    assert "no gain from products" not in {reason.rule for reason in plain(GAINS, alone=alone).reasons}


@pytest.mark.parametrize(("arm", "alike"), [("bf16", False), ("fp16-master", True), ("amp-bf16", True)])
def test_the_optimizer_is_not_said_to_be_alike_where_the_weights_have_16_bits(arm, alike):
    slow = [step(name, ms | {"optimizer": 40.0}, gpu=False) for name, ms in (("fp32", FP32), (arm, GAINS))]
    (reason,) = explain(*slow, products({"fp32": 2.0, arm: 0.8}), arm=arm).reasons
    assert (reason.rule, "alike in either precision" in reason.sentence) == ("optimizer-bound", alike)


def test_steps_without_products_or_without_time_in_any_class_are_explained_as_far_as_it_goes():
    assert explain(step("fp32", FP32), step("amp-bf16", GAINS)).speedup.center == pytest.approx(100 / 55, rel=1e-3)
    timed = [figure(name, "step", kind, 10.0, number=0) for name in ALONE for kind in ("timed", "profiled")]
    classes = [figure(name, "class", work, 0.0, number=0) for name in ALONE for work in CLASSES]
    assert explain(timed, classes).speedup.center == 1.0


@pytest.mark.parametrize(("wait_ms", "rules"), [(0.5, []), (6.0, ["loss scaling"])])
def test_idle_time_that_grows_is_loss_scalings_only_as_far_as_the_gpu_waits_for_it(wait_ms, rules):
    steps = step("fp32", FP32), step("amp-fp16", GAINS | {"idle": 20.0, "matrix units": 1.0})
    doubled = [figure(name, "step", "doubled", 150.0) for name in ("fp32", "amp-fp16")]
    waited = [figure("amp-fp16", "step", "scaling wait", wait_ms)]
    result = explain(*steps, products({"fp32": 2.0, "amp-fp16": 0.8}), doubled, waited, arm="amp-fp16")
    assert [reason.rule for reason in result.reasons] == rules


MISSED = figure("amp-bf16", "types", "float32", 40.0, detail="head, body.3")
STRAYED = figure("fp32", "types", "bfloat16", 92.0, detail="middle")
CAUSES = {
    "other types": {
        "alone": {"fp32": 2.0, "amp-bf16": 2.1},
        "arm": FP32,
        "extra": [STRAYED, figure("fp32", "types", "float32", 8.0), figure("fp32", "rate", "products TFLOP/s", 800.0)],
    },
    "launch-bound": {
        "base": {"other products": 10.0, "idle": 50.0},
        "arm": {"other products": 8.0, "idle": 50.0},
        "extra": [figure(name, "step", "doubled", 62.0) for name in ("fp32", "amp-bf16")],
    },
    "no gain from products": {"alone": {"fp32": 2.0, "amp-bf16": 2.1}, "arm": FP32},
    "no matrix units": {"gpu": True},
    "memory-bound": {
        "base": {"other products": 20.0, "elementwise": 70.0, "idle": 10.0},
        "arm": {"other products": 8.0, "elementwise": 35.0, "idle": 10.0},
    },
    "casts": {"arm": GAINS | {"casts and layout": 15.0}},
    "optimizer-bound": {"base": FP32 | {"optimizer": 40.0}, "arm": GAINS | {"optimizer": 40.0}},
    "skipped steps": {"extra": [figure("amp-bf16", "step", "skipped", 20.0)]},
    "communication": {"base": FP32 | {"communication": 20.0}, "arm": GAINS | {"communication": 20.0}},
    "copies": {"base": FP32 | {"copies": 20.0}, "arm": GAINS | {"copies": 20.0}},
    "loader": {"extra": [figure("amp-bf16", "step", "waiting", 30.0)]},
    "autocast missed": {"extra": [MISSED]},
    "misaligned": {"extra": [figure("amp-bf16", "padded", "mm 4095", 0.6, detail="head", count=0.5)]},
    "layout": {"extra": [figure("amp-bf16", "channels-last", "convolution", 0.7, detail="stem", count=0.2)]},
    "small products": {"extra": [figure("fp32", "rate", "products TFLOP/s", 800.0)]},
    "unknown": {"arm": GAINS | {"unknown": 20.0}},
}


@pytest.mark.parametrize("cause", CAUSES)
def test_each_rule_fires_on_its_cause_and_no_other_does(cause):
    result = plain(**CAUSES[cause])
    assert [reason.rule for reason in result.reasons] == [cause]


def test_products_that_gain_nothing_are_not_the_devices_fault_where_large_ones_gain():
    slow = {"alone": {"fp32": 2.0, "amp-bf16": 2.1}, "arm": FP32}
    rates = [figure("amp-bf16", "rate", "products TFLOP/s", rate) for rate in (125.0, 480.0)]
    device, sizes = (plain(**slow, extra=[rate]).reasons[0].sentence for rate in rates)
    assert "the device has no gain to give" in device
    assert "large square ones run 4.00× as fast" in sizes
    assert "the device" not in sizes


def test_the_first_sentence_says_that_fp32_was_none_and_the_device_is_not_blamed():
    sentences = [reason.sentence for reason in plain(**CAUSES["other types"]).reasons]
    text = "fp32 computed 92 % of its products in bfloat16, so this is no comparison with FP32 and no reason is given"
    assert sentences == [text]


def test_launching_is_ruled_out_where_twice_the_batch_takes_twice_as_long():
    slow = {"other products": 10.0, "idle": 50.0}
    extra = [figure(name, "step", "doubled", 110.0) for name in ("fp32", "amp-bf16")]
    assert plain(base=slow, arm=slow | {"other products": 5.0}, extra=extra).reasons == ()


@pytest.mark.parametrize(("gpu", "rules"), [(True, ["launch-bound"]), (False, [])])
def test_without_a_doubled_batch_only_a_gpus_idle_time_is_launching(gpu, rules):
    slow = [step(name, {"matrix units": 10.0, "idle": 50.0}, gpu=gpu) for name in ("fp32", "amp-bf16")]
    result = explain(*slow, products(ALONE))
    assert [reason.rule for reason in result.reasons] == rules


def test_short_operators_that_the_batch_does_not_lengthen_are_launching():
    short = {"other products": 3.0, "elementwise": 0.5, "idle": 0.5}
    extra = [figure(name, "step", "doubled", 5.2) for name in ("fp32", "amp-bf16")]
    extra += [figure(name, "step", "operators", 400) for name in ("fp32", "amp-bf16")]
    casting = short | {"casts and layout": 1.0}
    (reason,) = plain(base=short, arm=casting, alone={"fp32": 0.08, "amp-bf16": 0.02}, extra=extra).reasons
    assert reason.rule == "launch-bound"
    assert "12 µs" in reason.sentence
