"""The explain phase: where a step's time goes in each precision, and what its products take alone.

Nothing measured here is a speedup: the profiler slows steps down, and the speed phase never runs under it. Plain and
profiled steps of all arms take turns, so that their differences are of one moment of the machine.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch

from bench.data.prepare import is_synthetic
from bench.devices.backend import backend_of, is_out_of_memory
from bench.measure import alone
from bench.measure.alone import Call
from bench.measure.disturbance import Watch, open_watch
from bench.measure.memory import resident_bytes
from bench.measure.operations import peak_tflops
from bench.measure.rounds import without_collection
from bench.measure.warmup import warm_up
from bench.phases.explain import Explained, Finding
from bench.phases.explain.trace import CLASSES, StepTime, decompose, profiled
from bench.results.records import Device, Message, Progress, Status, WorkClass
from bench.spec.errors import UsageError
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
OPERATORS = 25
"""The operators that are kept of a step, the longest."""
ALONE_S = 0.12
"""Seconds for timing a product alone, for each type."""
ALIGNMENT = 64
"""Sizes are padded to its multiples: 128 bytes of a 16-bit type, which is what NVIDIA's tensor cores want at most."""
LARGEST_TRIED = 3
"""Products that are tried in another layout and with other sizes, the largest."""
IN_TRACES = {torch.bfloat16: "c10::BFloat16", torch.float16: "c10::Half"}
"""Names of types in traces."""
LOADER_STEPS = (5, 30)
DOUBLED_BLOCKS = 5


def run(trial: Trial, device: Device, send: Callable[[Message], None]) -> None:
    """Explain the trial's precisions; send the figures, then a result for each."""
    context = open_context(trial)
    enter(trial.precisions[0], context.device)
    batches = context.resident_batches(BATCHES)
    runners = [context.runner(name, batches) for name in trial.precisions]
    for runner in runners:
        runner.compile(context, send)
    explanation = _Explanation(context=context, runners=runners, send=send)
    with open_watch(device) as watch, without_collection() as collect:
        disturbed = explanation.time_steps(trial.protocol.time_budget_s / 2, watch, collect)
    explanation.double_the_batch()
    explanation.wait_for_the_loader()
    explanation.time_products()
    for runner in runners:
        status: Status = "invalid" if disturbed else "ok"
        detail = disturbed
        if not runner.finite():
            status, detail = "nonfinite", "the loss became NaN or Inf"
        switches = runner.switches_after_a_step()
        send(runner.result(status, detail, switches=switches, operations=runner.operations()))


