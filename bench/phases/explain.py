"""The explain phase: where a step's time goes in each precision, and what its operators take alone.

Nothing measured here is a speedup: the profiler slows steps down, and the speed phase never runs under it. Plain and
profiled steps of all arms take turns, so that their differences are of one moment of the machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

import torch

from bench.data import Batches, random_batches
from bench.data.prepare import is_synthetic
from bench.data.transfer import Batch
from bench.devices.backend import backend_of, is_out_of_memory
from bench.measure import alone
from bench.measure.alone import Call
from bench.measure.disturbance import Watch, open_watch
from bench.measure.memory import resident_bytes
from bench.measure.operations import peak_tflops
from bench.measure.rounds import without_collection
from bench.measure.trace import CLASSES, StepTime, decompose, profiled
from bench.measure.warmup import warm_up
from bench.phases.arms import (
    BATCHES,
    Context,
    TrainingRunner,
    compute_dtypes,
    enter,
    open_context,
    result_of,
    switches_after_a_step,
)
from bench.results.records import Device, Explained, Finding, Message, Progress, Status, WorkClass
from bench.spec.trial import Trial
from bench.training.step import leave_gradients

WARM_UP_S = 3.0
WINDOW_S = 0.5
"""A block of plain or of profiled steps takes about as long."""
STEPS = (2, 40)
"""Fewest and most steps of a block."""
ROUNDS = (7, 21)
"""Fewest and most rounds; more than the fewest while the budget lasts."""
SETTLING_STEPS = 2
"""Untimed steps at the head of a block."""
OPERATORS = 25
"""The operators that are kept of a step, the longest."""
ALONE_S = 0.12
"""Seconds for timing an operator alone, for each type."""
ALIGNMENT = 64
"""Sizes are padded to its multiples: 128 bytes of a 16-bit type, which is what NVIDIA's tensor cores want at most."""
LARGEST_TRIED = 3
"""Products that are tried in another layout and with other sizes, the largest."""
LOADER_STEPS = (5, 30)
DOUBLED_BLOCKS = 5


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Explain the trial's precisions; send the figures, then a result for each."""
    context = open_context(trial)
    enter(trial.precisions[0], context.device)
    batches = context.resident_batches(BATCHES)
    runners = [context.runner(name, batches) for name in trial.precisions]
    compile_s = [runner.compile(context, send) for runner in runners]
    explanation = _Explanation(context=context, runners=runners, send=send)
    with open_watch(device) as watch, without_collection() as collect:
        disturbed = explanation.time_steps(trial.protocol.time_budget_s / 2, watch, collect)
    explanation.double_the_batch()
    explanation.wait_for_the_loader()
    explanation.time_operators()
    for runner, seconds in zip(runners, compile_s, strict=True):
        status: Status = "invalid" if disturbed else "ok"
        detail = disturbed
        if not runner.finite():
            status, detail = "nonfinite", "the loss became NaN or Inf"
        switches = switches_after_a_step(runner)
        computed = compute_dtypes(runner)
        send(result_of(runner, status, detail, switches=switches, computed=computed, compile_s=seconds))


