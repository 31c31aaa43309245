"""The explain phase: where a step's time and memory go in each precision.

Nothing measured here is a speedup: the profiler slows steps down, and the speed phase never runs
under it. An arm's profiled steps lie between two blocks of plain ones, so that they differ by
little else.
"""

from __future__ import annotations

import json
import math
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
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
    PeakHolders,
    Row,
    held_before,
    open_profiler,
    watch_finite,
)
from bench.phases.explain.trace import decompose, work_of
from bench.results.records import Device, Progress, Send, Status
from bench.spec.errors import UnsupportedError
from bench.spec.trial import Trial
from bench.training import distributed
from bench.training.arms import (
    BATCHES,
    Context,
    TrainingRunner,
    by_shape,
    open_context,
    use_precision,
)
from bench.training.techniques import fused

WARM_UP_S = 2.0
# A block of plain or of profiled steps takes about as long.
WINDOW_S = 0.5
# Steps of a block; the warm-up has at least the fewest.
FEWEST_STEPS = 2
MOST_STEPS = 40
# Fewest steps on batches as they are loaded: the first may have been loaded before.
LOADER_STEPS = 5
# Names of types in traces.
IN_TRACES = {torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}


def run(trial: Trial, device: Device, send: Send) -> None:
    """Explain the trial's precisions; send the figures, then a result for each."""
    context = open_context(trial)
    use_precision(trial.arm_names[0], context.device)
    batches = context.resident_batches(BATCHES)
    runners = [context.runner(name, batches) for name in trial.arm_names]
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
        # In the opposite order, so that a drift of the machine is no difference of arms.
        for arm in reversed(arms):
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
            status = "nonfinite"
            detail = "the loss became NaN or Inf"
        switches = runner.switches_after_a_step()
        send(runner.result(status, detail, switches=switches, operations=runner.operations()))


class _Arm:
    """An arm of the trial, and what its steps took."""

    def __init__(
        self,
        context: Context,
        runner: TrainingRunner,
        send: Send,
    ) -> None:
        """Warm up."""
        self.context = context
        self.runner = runner
        self._send = send
        self.queued = 0
        self.timed_ms = math.inf
        """A step's time without the profiler: the least of the blocks, for what disturbs a block
        makes it longer."""
        self.profile: list[Row] = []
        """The figures of the profiled steps."""
        self._say("warming up")
        runner.activate()
        start = time.monotonic()
        warmed_up = 0
        while warmed_up < FEWEST_STEPS or distributed.from_first(
            time.monotonic() - start < WARM_UP_S
        ):
            self.step_s = distributed.from_first(self._time_s(1))
            warmed_up += 1
        fitting = math.ceil(WINDOW_S / max(1e-9, self.step_s))
        self.steps = max(FEWEST_STEPS, min(MOST_STEPS, fitting))
        # A loss scale that begins too high leaves out steps of the warm-up.
        self.taken_before = runner.taken_steps()
        self.queued = 0

    def time_plain_steps(self) -> None:
        """Time a block of steps, after one that follows another arm's."""
        self._say("plain and profiled steps")
        self.runner.activate()
        self._time_s(1)
        self.timed_ms = min(self.timed_ms, 1e3 * self._time_s(self.steps) / self.steps)

    def profile_steps(self) -> None:
        """Profile a block of steps, after one without a mark: the profiler's first is slower."""
        backend = backend_of(self.context.device)
        modules: ModuleStack | nullcontext[None] = ModuleStack(marked=True)
        if self.runner.arm.techniques.compile:
            modules = nullcontext()  # torch.compile would compile anew with hooks on its modules
        with open_profiler(gpu=backend.is_gpu) as profiler:
            self._time_s(1)
            with modules:
                for _ in range(self.steps):
                    with record_function(STEP):
                        self._queue(1)
            self.runner.synchronize()
        with tempfile.TemporaryDirectory(prefix="ampmeter-") as folder:
            path = Path(folder, "trace.json")
            profiler.export_chrome_trace(str(path))
            trace = json.loads(path.read_text(errors="replace"))
        matrix_types = frozenset(IN_TRACES[dtype] for dtype in backend.matrix_types())
        self.profile = decompose(trace, gpu=backend.is_gpu, matrix_types=matrix_types)

    def send_times(self) -> None:
        """Send the times of a step, its longest operators, and the share of skipped steps."""
        self._send_figure(kind="step", name="timed", value=self.timed_ms)
        for row in self.profile:
            self._send_figure(**row)
        taken = self.runner.taken_steps() - self.taken_before
        self._send_figure(kind="step", name="skipped", value=100 * (1 - taken / self.queued))

    def wait_for_the_loader(self) -> None:
        """Train on the suite's own batches, and send the share of time spent waiting for them."""
        self._say("training on batches as they are loaded")
        batches = self._loaded_batches()
        arm = self.runner.arm
        steps = max(LOADER_STEPS, self.steps)
        self.runner.activate()
        arm.step(arm, next(batches))
        self.runner.synchronize()
        waited_s = 0.0
        start = time.perf_counter()
        for _ in range(steps):
            asked = time.perf_counter()
            batch = next(batches)
            waited_s += time.perf_counter() - asked
            arm.step(arm, batch)
        self.runner.synchronize()
        elapsed_s = time.perf_counter() - start
        if self.runner.asynchronous:  # the GPU may have had work while the host waited
            waited_s = min(waited_s, max(0.0, elapsed_s - steps * self.step_s))
        self._send_figure(kind="step", name="waiting", value=100 * waited_s / elapsed_s)

    def send_observed(self, batches: list[Batch]) -> None:
        """Send what holds memory at the peak, what is cast, and what was first not finite."""
        runner = self.runner.observable()
        arm = runner.arm
        arm.zero_grad()
        modules = [module for module in (arm.model, arm.criterion) if module is not None]
        there = held_before(modules, arm.optimizers.values())
        holders = PeakHolders(self.context.device, there | {"batches": tensors(batches)})
        runner.activate()
        try:
            with holders:
                runner.run_steps(1)
        except Exception as error:  # a model that cannot be observed; that it trains is known
            print(f"{runner.name}: its memory was not observed: {type(error).__name__}: {error}")
            return
        rows = list(holders.rows())
        if not self.runner.finite():
            with watch_finite() as bad_modules:
                runner.run_steps(1)
            rows += bad_modules
        for row in rows:
            self._send_figure(**row, work=work_of(row))

    def send_refused(self, batches: list[Batch]) -> None:
        """Send the techniques that this suite cannot have, of those that a reason may name."""
        arm = self.runner.arm
        if self.context.suite.step is not None or len(by_shape(batches)) > 1:
            self._send_figure(kind="refused", name="cuda-graphs", value=1)
        try:
            for optimizer in arm.optimizers.values():
                fused(optimizer)
        except UnsupportedError:
            self._send_figure(kind="refused", name="fused-optimizer", value=1)

    def _queue(self, steps: int) -> None:
        self.queued += steps
        self.runner.run_steps(steps)

    def _time_s(self, steps: int) -> float:
        start = time.perf_counter()
        self._queue(steps)
        self.runner.synchronize()
        return time.perf_counter() - start

    def _loaded_batches(self) -> Iterator[Batch]:
        batches = self.context.open_batches()
        epoch = 0
        while True:
            epoch += 1
            yield from batches.train(epoch)

    def _say(self, text: str) -> None:
        self._send(Progress(text=f"{self.runner.name}: {text}"))

    def _send_figure(self, **row: Any) -> None:
        self._send(Explained(trial=self.context.trial.id, precision=self.runner.name, **row))
