"""The ladder phase: the ablation's steps in one process, fed by a real loader, timed against each other.

Steps share loaders; each has an input pipeline of its own, a batch's way from the loader to the device.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import asdict, dataclass, field, replace
from typing import Any

from bench.data.batch import Batch, pinned
from bench.data.loader import DEPTH, Turns, batch_ms, open_loader, open_samples, steps_per_epoch
from bench.devices.backend import backend_of
from bench.measure.warmup import Cut
from bench.phases.ladder import AblationSpeed
from bench.phases.speed.paired import measure
from bench.results.records import Device, Message, Progress, TrialResult
from bench.spec.techniques import AblationStep, rebase
from bench.spec.trial import COMPILING_S, Trial
from bench.training.arms import Context, TrainingRunner, open_context, step_times
from bench.training.pipeline import InputPipeline, LoaderKind
from bench.training.techniques import WARM_UP, refused

LOADER_BATCHES = 8
"""Batches over which the loader alone is timed."""
TAIL_SHARE = 0.1
"""Time for measuring an arm's host ratio, as a share of the time budget, which does not include it."""
LIMITED = 0.1
"""A step is limited by the loader if the host waits this share of a continuous run for batches not yet ready."""
CONTINUOUS_STEPS = 3 * DEPTH
"""Steps that show whether a loader is waited for; a third of them uses up the batches that were ready before."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Time the trial's supported ablation steps against the first of them; send the blocks, then a result for each."""
    planned, context = trial.arms, open_context(trial)
    with open_loaders(context, planned) as (loaders, epoch_steps), ExitStack() as stack:
        send(Progress(text="timing the loader alone"))
        loader_ms = {kind: batch_ms(loader, LOADER_BATCHES) for kind, loader in loaders.items()}
        runners = _build(context, planned, loaders, send=send, stack=stack)
        limited: list[bool] = []

        def recut(cuts: list[Cut]) -> list[Cut]:
            send(Progress(text="measuring the waits for the loader"))
            rests_s = [DEPTH * loader_ms[LoaderKind.of(runner.step)] / 1000 for runner in runners]
            waits = (runner.steady_wait(rest_s) for runner, rest_s in zip(runners, rests_s, strict=True))
            limited.extend(wait >= LIMITED for wait in waits)
            for runner in runners:
                runner.activate()
                runner.wait_ns = 0
            return paced(cuts, limited)

        paired = measure(trial, runners, device, send, recut=recut)
        waits_ns = [runner.wait_ns + runner.last_wait_ns for runner in runners]
        ratios = [_host_ratio(runner, TAIL_SHARE * trial.protocol.process_s) for runner in runners]
        switches = [runner.switches_after_a_step() for runner in runners]
        operations = [runner.operations() for runner in runners]
    for block in paired.blocks():
        send(block)
    for index, runner in enumerate(runners):
        timed_ns = sum(block.time_ns for block in paired.comparison.blocks if block.arm == index)
        speed = replace(paired.speed(index), host_ratio=ratios[index])
        row = AblationSpeed(
            **asdict(speed),
            ablation_step=runner.step.number,
            loader_ms=loader_ms[LoaderKind.of(runner.step)],
            wait_pct=100 * waits_ns[index] / timed_ns,
            steps_per_epoch=epoch_steps,
            loader_limited=limited[index],
        )
        result = runner.result(
            *paired.judge(index),
            switches=switches[index],
            operations=operations[index],
            row=row,
        )
        send(result)


def _build(
    context: Context,
    planned: Sequence[AblationStep],
    loaders: Mapping[LoaderKind, Iterator[Any]],
    *,
    send: Callable[[Message], None],
    stack: ExitStack,
) -> list[LoaderRunner]:
    """Build the ablation steps in order; report a refused one as unsupported, and rebase later ones without it.

    Raises:
        Exception: all steps are refused; the last refusal is raised.
    """
    runners: dict[str, LoaderRunner] = {}
    refusal: Exception | None = None
    for step in rebase(planned, lambda step: step.name in runners):
        try:
            runners[step.name] = _build_runner(context, step, loaders[LoaderKind.of(step)], send=send, stack=stack)
        except Exception as error:
            if (why := refused(error)) is None:
                raise
            refusal = error
            send(TrialResult(precision=step.name, status="unsupported", detail=why))
    if not runners and refusal:
        raise refusal
    return list(runners.values())


