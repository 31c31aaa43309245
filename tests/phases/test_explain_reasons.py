"""Why a precision gains: speedups and reasons of made-up figures, one cause at a time."""

import functools

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
    rows = []
    peak_bytes = 0
    for name, module, mib in parts:
        detail = f"{mib}x{MIB // 4} float32"
        part = figure(precision, "held", name, mib * MIB, module=module, detail=detail)
        rows.append(part | {"work": "elementwise"})
        peak_bytes += mib * MIB
    first, module, _ = parts[0]
    rows.append(figure(precision, "peak", first, peak_bytes, module=module))
    return rows


def step(precision, ms, *, gpu=True, profiler=1.0):
    """Return the figures of a step that took so many times as long under the profiler."""
    rows = [
        figure(precision, "step", "timed", sum(ms.values()) / profiler),
        figure(precision, "step", "kernels", 200.0 * gpu),
    ]
    for work in CLASSES:
        rows.append(figure(precision, "class", work, ms.get(work, 0.0)))
    return rows


def explained(rows):
    """Return the explanations of the figures of one cell."""
    cell = dict.fromkeys(CELL, "x")
    cell |= {"placement": "0", "batch_size": 64, "techniques": ""}
    cell |= {"workload": "mlp", "where": "GPU 0"}
    figures = pd.DataFrame(rows).fillna("")
    return explanations(figures.assign(**cell))


def plain(arm=GAINS, base=FP32, *, gpu=False, profiler=1.0, extra=()):
    """Return the explanation of amp-bf16 by the times of both steps, and more figures."""
    steps = step("fp32", base, gpu=gpu, profiler=profiler)
    steps += step("amp-bf16", arm, gpu=gpu, profiler=profiler)
    (explanation,) = explained([*steps, *extra])
    return explanation


def rules(explanation):
    return [reason.name for reason in explanation.reasons]


def test_a_step_that_gains_as_its_operators_do_needs_no_reason():
    explanation = plain()
    assert rules(explanation) == []
    assert explanation.speedup == pytest.approx(100 / 55)


def test_steps_without_time_in_any_class_are_not_explained():
    rows = []
    for precision in ("fp32", "amp-bf16"):
        rows += step(precision, {})
        rows.append(figure(precision, "step", "timed", 10.0))
    assert explained(rows) == []


amp = functools.partial(figure, "amp-bf16")
FFT = amp("operator", "aten::_fft_r2c", 9.0, work="elementwise", module="mixer", dtype="float")
WIDENED = amp("widened", "_to_copy", 2, module="mixer", detail="64x64 float32")
WHOLE = amp("expanded", "_to_copy", 30 * MIB, module="table", detail="64x64x64 bfloat16")
INSIDE = amp("unfolded", "convolution", 90 * MIB, module="video.0", detail="2x16x8x32x32 bfloat16")
PEAK = held("amp-bf16", ("bmm", "table", 100))
CASTS = GAINS | {"casts and layout": 15.0}
WAITING = GAINS | {
    "idle": 20.0,
    "other products": 1.0,
    "matrix units": 24.0,
}
"""As a GPU that could wait for loss scaling, or for something else."""


def memory(fp32_mib, arm_mib):
    """Return the peaks of the memory phase."""
    return [
        figure("fp32", "memory", "", fp32_mib * MIB),
        amp("memory", "", arm_mib * MIB),
    ]


GROWN = [
    *held("fp32", ("bmm", "table", 100)),
    *held("amp-bf16", ("bmm", "table", 40)),
    *memory(10, 60),
]
EXAMPLES = {
    "not finite": {"extra": [amp("nonfinite", "Linear", 1, module="head", detail="forward")]},
    "recomputation": {"extra": [amp("step", "recomputed", 12.0)]},
    "launch-bound": {
        "gpu": True,
        "base": {"other products": 10.0, "idle": 50.0},
        "arm": {"matrix units": 8.0, "idle": 50.0},
    },
    "loss scaling": {"arm": WAITING | {"loss scaling": 6.0}},
    "loss scaling, waits": {"arm": WAITING, "extra": [amp("step", "scaling wait", 6.0)]},
    "no gain from products": {"arm": FP32},
    "no matrix units": {"gpu": True},
    "memory-bound": {
        "base": {"other products": 20.0, "elementwise": 70.0, "idle": 10.0},
        "arm": {"other products": 8.0, "elementwise": 35.0, "idle": 10.0},
    },
    "casts": {"arm": CASTS},
    "left in fp32": {"extra": [FFT, WIDENED]},
    "expanded": {"extra": [WHOLE, *PEAK]},
    "workspace": {"extra": [INSIDE, *PEAK]},
    "communication": {
        "base": FP32 | {"communication": 30.0},
        "arm": GAINS | {"communication": 30.0},
    },
    "outside tensors": {"extra": GROWN},
    "optimizer-bound": {
        "base": FP32 | {"optimizer": 40.0},
        "arm": GAINS | {"optimizer": 40.0},
    },
    "skipped steps": {"extra": [amp("step", "skipped", 20.0)]},
    "copies": {
        "base": FP32 | {"copies": 20.0},
        "arm": GAINS | {"copies": 20.0},
    },
    "loader": {"extra": [amp("step", "waiting", 30.0)]},
    "unknown": {"arm": GAINS | {"unknown": 20.0}},
}


