"""The ladder phase: all rungs in one process, fed by a real loader, timed against each other in quads."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, replace
from typing import Any

from bench.data.workers import DEPTH, Turns, batch_ms, open_loader, open_samples, steps_per_epoch
from bench.findings import Climb
from bench.graphs import WARM_UP
from bench.measure.disturbance import open_watch
from bench.measure.quads import compare
from bench.measure.warmup import Cut, prepare
from bench.phases.climbing import RungRunner, build_rung, on_device
from bench.phases.compiling import Recompilations, compile_s
from bench.phases.setting import Setting, enter, open_setting
from bench.phases.timed import judge, record, summary, watcher
from bench.precision import read_back
from bench.records import Device, Message, Progress, TrialResult
from bench.rungs import Rung, parse_rung, stacked
from bench.techniques import refused
from bench.trial import Trial

LOADER_BATCHES = 8
"""Batches over which the loader alone is timed."""
TAIL_SHARE = 0.1
"""Share of the time budget that looking for the host's share of a step may take beside it, for each rung."""
LIMITED = 0.8
"""Where the loader alone takes this share of a step or more, its queue runs empty: it is what limits the rung."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Built:
    """A rung that works."""

    rung: Rung
    runner: RungRunner
    compile_s: float | None


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's rungs that work against the first of them; send blocks, then a result for each."""
    rungs = [parse_rung(name) for name in trial.precisions]
    setting = open_setting(trial)
    with _loaders(setting, trial, rungs) as loaders, ExitStack() as stack:
        send(Progress(text="the loader alone"))
        alone = {kind: batch_ms(loader, LOADER_BATCHES) for kind, loader in loaders.items()}
        built = _build(setting, trial, rungs, loaders, send=send, stack=stack)
        rungs, runners = [one.rung for one in built], [one.runner for one in built]
        trial = replace(trial, precisions=tuple(rung.name for rung in rungs))
        read = [enter(rung.precision, setting.device)[1] for rung in rungs]
        cuts = prepare(runners, trial.protocol.time_budget_s, say=lambda text: send(Progress(text=text)))
        cuts = [_settled(cut, alone[_kind(rung)]) for cut, rung in zip(cuts, rungs, strict=True)]
        for runner in runners:
            runner.wait_ns = runner.run_ns = 0
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
        waits = [100 * runner.wait_ns / runner.run_ns for runner in runners]
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
                climb=Climb(
                    rung=rung.number,
                    loader_ms=alone[_kind(rung)],
                    wait_pct=waits[index],
                    steps_per_epoch=steps_per_epoch(setting.data, trial.cell.data, trial.cell.batch_size),
                    loader_limited=alone[_kind(rung)] >= LIMITED * (speed.step_ms or 0.0),
                ),
            )
        )


def _after(runner: RungRunner) -> dict[str, Any]:
    """Return what the switches read back as after the timing, where a model may have changed them."""
    runner.activate()
    after = read_back(runner.arm.precision, runner.arm.device)
    return {name: getattr(after, name) for name in ("fp32_matmul", "fp32_conv")}


def _kind(rung: Rung) -> tuple[bool, bool]:
    """Return which loader feeds a rung: whether its batches are pinned, and whether it normalises them itself."""
    pinned = rung.chosen.non_blocking
    return pinned, not rung.chosen.prefetcher


@contextmanager
def _loaders(setting: Setting, trial: Trial, rungs: list[Rung]) -> Iterator[dict[tuple[bool, bool], Iterator[Any]]]:
    """Open a loader for each kind that the rungs need, each with worker processes of its own; close them all."""
    kinds = list(dict.fromkeys(_kind(rung) for rung in rungs))
    loaders: dict[tuple[bool, bool], Any] = {}
    try:
        for pinned, normalize in kinds:
            samples = open_samples(setting.data, trial.cell.data, normalize=normalize, seed=trial.seed)
            loader = open_loader(samples, batch_size=trial.cell.batch_size, seed=trial.seed, pinned=pinned)
            loaders[pinned, normalize] = Turns(iter(loader))
        yield loaders
    finally:
        for loader in loaders.values():
            loader.batches._shutdown_workers()  # else they end when the garbage collector finds the iterator


def _build(
    setting: Setting,
    trial: Trial,
    planned: list[Rung],
    loaders: dict[tuple[bool, bool], Iterator[Any]],
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
    for rung in stacked(planned, lambda rung: rung.name in built):
        try:
            built[rung.name] = _built(setting, trial, rung, loaders[_kind(rung)], send=send, stack=stack)
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
    rung: Rung,
    loader: Iterator[Any],
    *,
    send: Callable[[Message], None],
    stack: ExitStack,
) -> Built:
    """Build a rung and, where it compiles or captures, let it do so: only then is it known to work."""
    arm = build_rung(setting, trial, rung)
    if rung.chosen.hidden:
        send(Progress(text=f"{rung.name}: compiling or capturing the step"))
    spent = compile_s(arm, setting.data, trial.cell.batch_size)
    batches = on_device(arm, setting.data, loader)
    runner = RungRunner(name=rung.name, arm=arm, batches=batches, asynchronous=setting.device.type == "cuda")
    stack.callback(runner.close)
    if rung.chosen.cuda_graphs:
        runner.activate()
        runner.run(WARM_UP + 1)
        runner.synchronize()
    return Built(rung=rung, runner=runner, compile_s=spent)


def _host_ratio(runner: RungRunner, trial: Trial) -> float | None:
    runner.activate()
    return runner.host_ratio(TAIL_SHARE * trial.protocol.time_budget_s)


def _settled(cut: Cut, loader_ms: float) -> Cut:
    """Let a rung that the loader limits use up what was made ready while others ran, before it is timed."""
    if loader_ms < LIMITED * cut.warm.step_ns / 1e6:
        return cut
    return replace(cut, sizes=replace(cut.sizes, settle=max(cut.sizes.settle, DEPTH)))
