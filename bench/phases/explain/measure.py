"""The explain phase: where a step's time and memory go in each precision.

Nothing measured here is a speedup: the profiler slows steps down, and the speed phase never runs
under it. An arm's profiled steps lie between two blocks of plain ones, so that they differ by
little else.
"""

from __future__ import annotations

import itertools
import json
import math
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch.profiler import record_function

from bench.data.batch import Batch, tensors
from bench.data.prepare import is_synthetic
from bench.devices.backend import backend_of
from bench.measure.disturbance import open_watch
from bench.measure.rounds import without_collection
from bench.phases.explain import Explained
from bench.phases.explain.observe import (
    STEP,
    ModuleStack,
    NonFinite,
    PeakHolders,
    held_before,
    open_profiler,
)
from bench.phases.explain.trace import Figure, decompose, rows_of, work_of
from bench.results.records import Device, Message, Progress, Status
from bench.spec.errors import UnsupportedError
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import BATCHES, Context, TrainingRunner, by_shape, enter, open_context
from bench.training.techniques import fused

WARM_UP_S = 2.0
# A block of plain or of profiled steps takes about as long.
WINDOW_S = 0.5
# Fewest and most steps of a block, and of the warm-up at least the fewest.
STEPS = (2, 40)
# Fewest steps on batches as they are loaded: the first may have been loaded before.
LOADER_STEPS = 5
# Names of types in traces.
IN_TRACES = {torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Explain the trial's precisions; send the figures, then a result for each."""
    context = open_context(trial)
    enter(trial.precisions[0], context.device)
    batches = context.resident_batches(BATCHES)
    runners = [context.runner(name, batches) for name in trial.precisions]
    for runner in runners:
        runner.compile(context, send)
    with (
        open_watch(device, gather=distributed.gathered, rank=distributed.rank()) as watch,
        without_collection() as collect,
    ):
        arms = [_Arm(context, runner, send) for runner in runners]
        for arm in arms:
            arm.time_plain_steps()
            collect()
            arm.profile_steps()
            collect()
            watch.poll()
        for arm in arms[
            ::-1
        ]:  # in the opposite order, so that a drift of the machine is no difference of arms
            arm.time_plain_steps()
        disturbed = watch.disturbance()
    for arm in arms:
        arm.send_times()
        if not is_synthetic(context.data, trial.cell.data):
            arm.wait_for_the_loader()
        arm.send_observed(batches)
        arm.send_refused(batches)
    for runner in runners:
        status: Status = "invalid" if disturbed else "ok"
        detail = disturbed
        if not runner.finite():
            status, detail = "nonfinite", "the loss became NaN or Inf"
        switches = runner.switches_after_a_step()
        send(runner.result(status, detail, switches=switches, operations=runner.operations()))


@dataclass(slots=True)
class _Arm:
    """An arm of the trial, and what its steps took."""

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
    timed_ms: float = math.inf
    """A step's time without the profiler: the least of the blocks, for what disturbs a block makes
    it longer."""
    profile: dict[Figure, float] = field(init=False)
    """The same under it, by class of work."""

    def __post_init__(self) -> None:
        self.say("warming up")
        self.runner.activate()
        start, count = time.monotonic(), 0
        while count < STEPS[0] or distributed.from_first(time.monotonic() - start < WARM_UP_S):
            begun = time.monotonic()
            self.runner.run(1)
            self.runner.synchronize()
            self.step_s = distributed.from_first(time.monotonic() - begun)
            count += 1
        self.steps = max(STEPS[0], min(STEPS[1], math.ceil(WINDOW_S / max(1e-9, self.step_s))))
        self.taken_before = self.runner.taken_steps()

    def say(self, text: str) -> None:
        self.send(Progress(text=f"{self.runner.name}: {text}"))

    def send_figure(self, **row: Any) -> None:
        self.send(Explained(trial=self.context.trial.id, precision=self.runner.name, **row))

    def _queue(self, steps: int) -> None:
        self.queued += steps
        self.runner.run(steps)

    def time_plain_steps(self) -> None:
        """Time a block of steps, after one that follows another arm's."""
        self.say("plain and profiled steps")
        self.runner.activate()
        self._queue(1)
        self.runner.synchronize()
        start = time.perf_counter()
        self._queue(self.steps)
        self.runner.synchronize()
        self.timed_ms = min(self.timed_ms, 1e3 * (time.perf_counter() - start) / self.steps)

    def profile_steps(self) -> None:
        """Profile a block of steps, after one that is not marked: the profiler's first step is slower."""
        backend = backend_of(self.context.device)
        compiled = self.runner.arm.techniques.compile
        modules = ModuleStack(marked=True)
        with open_profiler(gpu=backend.is_gpu) as profiler:
            self._queue(1)
            self.runner.synchronize()
            if not compiled:  # torch.compile would compile anew with hooks on its modules
                modules.__enter__()
            for _ in range(self.steps):
                with record_function(STEP):
                    self._queue(1)
            self.runner.synchronize()
            modules.__exit__()
        with tempfile.TemporaryDirectory(prefix="ampmeter-") as folder:
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(errors="replace"))
        matrix_types = frozenset(IN_TRACES[dtype] for dtype in backend.matrix_types())
        self.profile = decompose(trace, gpu=backend.is_gpu, matrix_types=matrix_types)

    def send_times(self) -> None:
        """Send the times of a step, its longest operators, and the share of skipped steps."""
        self.send_figure(kind="step", name="timed", value=self.timed_ms)
        for row in rows_of(self.profile):
            self.send_figure(**row)
        taken = self.runner.taken_steps() - self.taken_before
        self.send_figure(kind="step", name="skipped", value=100 * (1 - taken / self.queued))

    def wait_for_the_loader(self) -> None:
        """Train on some of the suite's own batches, and send the share of time spent waiting for them."""
        self.say("training on batches as they are loaded")
        arm, epochs = self.runner.arm, map(self.context.open_batches().train, itertools.count(1))
        batches = itertools.chain.from_iterable(epochs)
        steps = max(LOADER_STEPS, self.steps)
        self.runner.activate()
        arm.step(arm, next(batches))
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
        self.send_figure(kind="step", name="waiting", value=100 * waited_s / elapsed_s)

    def send_observed(self, batches: list[Batch]) -> None:
        """Send what holds memory at the peak of a step, what it casts, and where a loss that is no number began."""
        runner = self.runner.observable()
        arm = runner.arm
        arm.zero_grad()
        modules = [module for module in (arm.model, arm.criterion) if module is not None]
        there = held_before(modules, arm.optimizers.values()) | {"batches": tensors(batches)}
        holders = PeakHolders(self.context.device, there)
        runner.activate()
        try:
            with holders:
                runner.run(1)
        except Exception as error:  # a model that cannot be observed; that it trains is known
            print(f"{runner.name}: its memory was not observed: {type(error).__name__}: {error}")
            return
        rows = [*holders.rows()]
        if not self.runner.finite():
            with NonFinite() as watch:
                runner.run(1)
            rows += watch.rows()
        for row in rows:
            self.send_figure(**row, work=work_of(row))

    def send_refused(self, batches: list[Batch]) -> None:
        """Send the techniques that this suite cannot have, among those that a reason may name."""
        if self.context.suite.step is not None or len(by_shape(batches)) > 1:
            self.send_figure(kind="refused", name="cuda-graphs", value=1)
        arm = self.runner.arm
        try:
            for optimizer in arm.optimizers.values():
                fused(optimizer)
        except UnsupportedError:
            self.send_figure(kind="refused", name="fused-optimizer", value=1)
