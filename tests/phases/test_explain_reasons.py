"""Why a precision gains: speedups and reasons of made-up figures, one cause at a time."""

import functools
import itertools

import pandas as pd
import pytest

from bench.phases.explain.reasons import CLASSES, explanations
from bench.report.reading.load import CELL

MIB = 2**20
FP32 = {
    "other products": 60.0,
    "elementwise": 15.0,
    "normalisation and softmax": 5.0,
    "optimizer": 10.0,
    "idle": 10.0,
}
GAINS = {
    "other products": 24.0,
    "elementwise": 8.0,
    "normalisation and softmax": 3.0,
    "optimizer": 10.0,
    "idle": 10.0,
}


def figure(precision, kind, name, value, **columns):
    row = {"precision": precision, "kind": kind, "name": name, "value": value}
    return dict.fromkeys(("work", "module", "detail", "dtype"), "") | row | columns


def held(precision, *parts):
    """Return the figures of a peak: of operator, module and MiB of each part."""
    name, module, _ = parts[0]
    whole = sum(mib for _, _, mib in parts)
    rows = [figure(precision, "peak", name, whole * MIB, module=module)]
    for name, module, mib in parts:
        more = {"detail": f"{mib}x{MIB // 4} float32", "work": "elementwise"}
        rows.append(figure(precision, "held", name, mib * MIB, module=module, **more))
    return rows


def step(precision, ms, *, gpu=True):
    rows = [figure(precision, "step", "timed", sum(ms.values()))]
    rows.append(figure(precision, "step", "kernels", 200.0 if gpu else 0.0))
    return rows + [figure(precision, "class", work, ms.get(work, 0.0)) for work in CLASSES]


def cell():
    known = {"placement": "0", "batch_size": 64, "techniques": ""}
    return dict.fromkeys(CELL, "x") | known | {"workload": "mlp", "where": "GPU 0"}


def explain(*rows, arm="amp-bf16"):
    frame = pd.DataFrame(itertools.chain(*rows))
    (result,) = explanations(frame.assign(**cell()))
    assert result.arm.precision == arm
    return result


def plain(arm=GAINS, base=FP32, *, gpu=False, extra=()):
    return explain(step("fp32", base, gpu=gpu), step("amp-bf16", arm, gpu=gpu), extra)


def test_a_step_that_gains_as_its_operators_do_needs_no_reason():
    result = plain()
    assert result.reasons == []
    assert result.speedup == pytest.approx(100 / 55, rel=1e-3)


def test_steps_without_time_in_any_class_are_not_explained():
    rows = [figure(name, "step", "timed", 10.0) for name in ("fp32", "amp-bf16")]
    rows += [figure(name, "class", work, 0.0) for name in ("fp32", "amp-bf16") for work in CLASSES]
    assert explanations(pd.DataFrame(rows).assign(**cell())) == []


@pytest.mark.parametrize(
    ("wait_ms", "check_ms", "rules"),
    [(0.5, 0.5, []), (6.0, 0.0, ["loss scaling"]), (0.0, 6.0, ["loss scaling"])],
)
def test_loss_scalings_are_its_own_work_and_idle_time_only_as_far_as_the_gpu_waits_for_it(
    wait_ms, check_ms, rules
):
    arm = GAINS | {
        "idle": 20.0,
        "other products": 1.0,
        "matrix units": 24.0,
        "loss scaling": check_ms,
    }
    steps = step("fp32", FP32), step("amp-fp16", arm)
    waited = [figure("amp-fp16", "step", "scaling wait", wait_ms)]
    assert [reason.name for reason in explain(*steps, waited, arm="amp-fp16").reasons] == rules


amp = functools.partial(figure, "amp-bf16")
MISSED = amp("operator", "aten::mm", 8.0, work="other products", module="body.3", dtype="float")
FFT = amp("operator", "aten::_fft_r2c", 9.0, work="elementwise", module="mixer", dtype="float")
WIDENED = amp("widened", "_to_copy", 2, module="mixer", detail="64x64 float32")
AGAIN = amp("repeated", "_to_copy", 4, module="head", detail="64x64 bfloat16")
WHOLE = amp("expanded", "_to_copy", 30 * MIB, module="table", detail="64x64x64 bfloat16")
INSIDE = amp("unfolded", "convolution", 90 * MIB, module="video.0", detail="2x16x8x32x32 bfloat16")
PEAK = held("amp-bf16", ("bmm", "table", 100))

GROWN = [
    *held("fp32", ("bmm", "table", 100)),
    *held("amp-bf16", ("bmm", "table", 40)),
    figure("fp32", "memory", "", 10 * MIB),
    amp("memory", "", 60 * MIB),
]
NAN = amp("nonfinite", "Linear", 1, module="head", detail="forward")
EXAMPLES = {
    "not finite": {"extra": [NAN]},
    "recomputation": {"extra": [amp("step", "recomputed", 12.0)]},
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
    "left in fp32": {"extra": [FFT, WIDENED]},
    "expanded": {"extra": [WHOLE, *PEAK]},
    "workspace": {"extra": [INSIDE, *PEAK]},
    "communication": {
        "base": FP32 | {"communication": 30.0},
        "arm": GAINS | {"communication": 30.0},
    },
    "outside tensors": {"extra": GROWN},
    "optimizer-bound": {"base": FP32 | {"optimizer": 40.0}, "arm": GAINS | {"optimizer": 40.0}},
    "skipped steps": {"extra": [amp("step", "skipped", 20.0)]},
    "copies": {"base": FP32 | {"copies": 20.0}, "arm": GAINS | {"copies": 20.0}},
    "loader": {"extra": [amp("step", "waiting", 30.0)]},
    "unknown": {"arm": GAINS | {"unknown": 20.0}},
}


