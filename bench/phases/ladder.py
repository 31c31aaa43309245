"""The ladder phase: the ablation's steps in one process, fed by a real loader, timed against each other."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from bench.data.loader import DEPTH, batch_ms, steps_per_epoch
from bench.measure.warmup import Cut
from bench.phases.arms import (
    Context,
    TrainingRunner,
    changed_switches,
    compile_s,
    compute_dtypes,
    enter,
    judge_types,
    open_context,
    step_times,
    switches_after_a_step,
)
from bench.phases.input_pipeline import InputPipeline, LoaderKind, LoaderRunner, open_loaders
from bench.phases.paired import measure
from bench.results.records import AblationResult, Device, Message, Progress, TrialResult
from bench.spec.techniques import AblationStep, rebase
from bench.spec.trial import COMPILING_S, Trial
from bench.training.techniques import WARM_UP, refused

LOADER_BATCHES = 8
"""Batches over which the loader alone is timed."""
TAIL_SHARE = 0.1
"""Time for measuring an arm's host ratio, as a share of the time budget, which does not include it."""
LIMITED = 0.1
"""A step is limited by the loader if the host waits this share of a continuous run for batches not yet ready."""


@dataclass(frozen=True, kw_only=True, slots=True)
class LadderArm:
    """An ablation step that is supported here, built."""

    step: AblationStep
    runner: LoaderRunner
    compile_s: float | None


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's supported ablation steps against the first of them; send the blocks, then a result for each."""
    planned, context = trial.arms, open_context(trial)
    with open_loaders(context, planned) as (loaders, samples), ExitStack() as stack:
        send(Progress(text="timing the loader alone"))
        loader_ms = {kind: batch_ms(loader, LOADER_BATCHES) for kind, loader in loaders.items()}
        arms = _build(context, planned, loaders, send=send, stack=stack)
        runners = [arm.runner for arm in arms]
        set_to = [enter(arm.step.precision, context.device)[1] for arm in arms]
        limited: list[bool] = []

        def recut(cuts: list[Cut]) -> list[Cut]:
            send(Progress(text="measuring the waits for the loader"))
            rests_s = [DEPTH * loader_ms[LoaderKind.of(arm.step)] / 1000 for arm in arms]
            limited.extend(
                runner.steady_wait(rest_s) >= LIMITED for runner, rest_s in zip(runners, rests_s, strict=True)
            )
            for runner in runners:
                runner.activate()
                runner.wait_ns = 0
            return paced(cuts, limited)

        seed = trial.seed * 1000 + trial.replicate
        paired = measure(trial, runners, device, send, seed=seed, recut=recut, known=trial.known)
        waits_ns = [runner.wait_ns + runner.last_wait_ns for runner in runners]
        ratios = [_host_ratio(runner, TAIL_SHARE * trial.protocol.process_s) for runner in runners]
        switches = [switches_after_a_step(runner) for runner in runners]
        computed = [compute_dtypes(runner) for runner in runners]
    for block in paired.blocks():
        send(block)
    for index, arm in enumerate(arms):
        status, detail = paired.judge(index)
        if status != "nonfinite" and (change := changed_switches(set_to[index], switches[index])):
            status, detail = "invalid", change
        status, detail = judge_types(arm.runner.arm.precision, computed[index], status, detail)
        timed_ns = sum(block.time_ns for block in paired.comparison.blocks if block.arm == index)
        send(
            TrialResult(
                precision=arm.step.name,
                status=status,
                detail=detail,
                switches=switches[index],
                compile_s=arm.compile_s,
                speed=replace(paired.speed(index), host_ratio=ratios[index]),
                ablation=AblationResult(
                    ablation_step=arm.step.number,
                    loader_ms=loader_ms[LoaderKind.of(arm.step)],
                    wait_pct=100 * waits_ns[index] / timed_ns,
                    steps_per_epoch=steps_per_epoch(context.data, trial.cell.data, trial.cell.batch_size, samples),
                    loader_limited=limited[index],
                ),
            )
        )


def _build(
    context: Context,
    planned: Sequence[AblationStep],
    loaders: Mapping[LoaderKind, Iterator[Any]],
    *,
    send: Callable[[Message], None],
    stack: ExitStack,
) -> list[LadderArm]:
    """Build the ablation steps in order; report a refused one as unsupported, and rebase later ones without it.

    Raises:
        Exception: all steps are refused; the last refusal is raised.
    """
    arms: dict[str, LadderArm] = {}
    refusal: Exception | None = None
    for step in rebase(planned, lambda step: step.name in arms):
        try:
            arms[step.name] = _build_arm(context, step, loaders[LoaderKind.of(step)], send=send, stack=stack)
        except Exception as error:
            if (why := refused(error)) is None:
                raise
            refusal = error
            send(TrialResult(precision=step.name, status="unsupported", detail=why))
    if not arms and refusal:
        raise refusal
    return list(arms.values())


def _build_arm(
    context: Context,
    step: AblationStep,
    loader: Iterator[Any],
    *,
    send: Callable[[Message], None],
    stack: ExitStack,
) -> LadderArm:
    """Build an ablation step, and compile or capture it if it does so, which may show that it is unsupported."""
    arm = context.build_step(step)
    if step.settings.hidden:
        send(Progress(text=f"{step.name}: compiling or capturing the step", silence_s=COMPILING_S))
    spent_s = compile_s(arm, context.data, context.trial.cell.batch_size)
    batches = InputPipeline(arm, context.data, loader)
    stack.callback(batches.close)
    runner = LoaderRunner(step.name, arm, batches)
    if step.settings.cuda_graphs:
        runner.activate()
        runner.run(WARM_UP + 1)
        runner.synchronize()
    return LadderArm(step=step, runner=runner, compile_s=spent_s)


def paced(cuts: Sequence[Cut], limited: Sequence[bool]) -> list[Cut]:
    """Return cuts with which an arm that the loader limits is timed at the loader's pace.

    Its switch warm-up uses up the batches that were loaded while other arms ran, and its timed steps are at least as
    many. It leaves no batches ready for the arms after it, so the switch warm-up of all arms is as long.
    """
    if not any(limited):
        return list(cuts)
    recut = []
    for cut, is_limited in zip(cuts, limited, strict=True):
        steps = max(cut.sizes.steps, DEPTH) if is_limited else cut.sizes.steps
        sizes = replace(cut.sizes, switch_warmup=max(cut.sizes.switch_warmup, DEPTH), steps=steps)
        recut.append(replace(cut, sizes=sizes))
    return recut


def _host_ratio(runner: LoaderRunner, budget_s: float) -> float | None:
    """Return the host's time to queue a step over the step's time on the device, on a batch already there."""
    if not runner.asynchronous:
        return None
    runner.activate()
    batch = next(runner.batches)  # only one: more might not fit into memory
    times = step_times(TrainingRunner(runner.name, runner.arm, itertools.repeat(batch)), budget_s)
    return times.host_ratio if times else None
