"""The speed phase: all arms of a cell in one process, timed against each other in quads.

The floor phase is the same with the baseline as both arms.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

from bench.devices.backend import backend_of
from bench.measure.disturbance import open_watch
from bench.measure.energy import total
from bench.measure.operations import observe, pct_of_peak, peak_tflops
from bench.measure.quads import Comparison, LongBlocks, check_long_blocks, compare, lengthen
from bench.measure.warmup import Cut, prepare
from bench.phases.communication import communication_pct
from bench.phases.compiling import compile_s, watched_edge
from bench.phases.context import enter, open_setting, resident_batches
from bench.phases.runner import BATCHES, StepTimes, TorchRunner, step_times
from bench.phases.timed import judge, record, summary, watcher
from bench.results.records import Device, Message, Operations, Progress, Speed, Switches, TrialResult
from bench.spec.precisions import parse_precision
from bench.spec.trial import Trial
from bench.stats import Interval
from bench.training import distributed
from bench.training.amp import read_back
from bench.training.step import build_arm, leave_gradients

TAIL_SHARE = 0.1
"""Share of the time budget that the watching of single steps may take beside it."""
CEILING_S = 0.3
"""Time for finding the rate of large matrix products, for each arm."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ready:
    """An arm that is warm, and whose blocks are cut."""

    runner: TorchRunner
    switches: Switches
    operations: Operations | None
    compile_s: float | None
    cut: Cut


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's precisions against the first of them; send blocks, then a result for each."""
    floor = trial.phase == "floor"
    names = trial.precisions * 2 if floor else trial.precisions
    runners, switches_read = _build(trial, names)
    compiling = [_compile(runner, trial, send) for runner in runners]
    ran = [None if floor else _look(runner) for runner in runners]
    clock = distributed.clock()
    cuts = prepare(runners, trial.protocol.time_budget_s, clock=clock, say=lambda text: send(Progress(text=text)))
    arms = [
        Ready(runner=runner, switches=read, operations=operations, compile_s=spent, cut=cut)
        for runner, read, operations, spent, cut in zip(runners, switches_read, ran, compiling, cuts, strict=True)
    ]
    with open_watch(device, gather=distributed.gathered, rank=distributed.rank()) as disturbance:
        edge = watched_edge(disturbance, trial.cell.placement.members)
        arms, found, checks = _measure(arms, trial, edge, clock, watcher(trial, names, send))
        foreign_pct = disturbance.foreign_load_pct()
    for block in found.blocks:
        send(record(block, trial, floor=floor))
    for index, arm in enumerate(arms):
        if floor and index == 0:
            continue
        status, detail = judge(arm.runner, found, index, checks[index], trial)
        after = _read_after_a_step(arm.runner)
        if status != "nonfinite" and _settings(after) != _settings(arm.switches):
            status = "invalid"
            detail = f"the model changed the fp32 switches from {_settings(arm.switches)} to {_settings(after)}"
        speed = summary(arm.cut, index, found, checks[index], trial)
        shared = None if floor else communication_pct(arm.runner, arm.cut, clock, trial)
        speed = replace(speed, foreign_load_pct=foreign_pct, communication_pct=shared)
        send(
            TrialResult(
                precision=arm.runner.name,
                status=status,
                detail=detail,
                compile_s=arm.compile_s,
                switches=after,
                operations=arm.operations,
                speed=speed if floor else _with_tail(speed, arm, trial, send),
            )
        )


def _measure(
    arms: list[Ready],
    trial: Trial,
    edge: Callable[[], str],
    clock: Callable[[], int],
    watch: Callable[[int, Sequence[Interval | None]], None],
) -> tuple[list[Ready], Comparison, list[LongBlocks | None]]:
    """Compare the arms and check with longer blocks; where these disagree, once more with those."""
    seed = trial.seed * 1000 + trial.replicate
    for attempt in (1, 2):
        runners, sizes = [arm.runner for arm in arms], [arm.cut.sizes for arm in arms]
        found = compare(runners, sizes, trial.protocol, seed=seed, clock=clock, edge=edge, watch=watch)
        checks = check_long_blocks(runners, sizes, found, trial.protocol, seed=seed, clock=clock, edge=edge)
        if attempt == 2 or all(check is None or check.agree for check in checks):
            break
        arms = [replace(arm, cut=replace(arm.cut, sizes=lengthen(arm.cut.sizes))) for arm in arms]
    return arms, found, checks


def _build(trial: Trial, names: Sequence[str]) -> tuple[list[TorchRunner], list[Switches]]:
    """Build every arm, all on the same batches; return them and what their switches read back as."""
    setting = open_setting(trial)
    enter(names[0], setting.device)
    batches = resident_batches(setting, trial, BATCHES)
    runners = [
        TorchRunner(
            name=name,
            arm=build_arm(
                setting.suite,
                setting.data,
                parse_precision(name),
                setting.device,
                seed=trial.seed,
                techniques=setting.techniques,
            ),
            batches=batches,
            asynchronous=backend_of(setting.device).is_gpu,
        )
        for name in names
    ]
    return runners, [enter(name, setting.device)[1] for name in names]


def _compile(runner: TorchRunner, trial: Trial, send: Callable[[Message], None]) -> float | None:
    """Let an arm compile before anything is watched or timed."""
    if not runner.arm.techniques.compile:
        return None
    send(Progress(text=f"{runner.name}: compiling"))
    return compile_s(runner.arm, open_setting(trial).data, trial.cell.batch_size)


def _look(runner: TorchRunner) -> Operations:
    """Look at a step; where several train together, at all their parts of it, without the update of the weights.

    That would set them apart, for gradients are not joined in what is looked at.
    """
    seen = runner.unhidden()
    if distributed.ranks() == 1:
        return observe(partial(seen.run, 1))
    found = observe(partial(leave_gradients, seen.arm, *seen.batches[0]))
    return replace(found, flops_per_step=total(distributed.gathered(found.flops_per_step)))


def _read_after_a_step(runner: TorchRunner) -> Switches:
    """Read the switches back as a step leaves them: a model may have set switches of its own in forward."""
    runner.activate()
    runner.run(1)
    runner.synchronize()
    return read_back(runner.arm.precision, runner.arm.device)


def _settings(switches: Switches) -> str:
    return f"matmul {switches.fp32_matmul}, conv {switches.fp32_conv}"


def _with_tail(speed: Speed, arm: Ready, trial: Trial, send: Callable[[Message], None]) -> Speed:
    """Look at single steps and at the device's own limit, after the timing; of several devices, at their sum."""
    runner = arm.runner
    send(Progress(text=f"{runner.name}: single steps, and the rate of large matrix products"))
    times: StepTimes | None = step_times(runner, TAIL_SHARE * trial.protocol.time_budget_s)
    flops = arm.operations.flops_per_step if arm.operations else None
    peak = total(distributed.gathered(peak_tflops(runner.arm.precision, runner.arm.device, CEILING_S)))
    tflops, share = pct_of_peak(flops, speed.step_ms, peak)
    return replace(
        speed,
        step_p50_ms=times.p50_ms if times else None,
        step_p95_ms=times.p95_ms if times else None,
        host_ratio=times.host_ratio if times else None,
        peak_tflops=peak,
        tflops=tflops,
        pct_of_peak=share,
    )