@dataclass(slots=True)
class _Explanation:
    """The arms of a trial, and where their figures go."""

    context: Context
    runners: Sequence[TrainingRunner]
    send: Callable[[Message], None]
    steps: dict[str, int] = field(default_factory=dict)
    """Steps of a block, by precision."""
    step_s: dict[str, float] = field(default_factory=dict)

    def _figure(
        self,
        runner: TrainingRunner,
        kind: Finding,
        name: str,
        value: float,
        *,
        turn: int | None = None,
        work: WorkClass | None = None,
        detail: str = "",
        count: float | None = None,
    ) -> Explained:
        return Explained(
            trial=self.context.trial.id,
            precision=runner.name,
            kind=kind,
            name=name,
            round=turn,
            work=work or "",
            detail=detail,
            count=count,
            value=value,
        )

    def _send(self, runner: TrainingRunner, kind: Finding, name: str, value: float, **more: Any) -> None:
        self.send(self._figure(runner, kind, name, value, **more))

    def _say(self, text: str) -> None:
        self.send(Progress(text=text))

    def time_steps(self, budget_s: float, watch: Watch, collect: Callable[[], object]) -> str:
        """Run plain and profiled blocks of all arms in turn; return why no round counts, or an empty text.

        The first round is not used: arms that have just warmed up one after the other have yet to settle beside each
        other.

        Args:
            budget_s: how long to go on after the fewest rounds.
            watch: says whether a round was disturbed.
            collect: runs Python's garbage collector, which must not run within a block.
        """
        for runner in self.runners:
            self._say(f"{runner.name}: warming up")
            warm = warm_up(runner, WARM_UP_S)
            self.step_s[runner.name] = warm.step_ns / 1e9
            self.steps[runner.name] = max(STEPS[0], min(STEPS[1], math.ceil(WINDOW_S * 1e9 / max(1.0, warm.step_ns))))
        shares: dict[str, list[StepTime]] = defaultdict(list)
        before = {runner.name: runner.taken_steps() for runner in self.runners}
        run_steps: Counter[str] = Counter()
        end, sound, cause = math.inf, 0, ""
        for turn in range(-1, ROUNDS[1]):
            if sound >= ROUNDS[0] and time.monotonic() > end:
                break
            found, of_round = list[Explained](), dict[str, StepTime]()
            for runner in self.runners if turn % 2 == 0 else reversed(self.runners):
                self._say(f"{runner.name}: round {turn + 1}, plain and profiled steps")
                steps, blocks = self.steps[runner.name], [self._plain, self._profiled]
                runner.activate()
                runner.run(SETTLING_STEPS)
                runner.synchronize()
                for block in blocks if turn // 2 % 2 == 0 else blocks[::-1]:
                    rows, profile = block(runner, steps, turn)
                    found += rows
                    of_round |= {runner.name: profile} if profile is not None else {}
                    collect()
                run_steps[runner.name] += 2 * steps + SETTLING_STEPS + 1
            watch.wait()
            disturbed = watch.poll()
            if turn < 0:
                end = time.monotonic() + budget_s
                continue
            if disturbed:
                cause = disturbed
                continue
            sound += 1
            for row in found:
                self.send(row)
            for name, profile in of_round.items():
                shares[name].append(profile)
        for runner in self.runners:
            taken = runner.taken_steps() - before[runner.name]
            self._send(runner, "step", "skipped", 100 * (1 - taken / run_steps[runner.name]))
            if (foreign := watch.foreign_load_pct()) is not None:
                self._send(runner, "step", "foreign load", foreign)
            self._operators(runner, shares[runner.name])
        return "" if sound else f"every round was disturbed: {cause}"

    def _plain(self, runner: TrainingRunner, steps: int, turn: int) -> tuple[list[Explained], None]:
        start = time.perf_counter()
        runner.run(steps)
        runner.synchronize()
        ms = 1e3 * (time.perf_counter() - start) / steps
        return [self._figure(runner, "step", "timed", ms, turn=turn)], None

    def _profiled(self, runner: TrainingRunner, steps: int, turn: int) -> tuple[list[Explained], StepTime]:
        backend = backend_of(self.context.device)
        trace = profiled(lambda: runner.run(1), steps, gpu=backend.is_gpu)
        share = decompose(trace, gpu=backend.is_gpu, matrix_types=frozenset(map(_in_traces, backend.matrix_types())))
        steps_found = {"profiled": share.step_ms, "kernels" if backend.is_gpu else "operators": share.calls}
        if backend.is_gpu:
            steps_found["hidden communication"] = share.hidden_communication_ms
        rows = [self._figure(runner, "step", name, value, turn=turn) for name, value in steps_found.items()]
        rows += [self._figure(runner, "class", work, share.ms[work], turn=turn) for work in CLASSES]
        return rows, share

    def _operators(self, runner: TrainingRunner, shares: Sequence[StepTime]) -> None:
        """Send the longest operators of a step, each with the median of its times in the rounds."""
        kinds: dict[tuple[str, WorkClass, str], list[tuple[float, float]]] = defaultdict(list)
        for share in shares:
            for one in share.operators:
                sizes = " ".join("x".join(map(str, size)) for size in one.sizes)
                types = " ".join(dict.fromkeys(name.removeprefix("c10::") for name in one.types if name.strip()))
                kinds[one.name, one.work, f"{types} {sizes}".strip()].append((one.ms, one.count))
        medians = {key: tuple(map(statistics.median, zip(*values, strict=True))) for key, values in kinds.items()}
        longest = sorted(medians.items(), key=lambda item: -item[1][0])[:OPERATORS]
        for (name, work, detail), (ms, count) in longest:
            self._send(runner, "operator", name, ms, work=work, detail=detail, count=count)

    def double_the_batch(self) -> None:
        """Time steps of twice the batch beside steps as they are: where work takes the time, they take twice as long.

        Arms that are compiled or captured are left out: they would have to be compiled again for that size, and what
        runs neither way cannot be set beside their steps.
        """
        context = self.context
        size = 2 * context.trial.cell.batch_size
        if not self._has_room():
            return
        for runner in self.runners:
            if runner.arm.graph is not None or runner.arm.forward is not runner.arm.model:
                continue
            self._say(f"{runner.name}: steps of {size} samples")
            try:
                batches = random_batches(
                    context.data, batch_size=size, count=1, device=context.device, seed=context.trial.seed
                )
                twice = TrainingRunner(runner.name, runner.arm, itertools.cycle(batches))
                twice.activate()
                twice.run(SETTLING_STEPS)
                twice.synchronize()
                beside_ms, doubled_ms = list[float](), list[float]()
                steps = max(1, self.steps[runner.name] // 2)
                for one, found in ((runner, beside_ms), (twice, doubled_ms)) * DOUBLED_BLOCKS:
                    start = time.perf_counter()
                    one.run(steps)
                    one.synchronize()
                    found.append(1e3 * (time.perf_counter() - start) / steps)
            except Exception as error:
                if not is_out_of_memory(error):
                    raise
                backend_of(context.device).release_cached_memory()
                continue
            self._send(runner, "step", "doubled", statistics.median(doubled_ms))
            self._send(runner, "step", "not doubled", statistics.median(beside_ms))

    def _has_room(self) -> bool:
        """Say whether a CPU has the memory for steps of twice the batch: where it has not, the system would kill us."""
        backend = backend_of(self.context.device)
        return backend.is_gpu or backend.free_bytes() > 2 * resident_bytes()

    def wait_for_the_loader(self) -> None:
        """Train on some of the suite's own batches in each precision, and send the share of time spent waiting."""
        context = self.context
        if is_synthetic(context.data, context.trial.cell.data):
            return
        for runner in self.runners:
            self._say(f"{runner.name}: training on batches as they are loaded")
            batches = context.open_batches()
            arm = TrainingRunner(runner.name, runner.arm, _endless(batches))
            steps = max(LOADER_STEPS[0], min(LOADER_STEPS[1], int(1.0 / self.step_s[runner.name])))
            arm.activate()
            arm.run(SETTLING_STEPS)
            arm.synchronize()
            waiting, source = 0.0, arm.batches
            start = time.perf_counter()
            for _ in range(steps):
                asked = time.perf_counter()
                arm.batches = iter([next(source)])
                waiting += time.perf_counter() - asked
                arm.run(1)
            arm.synchronize()
            elapsed = time.perf_counter() - start
            if arm.asynchronous:  # the GPU may have had work while the host waited
                waiting = min(waiting, max(0.0, elapsed - steps * self.step_s[runner.name]))
            self._send(runner, "step", "waiting", 100 * waiting / elapsed)

    def time_operators(self) -> None:
        """Time the large operators of each arm's step alone, and the baseline's products in the other arms' types."""
        called = {runner.name: self._calls(runner) for runner in self.runners}
        baseline = self.runners[0]
        products = [call for call in called[baseline.name] if call.flops]
        for runner in self.runners:
            enter(runner.name, self.context.device)
            self._types(runner, called[runner.name])
            self._say(f"{runner.name}: its operators alone")
            rest = [call for call in called[runner.name] if not call.flops]
            casts = [call for call in rest if call.work == "casts and layout"]
            others = [call for call in rest if call.work != "casts and layout"]
            for call in [
                *alone.largest(others, by=lambda call: call.bytes),
                *alone.largest(casts, by=lambda call: call.count),  # a small one costs little less than a large one
            ]:
                measure = partial(alone.times, [call], self.context.device, ALONE_S)
                (taken,), (cached,) = measure(), measure(cached=True)
                self._alone(runner, call, taken)
                if cached is not None:
                    self._send(
                        runner,
                        "cached",
                        call.title,
                        cached.median_ms,
                        work=call.work,
                        detail=call.module,
                        count=call.count,
                    )
            for call in alone.largest(called[runner.name], by=lambda call: call.flops):
                if runner is not baseline:
                    (taken,) = alone.times([call], self.context.device, ALONE_S)
                    self._alone(runner, call, taken)
            peak = peak_tflops(runner.arm.precision, self.context.device)
            if peak is not None:
                self._send(runner, "rate", "products TFLOP/s", peak)
            self._try(runner, called[runner.name])
        self._products(products)
        self._rates()

    def _products(self, products: Iterable[Call]) -> None:
        """Time the baseline's products alone, as they are and in the types and with the switches of the others."""
        for call in alone.largest(products, by=lambda call: call.flops):
            self._say(f"{call.name} alone, in all precisions")
            arms = [(runner, call.in_type(dtype)) for runner in self.runners if (dtype := _compute(runner)) is not None]
            measure = partial(
                alone.times,
                [variant for _, variant in arms],
                self.context.device,
                ALONE_S * len(arms),
                [runner.activate for runner, _ in arms],
            )
            for (runner, _), taken, cached in zip(arms, measure(), measure(cached=True), strict=True):
                if taken is not None and cached is not None:
                    self._send(runner, "cached", call.title, cached.best_ms, detail=call.module, count=call.count)
                    self._send(runner, "product", call.title, taken.median_ms, detail=call.module, count=call.count)
                    self._send(runner, "best", call.title, taken.best_ms, detail=call.module, count=call.count)
            self._send(self.runners[0], "bytes", call.title, call.bytes / call.count, detail=call.module)
            self._send(self.runners[0], "flops", call.title, call.flops, detail=call.module, count=call.count)

    def _rates(self) -> None:
        """Send the rates of copies in each arm's type, and of casts to it."""
        device, full = self.context.device, torch.float32
        for runner in self.runners:
            if (dtype := _compute(runner)) is not None:
                self._send(runner, "rate", "copies GB/s", alone.copy_gb_per_s(device, dtype))
                if dtype != full:
                    self._send(runner, "rate", "casts GB/s", alone.copy_gb_per_s(device, full, to=dtype))

    def _calls(self, runner: TrainingRunner) -> list[Call]:
        observable = runner.observable()
        observable.activate()
        batch = next(observable.batches)
        try:
            return alone.calls_of(lambda: leave_gradients(observable.arm, *batch))
        except Exception as error:  # a model that cannot be observed; that it trains is known
            print(f"{runner.name}: the operators of its step are unknown: {type(error).__name__}: {error}")
            return []
        finally:
            runner.arm.optimizer.zero_grad(set_to_none=True)

    def _alone(self, runner: TrainingRunner, call: Call, taken: alone.Alone | None) -> None:
        if taken is not None:
            self._send(
                runner, "alone", call.title, taken.median_ms, work=call.work, detail=call.module, count=call.count
            )
            self._send(runner, "bytes", call.title, call.bytes / call.count, detail=call.module)

    def _types(self, runner: TrainingRunner, calls: Iterable[Call]) -> None:
        """Send the share of the FLOPs in each type, and the modules whose products are in fp32."""
        flops: dict[str, float] = defaultdict(float)
        modules: dict[str, list[str]] = defaultdict(list)
        for call in calls:
            if call.flops and call.dtype is not None:
                name = str(call.dtype).removeprefix("torch.")
                flops[name] += call.flops
                modules[name] += [call.module]
        for name, part in flops.items():
            where = ", ".join(itertools.islice(filter(None, dict.fromkeys(modules[name])), 5))
            self._send(runner, "types", name, 100 * part / sum(flops.values()), detail=where)

    def _try(self, runner: TrainingRunner, calls: Sequence[Call]) -> None:
        """Time the largest products in another layout and with padded sizes, beside as they are."""
        chosen = sorted((call for call in calls if call.flops), key=lambda call: -call.flops)[:LARGEST_TRIED]
        total = sum(call.flops for call in calls)
        for call in chosen:
            others: tuple[tuple[Finding, Call], ...] = (
                ("channels-last", call.channels_last()),
                ("padded", call.padded(ALIGNMENT)),
            )
            for name, other in others:
                if other == call or (name == "channels-last" and "convolution" not in call.name):
                    continue
                as_is, changed = alone.times([call, other], self.context.device, 2 * ALONE_S)
                if as_is is not None and changed is not None:
                    share = call.flops / total
                    ratio = changed.best_ms / as_is.best_ms
                    self._send(runner, name, call.title, ratio, detail=call.module, count=share)


def _endless(batches: Batches) -> Iterator[Batch]:
    return (batch for epoch in itertools.count(1) for batch in batches.train(epoch))


def _compute(runner: TrainingRunner) -> torch.dtype | None:
    """Return the type that an arm's products compute in; None for one that converts its layers, as to float8."""
    precision = runner.arm.precision
    return None if precision.conversion else getattr(torch, precision.compute)


def _in_traces(dtype: torch.dtype) -> str:
    """Return what a trace calls a type."""
    return {torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}.get(dtype, str(dtype))
