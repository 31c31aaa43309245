"""How long a trial takes, and how long its process may say nothing."""

from __future__ import annotations

from dataclasses import replace

from bench.planning.abilities import is_emulated, refusal_reason
from bench.planning.prepared_suite import PreparedSuite
from bench.results.records import Device
from bench.spec.phase import Work
from bench.spec.phases import PHASES
from bench.spec.precisions import parse_precision
from bench.spec.request import Request
from bench.spec.trial import JOINT_S, SEARCHING_S, SILENCE_S, Trial

# Share of a matrix product's rate that a training step is assumed to reach.
CPU_EFFICIENCY = 0.6
GPU_EFFICIENCY = 0.4
# Time of a step without its products, on a CPU.
STEP_OVERHEAD_S = 0.005
# Time of a trial's process until its first step: a GPU's context and libraries are loaded in each.
CPU_START_S = 0.5
GPU_START_S = 3.0
# The same on top for processes that train together: they wait for each other, and libraries open
# their connections.
DISTRIBUTED_START_S = 5.0
# Time to read a run's rows and to draw its report.
REPORT_S = 4.0
# Steps of an arm between two messages, which follow a round: that has two blocks of an arm, each
# with at most 12 untimed steps (``SWITCH_STEPS`` in bench/measure/warmup.py), and few others where
# steps are long.
SILENT_STEPS = 24


def with_estimates(
    trial: Trial,
    request: Request,
    prepared: PreparedSuite,
    device: Device,
) -> Trial:
    """Return a planned trial with its estimated time and its limit on silence."""
    step_s = estimated_step_s(trial, device, prepared.flops_per_sample)
    return replace(
        trial,
        estimate_s=_estimate_s(trial, prepared, device, step_s),
        silence_s=_silence_s(trial, request, step_s),
    )


def _estimate_s(
    trial: Trial,
    prepared: PreparedSuite,
    device: Device,
    step_s: float | None,
) -> float | None:
    """Return a trial's estimated seconds, from those of a step. None is unknown."""
    if trial.unfit or refusal_reason(trial, device):
        return 0.0
    estimate = PHASES[trial.phase].estimate
    if estimate is None or step_s is None:
        return None
    steps_per_epoch = prepared.suite.data.steps_per_epoch
    if prepared.data.train_samples is not None:
        steps_per_epoch = prepared.data.train_samples // trial.cell.batch_size
    work = Work(
        step_s=step_s,
        arms=len(trial.arms),
        steps_per_epoch=steps_per_epoch,
        epochs=trial.epochs,
        budget_s=trial.protocol.process_s,
        fewest_rounds=trial.protocol.fewest_rounds,
    )
    start_s = GPU_START_S if device.is_gpu else CPU_START_S
    if len(trial.cell.placement.members) > 1:
        start_s += DISTRIBUTED_START_S
    return start_s + estimate(work)


def estimated_step_s(
    trial: Trial,
    device: Device,
    flops_per_sample: float | None,
) -> float | None:
    """Return the estimated seconds of a training step of the trial's arms; None is unknown.

    They follow from the step's FLOPs and the rate of a short matrix product here: every precision
    is assumed to be as slow as fp32, except bfloat16 that is emulated, whose rate was measured.
    Nothing tells how long a CPU's float16 takes.
    """
    gflops = device.fp32_gflops
    for arm in trial.arms:
        precision = parse_precision(arm.precision)
        if not device.is_gpu and precision.compute == "float16":
            return None
        if is_emulated(device, precision.name):
            gflops = device.bf16_gflops
    if flops_per_sample is None or not gflops:
        return None
    flops = flops_per_sample * trial.cell.batch_size
    if device.is_gpu:
        return flops / (GPU_EFFICIENCY * gflops * 1e9)
    return STEP_OVERHEAD_S + flops / (CPU_EFFICIENCY * gflops * 1e9)


def _silence_s(trial: Trial, request: Request, step_s: float | None) -> float:
    """Return how long a trial's process may say nothing before it is taken to hang, in seconds.

    It is ten times the longest silence that is expected, which is a round of its arms where steps
    are long, and not less than ``SILENCE_S``, or ``JOINT_S`` of devices that train together. The
    search for the largest batch has a limit of its own, whatever ``--trial-timeout`` says.
    """
    if PHASES[trial.phase].searches:
        return SEARCHING_S
    if request.trial_timeout_s is not None:
        return request.trial_timeout_s
    least_s = SILENCE_S
    if len(trial.cell.placement.members) > 1:
        least_s = JOINT_S
    if step_s is None:
        return least_s
    return max(10 * SILENT_STEPS * len(trial.arms) * step_s, least_s)
