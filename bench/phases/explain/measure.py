"""The explain phase: where a step's time goes in each precision.

Nothing measured here is a speedup: the profiler slows steps down, and the speed phase never runs under it. Plain and
profiled steps of all arms take turns, so that their differences are of one moment of the machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.data.prepare import is_synthetic
from bench.devices.backend import backend_of
from bench.measure.disturbance import Watch, open_watch
from bench.measure.rounds import without_collection
from bench.measure.warmup import warm_up
from bench.phases.explain import Explained, Finding
from bench.phases.explain.trace import Operator, StepTime, decompose, profiled
from bench.results.records import Device, Message, Progress, Status
from bench.spec.trial import Trial
from bench.training.arms import BATCHES, Context, TrainingRunner, enter, open_context

WARM_UP_S = 3.0
WINDOW_S = 0.5
"""A block of plain or of profiled steps takes about as long."""
STEPS = (2, 40)
"""Fewest and most steps of a block."""
ROUNDS = (7, 21)
"""Fewest and most rounds; more than the fewest while the budget lasts."""
SETTLING_STEPS = 2
"""Untimed steps at the head of a block."""
OPERATORS = 100
"""The operators that are kept of a step, the longest."""
IN_TRACES = {torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
"""Names of types in traces."""
LOADER_STEPS = 5
"""Fewest steps on batches as they are loaded: the first may have been loaded before."""
NAMED = 5
"""Most modules that are named of a type."""


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Explain the trial's precisions; send the figures, then a result for each."""
    context = open_context(trial)
    enter(trial.precisions[0], context.device)
    batches = context.resident_batches(BATCHES)
    runners = [context.runner(name, batches) for name in trial.precisions]
    for runner in runners:
        runner.compile(context, send)
    with open_watch(device) as watch, without_collection() as collect:
        arms = [_Arm(context, runner, send) for runner in runners]
        _take_turns(arms, trial.protocol.time_budget_s / 2, watch, collect)
        disturbed, foreign_load_pct = watch.disturbance(), watch.foreign_load_pct()
    for arm in arms:
        arm.send_steps()
        if foreign_load_pct is not None:
            arm.send_figure("step", "foreign load", foreign_load_pct)
        if not is_synthetic(context.data, trial.cell.data):
            arm.wait_for_the_loader()
        arm.send_types()
    for runner in runners:
        status: Status = "invalid" if disturbed else "ok"
        detail = disturbed
        if not runner.finite():
            status, detail = "nonfinite", "the loss became NaN or Inf"
        switches = runner.switches_after_a_step()
        send(runner.result(status, detail, switches=switches, operations=runner.operations()))


def _take_turns(arms: list[_Arm], budget_s: float, watch: Watch, collect: Callable[[], object]) -> None:
    """Run plain and profiled blocks of all arms in turn, in an order that changes from round to round.

    The first round is not kept: arms that have just warmed up one after the other have yet to settle while the others
    also run.

    Args:
        arms: warmed up.
        budget_s: seconds after which no more rounds than the fewest begin.
        watch: names what disturbed the device.
        collect: runs Python's garbage collector, which must not run within a block.
    """
    end = time.monotonic() + budget_s
    for turn in range(ROUNDS[1] + 1):
        if turn > ROUNDS[0] and time.monotonic() > end:
            break
        for arm in arms if turn % 2 == 0 else reversed(arms):
            arm.say(f"round {turn}, plain and profiled steps")
            arm.settle()
            blocks = [arm.time_plain_steps, arm.profile_steps]
            for block in blocks if turn // 2 % 2 == 0 else reversed(blocks):
                block()
                collect()
        watch.poll()
    for arm in arms:
        del arm.timed_ms[0], arm.profiles[0]


