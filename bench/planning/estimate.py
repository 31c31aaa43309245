"""How long a trial may take, estimated before anything has run."""

from __future__ import annotations

from bench.planning.defaults import PreparedData, is_emulated, refusal_reason
from bench.results.records import Device
from bench.spec.phases import PHASES, Work
from bench.spec.suite import Suite
from bench.spec.trial import Trial

EFFICIENCY = {"cpu": 0.8, "cuda": 0.4}
"""Share of a matrix product's fp32 rate that a training step is assumed to reach, by kind of device."""
TRIAL_OVERHEAD_S = 2.0
DISTRIBUTED_OVERHEAD_S = 5.0
"""Processes that train together are no forks: each imports torch itself."""


def estimate_s(
    trial: Trial, suite: Suite, data: PreparedData, device: Device, flops_per_sample: float | None
) -> float | None:
    """Return a trial's estimated seconds, from its FLOPs and the rate of a short fp32 matrix product here.

    Every precision is assumed to be as slow as fp32, except emulated ones, whose rate was measured. None is unknown.
    """
    if refusal_reason(trial, device):
        return 0.0
    estimate = PHASES[trial.phase].estimate
    if estimate is None or flops_per_sample is None or not device.fp32_gflops:
        return None
    emulated = any(is_emulated(device, arm.precision) for arm in trial.arms)
    gflops = (device.bf16_gflops or 0.0) if emulated else device.fp32_gflops
    samples = data.train_samples
    work = Work(
        step_s=flops_per_sample * trial.cell.batch_size / (EFFICIENCY[device.kind] * gflops * 1e9),
        arms=len(trial.arms),
        steps_per_epoch=suite.data.steps_per_epoch if samples is None else samples // trial.cell.batch_size,
        epochs=trial.epochs,
        budget_s=trial.protocol.time_budget_s,
        fewest_quads=trial.protocol.fewest_quads,
    )
    several = len(trial.cell.placement.members) > 1
    return TRIAL_OVERHEAD_S + (DISTRIBUTED_OVERHEAD_S if several else 0.0) + estimate(work)
