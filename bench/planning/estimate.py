"""How long a trial may take, guessed before anything has run."""

from __future__ import annotations

from bench.planning.defaults import PreparedData, slower, unsupported_reason
from bench.results.records import Device
from bench.spec.ablation import parse_step
from bench.spec.phases import PHASES, Work
from bench.spec.suite import Suite
from bench.spec.techniques import refusal
from bench.spec.trial import Trial

EFFICIENCY = {"cpu": 0.8, "cuda": 0.4}
"""Share of a matrix product's fp32 rate that a training step is guessed to reach, by kind of device."""
TRIAL_OVERHEAD_S = 2.0
JOINING_S = 5.0
"""Of processes that train together, which are no forks: each imports torch by itself."""


def estimate_s(
    trial: Trial, suite: Suite, data: PreparedData, device: Device, flops_per_sample: float | None
) -> float | None:
    """Guess how long a trial takes, from its FLOPs and the rate of a short fp32 matrix product here.

    Every precision is guessed to be as slow as fp32, but for one that is emulated.
    """
    rungs = [parse_step(name) for name in trial.precisions]
    names, many = [rung.precision for rung in rungs], len(trial.cell.placement.members)
    if all(
        unsupported_reason(device, rung.precision)
        or refusal((*trial.cell.techniques, *rung.techniques), device.kind, trial.phase, many)
        for rung in rungs
    ):
        return 0.0
    estimate = PHASES[trial.phase].estimate
    if estimate is None or flops_per_sample is None or not device.fp32_gflops:
        return None
    start_s = TRIAL_OVERHEAD_S + (JOINING_S if many > 1 else 0.0)
    rates = [(device.bf16_gflops or 0.0) if slower(device, name) else device.fp32_gflops for name in names]
    step_s = flops_per_sample * trial.cell.batch_size / (EFFICIENCY[device.kind] * min(rates) * 1e9)
    samples = data.train_samples
    work = Work(
        step_s=step_s,
        arms=len(trial.precisions),
        steps_per_epoch=suite.data.steps_per_epoch if samples is None else samples // trial.cell.batch_size,
        epochs=trial.epochs,
        budget_s=trial.protocol.time_budget_s,
        fewest_quads=trial.protocol.fewest_quads,
    )
    return start_s + estimate(work)
