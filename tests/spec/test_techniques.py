"""The ablation's steps, their order, their names, and what each adds to."""

from dataclasses import replace

import pytest

from bench.phases.ladder.plan import build_ablation
from bench.planning.plan import Plan
from bench.planning.resolution import memory_trials, resolve

ON_GPU = [
    "fp32",
    "amp-bf16",
    "amp-bf16+set-to-none",
    "amp-bf16+set-to-none+non-blocking",
    "amp-bf16+set-to-none+non-blocking+prefetcher",
]
TOP = ON_GPU[-1]


def names(steps):
    return [step.name for step in steps]


def test_each_ablation_step_adds_to_the_one_before():
    steps, unsupported = build_ablation("amp-bf16", "cuda", ("channels-last", "set-to-none"))
    assert names(steps) == [*ON_GPU, f"{TOP}+channels-last"]
    assert unsupported == []
    assert [step.added for step in steps[:4]] == [
        "fp32",
        "amp-bf16",
        "+ set-to-none",
        "+ non-blocking",
    ]


@pytest.mark.parametrize(
    ("mixed", "supported", "measured", "left_out"),
    [
        ("amp-bf16", True, [*ON_GPU[:3], "amp-bf16+set-to-none+prefetcher"], [ON_GPU[3]]),
        (
            "fp32",
            True,
            ["fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"],
            ["fp32+set-to-none+non-blocking"],
        ),
        (
            "fp8-tensorwise",
            False,
            ["fp32", "fp32+set-to-none", "fp32+set-to-none+prefetcher"],
            ["fp8-tensorwise", "fp32+set-to-none+non-blocking"],
        ),
    ],
)
def test_what_a_cpu_does_not_support_is_left_out_of_later_steps(
    mixed, supported, measured, left_out
):
    steps, unsupported = build_ablation(mixed, "cpu", supported=supported)
    assert names(steps) == measured
    assert names(unsupported) == left_out


def rebased(trial, planned, works):
    """Return the steps whose memory is measured one after the other, where some do not work."""
    memory = [replace(trial, ablation=True, arms=(step,)) for step in planned]
    fits = memory_trials(Plan(trials=tuple(memory)))
    statuses = {}
    steps = []
    for each in memory:
        resolved = resolve(each, fits, statuses)
        (step,) = resolved.arms
        statuses[resolved.id] = {step.name: "ok" if works(step) else "oom"}
        steps.append(step)
    return steps


def test_mixed_precision_that_fails_is_replaced_by_fp32(tiny_trial):
    planned, _ = build_ablation("amp-bf16", "cuda")
    measured = rebased(tiny_trial, planned, lambda step: step.name != "amp-bf16")
    assert names(measured) == [
        "fp32",
        "amp-bf16",
        "fp32+set-to-none",
        "fp32+set-to-none+non-blocking",
        "fp32+set-to-none+non-blocking+prefetcher",
    ]
    without_any = rebased(tiny_trial, planned, lambda step: False)
    assert names(without_any[2:]) == [
        "amp-bf16+set-to-none",
        "amp-bf16+non-blocking",
        "amp-bf16+prefetcher",
    ]