@pytest.mark.parametrize("cause", EXAMPLES)
def test_each_rule_fires_on_its_cause_and_no_other_does(cause):
    rule = cause.partition(",")[0]
    assert rules(plain(**EXAMPLES[cause])) == [rule]


product = functools.partial(amp, "operator", "aten::mm", work="other products")
MISSED = product(8.0, module="body.3", dtype="float")  # whatever is around it
ODD = product(20.0, module="head", detail="513x64 64x513")
AGAIN = amp("repeated", "_to_copy", 4, module="head", detail="64x64 bfloat16")


@pytest.mark.parametrize(
    ("rule", "figures", "named"),
    [
        ("not finite", EXAMPLES["not finite"], "Linear in head forward"),
        ("left in fp32", EXAMPLES["left in fp32"], "_fft_r2c in mixer (9.0 ms)"),
        ("left in fp32", {"extra": [MISSED]}, "mm in body.3 (8.0 ms)"),
        ("outside tensors", {"extra": GROWN}, "from 10 to 60 MiB, and 50 MiB of that"),
        ("outside tensors", {"extra": GROWN}, "bmm in table"),
        ("expanded", EXAMPLES["expanded"], "_to_copy in table 64x64x64 bfloat16 (30.0 MiB)"),
        ("workspace", EXAMPLES["workspace"], "convolution in video.0"),
        (
            "casts",
            {"arm": CASTS, "extra": [AGAIN]},
            "_to_copy in head 64x64 bfloat16 (4 times)",
        ),
        (
            "no matrix units",
            {"gpu": True, "extra": [ODD]},
            "mm in head with a size of 513, no multiple of 8 (20 ms)",
        ),
    ],
)
def test_a_reason_names_the_module(rule, figures, named):
    (reason,) = plain(**figures).reasons
    assert reason.name == rule
    assert named in reason.sentence


TENSORS = [
    *held("fp32", ("bmm", "table", 40)),
    *held("amp-bf16", ("bmm", "table", 100)),
]


@pytest.mark.parametrize(
    "extra",
    [
        pytest.param([FFT], id="never narrower"),
        pytest.param([FFT, WIDENED | {"module": "other"}], id="narrower elsewhere"),
        pytest.param([WHOLE, *PEAK, WHOLE | {"precision": "fp32"}], id="a copy in fp32 too"),
        pytest.param([INSIDE, *PEAK, INSIDE | {"precision": "fp32"}], id="a workspace in fp32 too"),
        pytest.param([*TENSORS, *memory(40, 30)], id="memory that falls"),
        pytest.param([*TENSORS, *memory(100, 160)], id="memory that grows as tensors do"),
        pytest.param([*TENSORS, amp("memory", "", 160 * MIB)], id="memory not measured in fp32"),
    ],
)
def test_what_holds_nothing_back_is_no_reason(extra):
    assert rules(plain(extra=extra)) == []


def test_idle_time_counts_for_loss_scaling_only_as_far_as_the_gpu_waits_for_it():
    waits = [amp("step", "scaling wait", 0.5)]
    assert rules(plain(WAITING | {"loss scaling": 0.5}, extra=waits)) == []


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
    explanation = plain(**EXAMPLES["launch-bound"], extra=extra)
    explanation.cell["placement"] = placement
    assert explanation.techniques == techniques


@pytest.mark.parametrize(
    ("gpu", "profiler", "is_bound"),
    [
        (True, 1.0, True),
        (True, 1.2, True),
        (True, 2.0, False),
        (False, 1.0, False),
    ],
)
def test_launching_is_a_gpus_idle_time_without_the_time_that_the_profiler_adds(
    gpu, profiler, is_bound
):
    """Half of a step in which the profiler recorded 6 ms of kernels and 6 ms without; it adds to
    the latter.
    """
    ms = {"matrix units": 6.0, "idle": 6.0}
    explanation = plain(ms, ms, gpu=gpu, profiler=profiler)
    assert ("launch-bound" in rules(explanation)) == is_bound


def test_the_operators_whose_time_changed_most_come_first_and_one_of_another_name_took_none():
    rows = []
    for precision, name, ms in (
        ("fp32", "addmm", 6.0),
        ("fp32", "relu", 1.0),
        ("fp32", "_efficient", 3.0),
        ("amp-bf16", "addmm", 2.0),
        ("amp-bf16", "relu", 0.5),
        ("amp-bf16", "_flash", 1.5),
    ):
        place = {"module": "head", "detail": "64x64"}
        rows.append(figure(precision, "operator", f"aten::{name}", ms, **place))
    changed = plain(extra=rows).changed("operator")
    assert changed.to_numpy().tolist() == [
        ["addmm in head 64x64", 6.0, 2.0, -4.0],
        ["_efficient in head 64x64", 3.0, 0.0, -3.0],
        ["_flash in head 64x64", 0.0, 1.5, 1.5],
        ["relu in head 64x64", 1.0, 0.5, -0.5],
    ]