@dataclass(slots=True)
class _Explanation:
    """The arms of a trial, and where their figures go."""

    context: Context
    runners: Sequence[TrainingRunner]
    send: Callable[[Message], None]
    steps: dict[str, int] = field(default_factory=dict)
    """Steps of a block, by precision."""
    step_s: dict[str, float] = field(default_factory=dict)

    def _row(self, runner: TrainingRunner, kind: Finding, name: str, value: float, **more: Any) -> Explained:
        return Explained(trial=self.context.trial.id, precision=runner.name, kind=kind, name=name, value=value, **more)

    def _send(self, runner: TrainingRunner, kind: Finding, name: str, value: float, **more: Any) -> None:
        self.send(self._row(runner, kind, name, value, **more))

    def _send_call(self, runner: TrainingRunner, kind: Finding, call: Call, value: float, **more: Any) -> None:
        self._send(runner, kind, call.title, value, **{"detail": call.module, "count": call.count} | more)

    def _say(self, text: str) -> None:
        self.send(Progress(text=text))

    def time_steps(self, budget_s: float, watch: Watch, collect: Callable[[], object]) -> str:
        """Run plain and profiled blocks of all arms in turn; return what disturbed them, or an empty text.

        The first round is not used: arms that have just warmed up one after the other have yet to settle while the
        others also run.

        Args:
            budget_s: how long to go on after the fewest rounds.
            watch: names what disturbed the device.
            collect: runs Python's garbage collector, which must not run within a block.
        """
        for runner in self.runners:
            self._say(f"{runner.name}: warming up")
            warm = warm_up(runner, WARM_UP_S)
            self.step_s[runner.name] = warm.step_ns / 1e9
            self.steps[runner.name] = max(STEPS[0], min(STEPS[1], math.ceil(WINDOW_S * 1e9 / max(1.0, warm.step_ns))))
        profiles: dict[str, list[StepTime]] = defaultdict(list)
        before = {runner.name: runner.taken_steps() for runner in self.runners}
        end, rounds = math.inf, 0
        for turn in range(-1, ROUNDS[1]):
            if turn >= ROUNDS[0] and time.monotonic() > end:
                break
            rows, of_round = self._round(turn, collect)
            rounds += 1
            watch.poll()
            if turn < 0:
                end = time.monotonic() + budget_s
                continue
            for row in rows:
                self.send(row)
            for name, profile in of_round.items():
                profiles[name].append(profile)
        for runner in self.runners:
            steps = rounds * (2 * self.steps[runner.name] + SETTLING_STEPS + 1)  # the profiler does one more
            taken = runner.taken_steps() - before[runner.name]
            self._send(runner, "step", "skipped", 100 * (1 - taken / steps))
            if (foreign := watch.foreign_load_pct()) is not None:
                self._send(runner, "step", "foreign load", foreign)
            self._operators(runner, profiles[runner.name])
        return watch.disturbance()

    def _round(self, turn: int, collect: Callable[[], object]) -> tuple[list[Explained], dict[str, StepTime]]:
        """Run a plain and a profiled block of each arm, in an order that changes from round to round."""
        rows, profiles = list[Explained](), dict[str, StepTime]()
        for runner in self.runners if turn % 2 == 0 else reversed(self.runners):
            self._say(f"{runner.name}: round {turn + 1}, plain and profiled steps")
            _settle(runner)
            for profiling in (False, True) if turn // 2 % 2 == 0 else (True, False):
                if profiling:
                    profiles[runner.name], figures = self._profile(runner, turn)
                    rows += figures
                else:
                    step_ms = _step_ms(runner, self.steps[runner.name])
                    rows.append(self._row(runner, "step", "timed", step_ms, round=turn))
                collect()
        return rows, profiles

    def _profile(self, runner: TrainingRunner, turn: int) -> tuple[StepTime, list[Explained]]:
        backend = backend_of(self.context.device)
        trace = profiled(lambda: runner.run(1), self.steps[runner.name], gpu=backend.is_gpu)
        matrix_types = frozenset(IN_TRACES.get(dtype, str(dtype)) for dtype in backend.matrix_types())
        profile = decompose(trace, gpu=backend.is_gpu, matrix_types=matrix_types)
        figures = {"profiled": profile.step_ms, "kernels" if runner.asynchronous else "operators": profile.calls}
        if runner.asynchronous:
            figures["scaling wait"] = profile.scaling_wait_ms
        rows = [self._row(runner, "step", name, value, round=turn) for name, value in figures.items()]
        return profile, rows + [self._row(runner, "class", work, profile.ms[work], round=turn) for work in CLASSES]

    def _operators(self, runner: TrainingRunner, profiles: Sequence[StepTime]) -> None:
        """Send the longest operators of a step, each with the median of its times in the rounds."""
        kinds: dict[tuple[str, WorkClass, str], list[tuple[float, float]]] = defaultdict(list)
        for operator in itertools.chain.from_iterable(profile.operators for profile in profiles):
            sizes = " ".join("x".join(map(str, size)) for size in operator.sizes)
            types = " ".join(dict.fromkeys(name.removeprefix("c10::") for name in operator.types if name.strip()))
            kinds[operator.name, operator.work, f"{types} {sizes}".strip()].append((operator.ms, operator.count))
        medians = {key: tuple(map(statistics.median, zip(*values, strict=True))) for key, values in kinds.items()}
        longest = sorted(medians.items(), key=lambda item: -item[1][0])[:OPERATORS]
        for (name, work, detail), (ms, count) in longest:
            self._send(runner, "operator", name, ms, work=work, detail=detail, count=count)

    def double_the_batch(self) -> None:
        """Time steps of twice the batch in turn with steps as they are: where work takes the time, they take twice it.

        Arms that are compiled or captured are left out: they would have to be compiled again for that size, and steps
        that are neither cannot be compared with theirs. So are all on a CPU that lacks the memory for twice the batch,
        where the system would kill this process.
        """
        context, backend = self.context, backend_of(self.context.device)
        size = 2 * context.trial.cell.batch_size
        if not backend.is_gpu and backend.free_bytes() <= 2 * resident_bytes():
            return
        for runner in self.runners:
            if runner.arm.graph is not None or runner.arm.forward is not runner.arm.model:
                continue
            self._say(f"{runner.name}: steps of {size} samples")
            try:
                batches = context.resident_batches(1, batch_size=size)
                twice = TrainingRunner(runner.name, runner.arm, itertools.cycle(batches))
                _settle(twice)
                steps = max(1, self.steps[runner.name] // 2)
                pairs = [(_step_ms(runner, steps), _step_ms(twice, steps)) for _ in range(DOUBLED_BLOCKS)]
            except Exception as error:
                if not is_out_of_memory(error) and not isinstance(error, UsageError):  # an epoch may be too short
                    raise
                backend.release_cached_memory()
                continue
            as_is_ms, doubled_ms = zip(*pairs, strict=True)
            self._send(runner, "step", "doubled", statistics.median(doubled_ms))
            self._send(runner, "step", "not doubled", statistics.median(as_is_ms))

    def wait_for_the_loader(self) -> None:
        """Train on some of the suite's own batches in each precision, and send the share of time spent waiting."""
        context = self.context
        if is_synthetic(context.data, context.trial.cell.data):
            return
        for runner in self.runners:
            self._say(f"{runner.name}: training on batches as they are loaded")
            batches = context.open_batches()
            endless = itertools.chain.from_iterable(map(batches.train, itertools.count(1)))
            arm = TrainingRunner(runner.name, runner.arm, endless)
            steps = max(LOADER_STEPS[0], min(LOADER_STEPS[1], int(1.0 / self.step_s[runner.name])))
            _settle(arm)
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

    def time_products(self) -> None:
        """Time the baseline's large products alone in each arm's type, and each arm's largest in other layouts."""
        called = {runner.name: [call for call in runner.calls() if call.flops] for runner in self.runners}
        for runner in self.runners:
            enter(runner.name, self.context.device)
            self._types(runner, called[runner.name])
            peak = peak_tflops(runner.arm.precision, self.context.device)
            if peak is not None:
                self._send(runner, "rate", "products TFLOP/s", peak)
            self._say(f"{runner.name}: its largest products alone")
            self._try(runner, called[runner.name])
        self._products(called)

    def _products(self, called: Mapping[str, Sequence[Call]]) -> None:
        """Time the baseline's products alone, as they are and in the types and with the switches of the others."""
        baseline = self.runners[0]
        for call in alone.largest(called[baseline.name]):
            self._say(f"{call.name} alone, in all precisions")
            arms = [
                (runner, call.counterpart(called[runner.name], dtype))
                for runner in self.runners
                if (dtype := _compute(runner)) is not None
            ]
            variants = [variant for _, variant in arms]
            switches = [runner.activate for runner, _ in arms]
            taken = alone.times(variants, self.context.device, ALONE_S * len(arms), switches)
            for (runner, _), ms in zip(arms, taken, strict=True):
                if ms is not None:
                    self._send_call(runner, "best", call, ms)
            self._send_call(baseline, "flops", call, call.flops)

    def _types(self, runner: TrainingRunner, calls: Iterable[Call]) -> None:
        """Send the share of the FLOPs in each type, and the modules whose products are in fp32."""
        flops: dict[str, float] = defaultdict(float)
        modules: dict[str, list[str]] = defaultdict(list)
        for call in calls:
            if call.dtype is not None:
                name = str(call.dtype).removeprefix("torch.")
                flops[name] += call.flops
                modules[name] += [call.module]
        for name, part in flops.items():
            where = ", ".join(itertools.islice(filter(None, dict.fromkeys(modules[name])), 5))
            self._send(runner, "types", name, 100 * part / sum(flops.values()), detail=where)

    def _try(self, runner: TrainingRunner, calls: Sequence[Call]) -> None:
        """Time the largest products in another layout and with padded sizes, in turn with as they are."""
        chosen = sorted(calls, key=lambda call: -call.flops)[:LARGEST_TRIED]
        total = sum(call.flops for call in calls)
        for call in chosen:
            others: dict[Finding, Call] = {"channels-last": call.channels_last(), "padded": call.padded(ALIGNMENT)}
            for kind, other in others.items():
                if other == call or (kind == "channels-last" and "convolution" not in call.name):
                    continue
                as_is, changed = alone.times([call, other], self.context.device, 2 * ALONE_S)
                if as_is is not None and changed is not None:
                    self._send_call(runner, kind, call, changed / as_is, count=call.flops / total)


def _settle(runner: TrainingRunner) -> None:
    runner.activate()
    runner.run(SETTLING_STEPS)
    runner.synchronize()


def _step_ms(runner: TrainingRunner, steps: int) -> float:
    start = time.perf_counter()
    runner.run(steps)
    runner.synchronize()
    return 1e3 * (time.perf_counter() - start) / steps


def _compute(runner: TrainingRunner) -> torch.dtype | None:
    """Return the type that an arm's products compute in; None for one that converts its layers, as to float8."""
    precision = runner.arm.precision
    return None if precision.conversion else getattr(torch, precision.compute)
