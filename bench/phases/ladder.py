"""The ladder phase: all rungs in one process, fed by a real loader, timed against each other in quads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Any

from bench.data.loader import DEPTH, batch_ms, steps_per_epoch
from bench.devices.backend import backend_of
from bench.measure.disturbance import open_watch
from bench.measure.quads import compare
from bench.measure.warmup import Cut, prepare
from bench.phases.climbing import RungRunner, Waiting, build_rung
from bench.phases.compiling import Recompilations, compile_s
from bench.phases.context import Setting, enter, open_setting
from bench.phases.feeding import Kind, kind_of, on_device, open_loaders
from bench.phases.timed import judge, record, summary, watcher
from bench.results.records import AblationResult, Device, Message, Progress, TrialResult
from bench.spec.ablation import AblationStep, rebase
from bench.spec.trial import Trial
from bench.training.amp import read_back
from bench.training.cuda_graphs import WARM_UP
from bench.training.techniques import refused

LOADER_BATCHES = 8
"""Batches over which the loader alone is timed."""
TAIL_SHARE = 0.1
"""Share of the time budget that looking for the host's share of a step may take beside it, for each rung."""
LIMITED = 0.1
"""Where the host waits for batches not made yet for this share of a continuous run, the loader is the limit."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A rung that works."""

    rung: AblationStep
    runner: RungRunner
    compile_s: float | None


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's rungs that work against the first of them; send blocks, then a result for each."""
    rungs = list(trial.arms)
    setting = open_setting(trial)
    with open_loaders(setting, trial, rungs) as (loaders, samples), ExitStack() as stack:
        send(Progress(text="the loader alone"))
        alone = {kind: batch_ms(loader, LOADER_BATCHES) for kind, loader in loaders.items()}
        built = _build(setting, trial, rungs, loaders, send=send, stack=stack)
        rungs, runners = [one.rung for one in built], [one.runner for one in built]
        trial = replace(trial, arms=tuple(rungs))
        read = [enter(rung.precision, setting.device)[1] for rung in rungs]
        cuts = prepare(runners, trial.protocol.time_budget_s, say=lambda text: send(Progress(text=text)))
        send(Progress(text="waiting for the loader"))
        rests_s = [DEPTH * alone[kind_of(rung)] / 1000 for rung in rungs]
        limited = [runner.steady_wait(rest) >= LIMITED for runner, rest in zip(runners, rests_s, strict=True)]
        cuts = _paced(cuts, limited)
        for runner in runners:
            runner.activate()
            runner.timed = Waiting()
        recompilations = Recompilations()
        with open_watch(device) as disturbance:

            def edge() -> str:
                causes = disturbance.edge(), recompilations.cause()  # both look, whatever the other says
                return "; ".join(cause for cause in causes if cause)

            found = compare(
                runners,
                [cut.sizes for cut in cuts],
                trial.protocol,
                seed=trial.seed * 1000 + trial.replicate,
                edge=edge,
                watch=watcher(trial, trial.precisions, send),
            )
            foreign_pct = disturbance.foreign_load_pct()
        waits = [100 * runner.timed.plus(runner.last).share for runner in runners]
        ratios = [_host_ratio(runner, trial) for runner in runners]
    for block in found.blocks:
        send(record(block, trial))
    for index, (rung, runner, cut) in enumerate(zip(rungs, runners, cuts, strict=True)):
        status, detail = judge(runner, found, index, None, trial)
        speed = summary(cut, index, found, None, trial)
        speed = replace(speed, foreign_load_pct=foreign_pct, host_ratio=ratios[index])
        send(
            TrialResult(
                precision=rung.name,
                status=status,
                detail=detail,
                switches=replace(read[index], **_after(runner)),
                compile_s=built[index].compile_s,
                speed=speed,
                ablation=AblationResult(
                    ablation_step=rung.number,
                    loader_ms=alone[kind_of(rung)],
                    wait_pct=waits[index],
                    steps_per_epoch=steps_per_epoch(setting.data, trial.cell.data, trial.cell.batch_size, samples),
                    loader_limited=limited[index],
                ),
            )
        )


def _after(runner: RungRunner) -> dict[str, Any]:
    """Return what the switches read back as after the timing, where a model may have changed them."""
    runner.activate()
    after = read_back(runner.arm.precision, runner.arm.device)
    return {name: getattr(after, name) for name in ("fp32_matmul", "fp32_conv")}


def _build(
    setting: Setting,
    trial: Trial,
    planned: list[AblationStep],
    loaders: Mapping[Kind, Iterator[Any]],
    *,
    send: Callable[[Message], None],
    stack: ExitStack,
) -> list[Built]:
    """Build the rungs one by one; one that cannot be is sent as such, and the next stands on the last that can.

    Raises:
        UnsupportedError: none can.
    """
    built: dict[str, Built] = {}
    refusal: Exception | None = None
    for rung in rebase(planned, lambda rung: rung.name in built):
        try:
            built[rung.name] = _built(setting, trial, rung, loaders[kind_of(rung)], send=send, stack=stack)
        except Exception as error:
            if (why := refused(error)) is None:
                raise
            refusal = error
            send(TrialResult(precision=rung.name, status="unsupported", detail=why))
    if not built and refusal:
        raise refusal
    return list(built.values())


def _built(
    setting: Setting,
    trial: Trial,
    rung: AblationStep,
    loader: Iterator[Any],
    *,
    send: Callable[[Message], None],
    stack: ExitStack,
) -> Built:
    """Build a rung and, where it compiles or captures, let it do so: only then is it known to work."""
    arm = build_rung(setting, trial, rung)
    if rung.settings.hidden:
        send(Progress(text=f"{rung.name}: compiling or capturing the step"))
    spent = compile_s(arm, setting.data, trial.cell.batch_size)
    batches = on_device(arm, setting.data, loader)
    runner = RungRunner(name=rung.name, arm=arm, batches=batches, asynchronous=backend_of(setting.device).is_gpu)
    stack.callback(runner.close)
    if rung.settings.cuda_graphs:
        runner.activate()
        runner.run(WARM_UP + 1)
        runner.synchronize()
    return Built(rung=rung, runner=runner, compile_s=spent)


def _host_ratio(runner: RungRunner, trial: Trial) -> float | None:
    runner.activate()
    return runner.host_ratio(TAIL_SHARE * trial.protocol.time_budget_s)


def _paced(cuts: Sequence[Cut], limited: Sequence[bool]) -> list[Cut]:
    """Cut blocks so that a rung that the loader limits is timed at the loader's pace.

    It uses up what was made ready while others ran before it is timed, and is timed over as many batches again. It
    leaves none ready for the rungs after it, which therefore settle for as long.
    """
    if not any(limited):
        return list(cuts)
    paced = []
    for cut, late in zip(cuts, limited, strict=True):
        steps = max(cut.sizes.steps, DEPTH) if late else cut.sizes.steps
        sizes = replace(cut.sizes, settle=max(cut.sizes.settle, DEPTH), steps=steps)
        paced.append(replace(cut, sizes=sizes))
    return paced
