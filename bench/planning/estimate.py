"""How long a trial may take, guessed before anything has run."""

from __future__ import annotations

from bench.planning.defaults import PreparedData, slower, unsupported_reason
from bench.results.records import Device
from bench.spec.ablation import parse_rung
from bench.spec.suite import Suite
from bench.spec.techniques import refusal
from bench.spec.trial import Trial

EFFICIENCY = {"cpu": 0.8, "cuda": 0.4}
"""Share of a matrix product's fp32 rate that a training step is guessed to reach, by kind of device."""
TRIAL_OVERHEAD_S = 2.0
JOINING_S = 5.0
"""Of processes that train together, which are no forks: each imports torch by itself."""
NUMERICS_STEPS = 80
"""About as many steps as a numerics trial takes, those in float64 and the looks at gradients counted in."""
CONTINUOUS_STEPS = 15
"""Of a rung of the ladder, to see whether it waits for the loader."""
ENERGY_S = 10.0
"""An energy trial's idle time and its steps."""


def estimate_s(
    trial: Trial, suite: Suite, data: PreparedData, device: Device, flops_per_sample: float | None
) -> float | None:
    """Guess how long a trial takes, from its FLOPs and the rate of a short fp32 matrix product here.

    Every precision is guessed to be as slow as fp32, but for one that is emulated.
    """
    rungs = [parse_rung(name) for name in trial.precisions]
    names, many = [rung.precision for rung in rungs], len(trial.cell.placement.members)
    if all(
        unsupported_reason(device, rung.precision)
        or refusal((*trial.cell.techniques, *rung.techniques), device.kind, trial.phase, many)
        for rung in rungs
    ):
        return 0.0
    if trial.phase == "fit" or flops_per_sample is None or not device.fp32_gflops:
        return None
    start_s = TRIAL_OVERHEAD_S + (JOINING_S if many > 1 else 0.0)
    rates = [(device.bf16_gflops or 0.0) if slower(device, name) else device.fp32_gflops for name in names]
    step_s = flops_per_sample * trial.cell.batch_size / (EFFICIENCY[device.kind] * min(rates) * 1e9)
    work_s = {
        "memory": 4 * step_s,
        "ladder_memory": 4 * step_s,
        "energy": ENERGY_S + 4 * step_s,
        "numerics": NUMERICS_STEPS * step_s,
        "inference": 2 * (max(5 * step_s, 1.0) + trial.protocol.time_budget_s),
    }
    if trial.phase in work_s:
        return start_s + work_s[trial.phase]
    if trial.phase in ("floor", "speed", "ladder"):
        arms = 2 if trial.phase == "floor" else len(trial.precisions)
        warm_up_s = arms * max(5 * step_s, 1.0)
        if trial.phase == "ladder":
            warm_up_s += arms * CONTINUOUS_STEPS * step_s
        shortest_s = trial.protocol.fewest_quads * 2 * 1.7 * step_s * arms
        return start_s + warm_up_s + max(shortest_s, arms * trial.protocol.time_budget_s)
    steps = suite.data.steps_per_epoch if data.train_samples is None else data.train_samples // trial.cell.batch_size
    return start_s + trial.epochs * steps * step_s * 1.1