@dataclass(slots=True)
class _Arm:
    """An arm of the trial, and what its blocks of steps took."""

    context: Context
    runner: TrainingRunner
    send: Callable[[Message], None]
    step_s: float = field(init=False)
    """A step's time as of the warm-up."""
    steps: int = field(init=False)
    """Steps of a block."""
    queued: int = 0
    taken_before: int = field(init=False)
    """Optimizer steps before the first block."""
    timed_ms: list[float] = field(default_factory=list)
    """A step's time without the profiler, by round."""
    profiles: list[StepTime] = field(default_factory=list)
    """The same under it, by class of work."""

    def __post_init__(self) -> None:
        self.say("warming up")
        self.step_s = warm_up(self.runner, WARM_UP_S).step_ns / 1e9
        self.steps = max(STEPS[0], min(STEPS[1], math.ceil(WINDOW_S / max(1e-9, self.step_s))))
        self.taken_before = self.runner.taken_steps()

    def say(self, text: str) -> None:
        self.send(Progress(text=f"{self.runner.name}: {text}"))

    def send_figure(self, kind: Finding, name: str, value: float, **more: Any) -> None:
        trial, precision = self.context.trial.id, self.runner.name
        self.send(Explained(trial=trial, precision=precision, kind=kind, name=name, value=value, **more))

    def _queue(self, steps: int) -> None:
        self.queued += steps
        self.runner.run(steps)

    def settle(self) -> None:
        self.runner.activate()
        self._queue(SETTLING_STEPS)
        self.runner.synchronize()

    def time_plain_steps(self) -> None:
        start = time.perf_counter()
        self._queue(self.steps)
        self.runner.synchronize()
        self.timed_ms.append(1e3 * (time.perf_counter() - start) / self.steps)

    def profile_steps(self) -> None:
        backend = backend_of(self.context.device)
        matrix_types = frozenset(IN_TRACES[dtype] for dtype in backend.matrix_types())
        trace = profiled(lambda: self._queue(1), self.steps, backend.synchronize, gpu=backend.is_gpu)
        self.profiles.append(decompose(trace, gpu=backend.is_gpu, matrix_types=matrix_types))

    def send_steps(self) -> None:
        """Send the times of the rounds, the longest operators, and the share of skipped steps."""
        for number, (timed_ms, profile) in enumerate(zip(self.timed_ms, self.profiles, strict=True)):
            figures = {"timed": timed_ms, "profiled": profile.step_ms}
            figures["kernels" if self.runner.asynchronous else "operators"] = profile.calls
            if self.runner.asynchronous:
                figures["scaling wait"] = profile.scaling_wait_ms
            for name, value in figures.items():
                self.send_figure("step", name, value, round=number)
            for work, ms in profile.ms.items():
                self.send_figure("class", work, ms, round=number)
        every_ms: dict[Operator, list[float]] = defaultdict(list)
        for profile in self.profiles:
            for operator, ms in profile.operators_ms.items():
                every_ms[operator].append(ms)
        medians = [(statistics.median(ms), *operator) for operator, ms in every_ms.items()]
        for ms, name, work, sizes in sorted(medians, reverse=True)[:OPERATORS]:
            self.send_figure("operator", name, ms, work=work, detail=sizes)
        taken = self.runner.taken_steps() - self.taken_before
        self.send_figure("step", "skipped", 100 * (1 - taken / self.queued))

    def wait_for_the_loader(self) -> None:
        """Train on some of the suite's own batches, and send the share of time spent waiting for them."""
        self.say("training on batches as they are loaded")
        arm, epochs = self.runner.arm, map(self.context.open_batches().train, itertools.count(1))
        batches = itertools.chain.from_iterable(epochs)
        steps = max(LOADER_STEPS, self.steps)
        self.runner.activate()
        for batch in itertools.islice(batches, SETTLING_STEPS):
            arm.step(arm, batch)
        self.runner.synchronize()
        waited_s, start = 0.0, time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            waited_s += time.perf_counter() - asked
            arm.step(arm, batch)
        self.runner.synchronize()
        elapsed_s = time.perf_counter() - start
        if self.runner.asynchronous:  # the GPU may have had work while the host waited
            waited_s = min(waited_s, max(0.0, elapsed_s - steps * self.step_s))
        self.send_figure("step", "waiting", 100 * waited_s / elapsed_s)

    def send_types(self) -> None:
        """Send the share of the FLOPs in each type, and modules whose products are in it."""
        flops: dict[str, int] = defaultdict(int)
        modules: dict[str, list[str]] = defaultdict(list)
        for (module, dtype), count in self.runner.flops_by_module().items():
            name = str(dtype).removeprefix("torch.")
            flops[name] += count
            if module:
                modules[name].append(module)
        for name, count in flops.items():
            if count:
                where = ", ".join(modules[name][:NAMED])
                self.send_figure("types", name, 100 * count / sum(flops.values()), detail=where)