@pytest.mark.parametrize("cause", EXAMPLES)
def test_each_rule_fires_on_its_cause_and_no_other_does(cause):
    result = plain(**EXAMPLES[cause])
    assert [reason.name for reason in result.reasons] == [cause]


@pytest.mark.parametrize(
    ("cause", "named"),
    [
        ("not finite", "Linear in head forward"),
        ("left in fp32", "_fft_r2c in mixer (9.0 ms)"),
        ("outside tensors", "from 10 to 60 MiB, and 50 MiB of that"),
        ("outside tensors", "bmm in table"),
        ("expanded", "_to_copy in table 64x64x64 bfloat16 (30.0 MiB)"),
        ("workspace", "convolution in video.0"),
    ],
)
def test_a_reason_names_the_module(cause, named):
    (reason,) = plain(**EXAMPLES[cause]).reasons
    assert named in reason.sentence


def test_what_fp32_has_too_is_no_reason():
    same = [WHOLE | {"precision": "fp32"}, INSIDE | {"precision": "fp32"}]
    assert plain(extra=[WHOLE, INSIDE, *PEAK, *same]).reasons == []


def test_a_product_in_fp32_is_left_there_whatever_is_around_it():
    (reason,) = plain(extra=[MISSED]).reasons
    assert reason.name == "left in fp32"
    assert "mm in body.3 (8.0 ms)" in reason.sentence


def test_operators_in_fp32_that_were_never_narrower_are_no_reason():
    assert plain(extra=[FFT]).reasons == []
    assert plain(extra=[FFT, WIDENED | {"module": "other"}]).reasons == []


@pytest.mark.parametrize(("fp32_mib", "arm_mib"), [(40, 30), (100, 160), (None, 160)])
def test_memory_that_falls_or_grows_as_tensors_do_or_was_not_measured_is_no_reason(
    fp32_mib, arm_mib
):
    memory = [amp("memory", "", arm_mib * MIB)]
    if fp32_mib:
        memory.append(figure("fp32", "memory", "", fp32_mib * MIB))
    tensors = [*held("fp32", ("bmm", "table", 40)), *held("amp-bf16", ("bmm", "table", 100))]
    assert plain(extra=[*memory, *tensors]).reasons == []


def test_casts_that_are_repeated_are_named():
    (reason,) = plain(arm=GAINS | {"casts and layout": 15.0}, extra=[AGAIN]).reasons
    assert reason.name == "casts"
    assert "_to_copy in head 64x64 bfloat16 (4 times)" in reason.sentence


@pytest.mark.parametrize(
    ("placement", "refused", "techniques"),
    [
        ("0", [], ["cuda-graphs", "compile"]),
        ("0", ["cuda-graphs", "fused-optimizer"], ["compile"]),  # the suite cannot have them
        ("0+1", [], []),  # both are for one device
    ],
)
def test_no_technique_is_named_that_would_be_refused(placement, refused, techniques):
    extra = [amp("refused", name, 1) for name in refused]
    result = plain(**EXAMPLES["launch-bound"], extra=extra)
    result.cell["placement"] = placement
    assert result.techniques == techniques


def test_products_of_odd_sizes_are_named_where_matrix_units_are_not_used():
    sizes = "513x64 64x513"
    odd = amp("operator", "aten::mm", 20.0, work="other products", module="head", detail=sizes)
    (reason,) = plain(gpu=True, extra=[odd]).reasons
    assert reason.name == "no matrix units"
    assert "mm in head with a size of 513, no multiple of 8 (20 ms)" in reason.sentence


@pytest.mark.parametrize(
    ("gpu", "profiler", "rules"),
    [
        (True, 1.0, ["launch-bound"]),
        (True, 1.2, ["launch-bound"]),
        (True, 2.0, []),
        (False, 1.0, []),
    ],
)
def test_launching_is_a_gpus_idle_time_without_the_time_that_the_profiler_adds(
    gpu, profiler, rules
):
    """Half of a step in which the profiler recorded 6 ms of kernels and 6 ms without; it adds to
    the latter.
    """
    ms = {"matrix units": 6.0, "idle": 6.0}
    rows = [row for name in ("fp32", "amp-bf16") for row in step(name, ms, gpu=gpu)]
    for row in rows:
        if row["name"] == "timed":
            row["value"] /= profiler
    (result,) = explanations(pd.DataFrame(rows).assign(**cell()))
    assert [reason.name for reason in result.reasons if reason.name == "launch-bound"] == rules


def test_the_operators_whose_time_changed_most_come_first_and_one_of_another_name_took_none():
    times_ms = {"fp32": {"aten::addmm": 6.0, "aten::relu": 1.0, "aten::_efficient": 3.0}}
    times_ms["amp-bf16"] = {"aten::addmm": 2.0, "aten::relu": 0.5, "aten::_flash": 1.5}
    rows = []
    for precision, operators in times_ms.items():
        for name, ms in operators.items():
            rows.append(figure(precision, "operator", name, ms, module="head", detail="64x64"))
    changed = plain(extra=rows).changed("operator")
    assert changed.to_numpy().tolist() == [
        ["addmm in head 64x64", 6.0, 2.0, -4.0],
        ["_efficient in head 64x64", 3.0, 0.0, -3.0],
        ["_flash in head 64x64", 0.0, 1.5, 1.5],
        ["relu in head 64x64", 1.0, 0.5, -0.5],
    ]