def _build_runner(
    context: Context, step: AblationStep, loader: Iterator[Any], *, send: Callable[[Message], None], stack: ExitStack
) -> LoaderRunner:
    """Build an ablation step, and compile or capture it if it is to be, which may show that it is unsupported."""
    arm = context.build(step.precision, techniques=step.settings)
    batches = InputPipeline(arm, context.image_data, loader)
    stack.callback(batches.close)
    runner = LoaderRunner(step.name, arm, batches, step=step)
    runner.compile(context, send)
    if step.settings.cuda_graphs:
        send(Progress(text=f"{step.name}: capturing the step", silence_s=COMPILING_S))
        runner.activate()
        runner.run(WARM_UP + 1)
        runner.synchronize()
    return runner


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


@dataclass
class LoaderRunner(TrainingRunner):
    """A model in training whose batches come from a loader."""

    batches: InputPipeline
    step: AblationStep = field(kw_only=True)
    wait_ns: int = field(default=0, init=False)
    """Time that the host waited for the loader in the timed steps of all blocks before the last,"""
    last_wait_ns: int = field(default=0, init=False)
    """and in the last call of ``run``."""

    def activate(self) -> None:
        """Set TF32's switches to this arm's; a block of steps begins here."""
        super().activate()
        self.wait_ns, self.last_wait_ns = self.wait_ns + self.last_wait_ns, 0

    def run(self, steps: int) -> None:
        """Queue that many steps; a block's switch warm-up comes first, its timed steps last."""
        before = self.batches.waited_ns
        super().run(steps)
        self.last_wait_ns = self.batches.waited_ns - before

    def steady_wait(self, rest_s: float) -> float:
        """Return the share of a continuous run that the host waits for batches that are not made yet.

        The first steps use up the batches that were ready and show what taking one costs, which does not count as
        waiting in the steps after them. Each step is synchronized, so that a host that runs ahead of its device does
        not wait for a batch that the device does not need yet. Before, in ``rest_s`` seconds, the loader makes as many
        batches ready as it may.
        """
        self.activate()
        time.sleep(rest_s)
        # The second shortest: while other programs also run few may be ready; the prefetcher's first is taken already.
        taking_ns = sorted(wait_ns for wait_ns, _ in self._single_steps(DEPTH))[1]
        steps = self._single_steps(CONTINUOUS_STEPS - DEPTH)
        waited_ns = sum(wait_ns for wait_ns, _ in steps) - taking_ns * len(steps)
        return max(0.0, waited_ns / sum(step_ns for _, step_ns in steps))

    def _single_steps(self, count: int) -> list[tuple[int, int]]:
        """Run synchronized steps; return each one's wait for the loader and its time, in nanoseconds."""
        times = []
        for _ in range(count):
            start = time.perf_counter_ns()
            self.run(1)
            self.synchronize()
            times.append((self.last_wait_ns, time.perf_counter_ns() - start))
        return times


@contextmanager
def open_loaders(context: Context, steps: Sequence[AblationStep]) -> Iterator[tuple[dict[LoaderKind, Turns], int]]:
    """Open a loader for each kind that the steps need, each with worker processes of its own; close them all.

    Yields:
        The loaders, and the steps of an epoch.
    """
    # A loader's pinning thread makes a context on the device that is current when its iterator is made. Worker
    # processes may be forked from a process that has one, as in any training loop: they never use the device.
    backend_of(context.device).set_current()
    cell, seed = context.trial.cell, context.trial.seed
    loaders: dict[LoaderKind, Turns] = {}
    epoch_steps = 0
    with ExitStack() as stack:
        for kind in dict.fromkeys(map(LoaderKind.of, steps)):
            if context.suite.batches is not None:
                batches = context.open_batches()
                epoch_steps = batches.steps_per_epoch
                loaders[kind] = Turns(stack.enter_context(closing(_loaded(batches, kind))))
                continue
            samples: Any = open_samples(context.data, cell.data, normalize=kind.normalize, seed=seed)
            epoch_steps = steps_per_epoch(context.data, cell.data, cell.batch_size, len(samples))
            loader: Any = iter(open_loader(samples, batch_size=cell.batch_size, seed=seed, pinned=kind.pinned))
            stack.callback(loader._shutdown_workers)  # else they end with the iterator
            loaders[kind] = Turns(loader)
        yield loaders, epoch_steps


def _loaded(batches: Any, kind: LoaderKind) -> Generator[Batch, None, None]:
    """Yield a suite's own batches in host memory, epoch after epoch."""
    for epoch in itertools.count(1):
        yield from map(pinned, batches.loaded(epoch)) if kind.pinned else batches.loaded(epoch)
