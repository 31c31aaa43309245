"""How long a trial takes, and how long its process may say nothing."""

from __future__ import annotations

from bench.planning.abilities import is_emulated, refusal_reason
from bench.results.records import Device
from bench.spec.data_source import PreparedData
from bench.spec.phase import Work
from bench.spec.phases import PHASES
from bench.spec.precisions import parse_precision
from bench.spec.request import Request
from bench.spec.suite import Suite
from bench.spec.trial import JOINT_S, SEARCHING_S, SILENCE_S, Trial

# Share of a matrix product's rate that a training step is assumed to reach.
CPU_EFFICIENCY, GPU_EFFICIENCY = 0.6, 0.4
# Time of a step without its products, on a CPU.
STEP_OVERHEAD_S = 0.005
# Time of a trial's process until its first step: a GPU's context and libraries are loaded in each.
CPU_START_S, GPU_START_S = 0.5, 3.0
# The same on top for processes that train together: they wait for each other, and libraries open
# their connections.
DISTRIBUTED_START_S = 5.0
# Time to read a run's rows and to draw its report.
REPORT_S = 4.0
# Steps of an arm between two messages: two of the longest blocks, with their switch warm-up.
SILENT_STEPS = 24


def estimate_s(
    trial: Trial, suite: Suite, data: PreparedData, device: Device, step: float | None
) -> float | None:
    """Return a trial's estimated seconds, from those of a step (``step_s``). None is unknown."""
    if trial.unfit or refusal_reason(trial, device):
        return 0.0
    estimate = PHASES[trial.phase].estimate
    if estimate is None or step is None:
        return None
    steps = suite.data.steps_per_epoch
    if data.train_samples is not None:
        steps = data.train_samples // trial.cell.batch_size
    work = Work(
        step_s=step,
        arms=len(trial.arms),
        steps_per_epoch=steps,
        epochs=trial.epochs,
        budget_s=trial.protocol.process_s,
        fewest_rounds=trial.protocol.fewest_rounds,
    )
    start_s = GPU_START_S if device.is_gpu else CPU_START_S
    if len(trial.cell.placement.members) > 1:
        start_s += DISTRIBUTED_START_S
    return start_s + estimate(work)


def step_s(trial: Trial, device: Device, flops_per_sample: float | None) -> float | None:
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


def silence_s(trial: Trial, request: Request, step: float | None) -> float:
    """Return how long a trial's process may say nothing before it is taken to hang, in seconds.

    Ten times the longest silence that is expected, which is a round of its arms where steps are
    long; and not less than ``SILENCE_S``, or than the limits of the search for the largest batch
    and of devices that train together.
    """
    if PHASES[trial.phase].searches:
        return SEARCHING_S
    if request.trial_timeout_s is not None:
        return request.trial_timeout_s
    round_s = SILENT_STEPS * len(trial.arms) * (step or 0.0)
    return max(10 * round_s, JOINT_S if len(trial.cell.placement.members) > 1 else SILENCE_S)
