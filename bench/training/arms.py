"""What phases share: a trial's suite, data and device, its arms in training, an arm's result."""

from __future__ import annotations

import itertools
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from bench.data import Batches, Shard, SuiteBatches, first_batches, open_batches
from bench.data.batch import Batch, first_dimension, tensors
from bench.devices.backend import backend_of, device_at
from bench.measure.operations import flops_by_module, observe
from bench.planning import suite_registry
from bench.results.records import Operations, Progress, Send, Status, Switches, TrialResult
from bench.spec.precisions import (
    Precision,
    parse_precision,
    unexpected_types,
    unexpected_types_in_words,
)
from bench.spec.suite import Data, Suite
from bench.spec.techniques import Techniques, techniques
from bench.spec.trial import COMPILING_S, Trial
from bench.training import amp, distributed
from bench.training.step import BuiltArm, build_arm
from bench.training.techniques import compilations, fresh_compiler_cache

# Batches on the device that steps take in turn: more than one, so that a loss does not collapse at
# once, and few, so that they leave memory to the model.
BATCHES = 4
# Modules of products in other types that are named; more would not fit a cell of a table.
MOST_MODULES = 3
# A model that still compiles after so many steps of one shape is timed as it is. If it compiles
# while it is timed, too, the rows of the process say so.
MOST_COMPILED_STEPS = 8


@dataclass(frozen=True, kw_only=True, slots=True)
class Context:
    """A trial and the objects that it names."""

    trial: Trial
    suite: Suite
    data: Data
    """The suite's data, with the number of classes where the trial knows it."""
    device: torch.device
    techniques: Techniques
    """Those of all arms; the ablation's steps have their own."""

    def build(
        self,
        name: str,
        *,
        techniques: Techniques | None = None,
        steps: int | None = None,
    ) -> BuiltArm:
        """Set the process to the precision called ``name`` and build its arm.

        Args:
            name: of the precision.
            techniques: those of an ablation step; None are the trial's.
            steps: optimizer steps of the whole training, for the schedule.

        Raises:
            UnsupportedError: a technique does not go with this suite or device.
        """
        precision = use_precision(name, self.device)
        arm = build_arm(
            self.suite,
            self.data,
            precision,
            self.device,
            seed=self.trial.seed,
            steps=steps,
            clip_grad=self.trial.clip_grad,
            techniques=techniques or self.techniques,
        )
        amp.apply(precision)  # again: a model may have set switches of its own
        return arm

    def runner(self, name: str, batches: Sequence[Batch]) -> TrainingRunner:
        """Return a precision's arm in training on some batches, again and again."""
        return TrainingRunner(name, self.build(name), itertools.cycle(batches))

    def samples_per_step(self, batches: Sequence[Batch]) -> float:
        """Return the mean number of samples of some batches, over all processes."""
        if self.suite.batches is None:
            return self.trial.cell.batch_size
        # A suite's own batches may differ in size.
        count = self.suite.count or first_dimension
        samples = sum(map(count, batches))
        return sum(distributed.gathered(samples / len(batches)))

    @property
    def shard(self) -> Shard:
        """This process's part of every batch, where several train together."""
        return Shard(rank=distributed.rank(), ranks=distributed.ranks())

    def open_batches(self) -> Batches:
        """Open the trial's data."""
        backend_of(self.device).set_current()
        cell = self.trial.cell
        opened: Callable[..., Batches] = partial(SuiteBatches, self.suite)
        if self.suite.batches is None:
            opened = partial(open_batches, self.data, cell.data)
        return opened(
            batch_size=cell.batch_size,
            device=self.device,
            seed=self.trial.seed,
            shard=self.shard,
        )

    def resident_batches(
        self,
        count: int,
        *,
        batch_size: int | None = None,
        device: torch.device | None = None,
    ) -> list[Batch]:
        """Return this process's part of the first batches of training, or of random ones.

        Args:
            count: of the batches; a suite's own epoch may have fewer.
            batch_size: samples in a batch; None are the trial's.
            device: the device they lie on; None is the trial's.
        """
        return first_batches(
            self.suite,
            self.data,
            batch_size=batch_size or self.trial.cell.batch_size,
            count=count,
            device=device or self.device,
            seed=self.trial.seed,
            shard=self.shard,
        )


def open_context(trial: Trial) -> Context:
    """Load the trial's suite and name its device, without touching the device."""
    suite = suite_registry.load(trial.cell.suite)
    data = suite.data
    if trial.cell.classes:
        data = replace(suite.data, classes=trial.cell.classes)
    device = device_at(trial.cell.placement.device_of(distributed.rank()))
    return Context(
        trial=trial,
        suite=suite,
        data=data,
        device=device,
        techniques=techniques(trial.cell.techniques),
    )


def by_shape(batches: Sequence[Batch]) -> list[Batch]:
    """Return one of the batches for each combination of their tensors' shapes."""
    shapes = {}
    for batch in batches:
        shape = tuple(tensor.shape for tensor in tensors(batch))
        shapes[shape] = batch
    return list(shapes.values())


def use_precision(name: str, device: torch.device) -> Precision:
    """Set the process to a device and a precision by its name."""
    precision = parse_precision(name)
    backend_of(device).set_current()
    amp.apply(precision)
    return precision


def enter(name: str, device: torch.device) -> Switches:
    """Set the process to a device and a precision; return its switches as read back.

    This multiplies matrices, for the error of a product. Where memory is measured, call it first:
    the library of products, and its workspace, are in memory then and not counted as the model's.
    """
    return amp.read_back(use_precision(name, device), device)


@dataclass
class TrainingRunner:
    """A model in training; a step trains on the next batch."""

    name: str
    arm: BuiltArm
    batches: Iterator[Batch]
    loss: Tensor | None = field(default=None, init=False)
    asynchronous: bool = field(init=False)
    compile_s: float | None = field(default=None, init=False)
    """Seconds that the arm took to compile; None where it does not."""
    wanted: Switches | None = field(default=None, init=False)
    """The switches that were set, where the arm is compared as one of its precision."""

    def __post_init__(self) -> None:
        self.asynchronous = backend_of(self.arm.device).is_gpu

    def activate(self) -> None:
        """Set TF32's switches and cuDNN's search to this arm's; all else is in the arm."""
        amp.apply(self.arm.precision)

    def run_steps(self, steps: int) -> None:
        """Queue that many steps."""
        arm = self.arm
        batches = self.batches
        for _ in range(steps):
            self.loss = None  # and its graph with it, before the next is made
            self.loss = arm.step(arm, next(batches))

    def compute(self) -> None:
        """Do the products of a step: forward and backward, without the update."""
        self.arm.gradients(self.arm, next(self.batches))

    def synchronize(self) -> None:
        """Wait for the device."""
        backend_of(self.arm.device).synchronize()

    def fingerprint(self) -> object:
        """Return the device allocations, the loss scale and the compilations, of all processes."""
        allocations = backend_of(self.arm.device).allocations()
        return distributed.gathered((allocations, self.arm.scaler.get_scale(), compilations()))

    def taken_steps(self) -> int:
        """Return how many optimizer steps were not skipped."""
        return self.arm.taken.count

    def finite(self) -> bool:
        """Return whether the last loss is a number."""
        return self.loss is None or bool(torch.isfinite(self.loss))

    def read_back(self) -> Switches:
        """Return the switches as they are now, which a model may have changed."""
        return amp.read_back(self.arm.precision, self.arm.device)

    def switches_after_a_step(self) -> Switches:
        """Read the switches back after a step: a model may have set some of its own in forward."""
        self.activate()
        self.run_steps(1)
        self.synchronize()
        return self.read_back()

    def operations(self) -> Operations:
        """Return the products of a step and the types that they run in, as far as they are known.

        It takes a batch, forward and backward, without an update, and neither compiled nor
        captured. That changes batch norm's statistics and allocates other memory than a step, so
        call it before the warm-up or after all that is measured, never between the two. All
        processes that train together must call it: a model's layers may wait for each other.
        """
        observable = self.observable()
        observable.activate()
        operations = observe(observable.compute)
        others = unexpected_types(self.arm.precision.name, operations.compute_dtypes)
        if not others:
            return operations
        # To follow modules takes another pass, so it is done only where there are some to name.
        modules: dict[str, None] = {}
        for (module, dtype), _flops in self.flops_by_module().most_common():
            if module and str(dtype).removeprefix("torch.") in others:
                modules[module] = None
        return replace(operations, other_modules=", ".join([*modules][:MOST_MODULES]))

    def flops_by_module(self) -> Counter[tuple[str, torch.dtype]]:
        """Return the FLOPs of a step by module and type; none where modules cannot be followed."""
        observable = self.observable()
        observable.activate()
        try:
            return flops_by_module(observable.compute)
        except Exception as error:  # a model that cannot be observed; that it trains is known
            kind = type(error).__name__
            print(f"{self.name}: the modules of its products are unknown: {kind}: {error}")
            return Counter()
        finally:
            self.arm.zero_grad()

    def result(
        self,
        status: Status = "ok",
        detail: str = "",
        *,
        switches: Switches,
        operations: Operations | None = None,
        **measured: Any,
    ) -> TrialResult:
        """Return the arm's result, judged by the arithmetic that really ran.

        It is ``invalid`` where the model changed the fp32 switches that were ``wanted``, or where
        no product of converted layers ran in float8. That autocast left much in fp32, for which a
        model may have reasons of its own, or that a model multiplied in a narrower type, is only in
        the detail. A result that is ``nonfinite`` stays so.

        Args:
            status: as it is otherwise.
            detail: likewise.
            switches: as the last step left them.
            operations: what a step computed; None if it is unknown.
            measured: other fields of the result, such as ``row``.
        """
        precision = self.arm.precision
        before = _fp32_of(self.wanted or switches)
        after = _fp32_of(switches)
        # A training that diverged says nothing about its arithmetic.
        if before != after and status != "nonfinite":
            status = "invalid"
            detail = f"the model changed the fp32 switches from {before} to {after}"
        if operations is not None and status != "nonfinite":
            missed = precision.missed(operations.compute_dtypes)
            if missed:
                status = "invalid"
            types = unexpected_types_in_words(
                precision.name,
                operations.compute_dtypes,
                operations.other_modules,
            )
            detail = "; ".join(filter(None, (missed, types, detail)))
        fields = {"arm": self.name, "compile_s": self.compile_s} | measured
        return TrialResult(
            status=status,
            detail=detail,
            switches=switches,
            operations=operations,
            **fields,
        )

    def observable(self) -> TrainingRunner:
        """Return a runner of the same arm that is neither compiled nor captured."""
        # What torch.compile or a capture runs is hidden from modes that see each operator.
        plain = replace(self.arm, forward=self.arm.model, graph=None)
        return replace(self, arm=plain)

    def compile(self, context: Context, send: Send) -> None:
        """Let the newly built arm compile before anything is observed or timed.

        It keeps the seconds that this takes. It runs over a batch of each shape, from an empty
        cache, until nothing is compiled any more.
        The seconds are those beyond as many steps that compile nothing. Nothing is learned: batch
        norm's statistics and the random generators are restored, and gradients are dropped.
        """
        if not self.arm.techniques.compile:
            return
        send(Progress(text=f"{self.name}: compiling", silence_s=COMPILING_S))
        self.activate()
        # Random batches all have one shape.
        count = 1 if context.suite.batches is None else BATCHES
        batches = context.resident_batches(count)
        # Batch norm counts the batches of this, too.
        buffers = [(buffer, buffer.clone()) for buffer in self.arm.model.buffers()]
        self.compile_s = 0.0
        with fresh_compiler_cache(), backend_of(self.arm.device).fork_rng():
            for batch in by_shape(batches):
                for step in self.compiled_steps(batch):
                    self.compile_s += _until_compiled(step, self.synchronize)
        self.arm.zero_grad()
        with torch.no_grad():
            for buffer, kept in buffers:
                buffer.copy_(kept)

    def compiled_steps(self, batch: Batch) -> list[Callable[[], object]]:
        """Return the parts of a training step that compile: forward and backward."""
        # The update runs as it is: only the model's forward pass is compiled.
        return [partial(self.arm.gradients, self.arm, batch)]


def _fp32_of(switches: Switches) -> str:
    matmul = switches.fp32_matmul
    conv = switches.fp32_conv
    rnn = switches.fp32_rnn
    return f"matmul {matmul}, conv {conv}, rnn {rnn}"


def _until_compiled(step: Callable[[], object], synchronize: Callable[[], None]) -> float:
    """Repeat a step until it compiles nothing; return the seconds beyond as many ordinary ones."""
    times_s: list[float] = []
    while len(times_s) <= MOST_COMPILED_STEPS:
        before = compilations()
        synchronize()
        start = time.perf_counter()
        step()
        synchronize()
        times_s.append(time.perf_counter() - start)
        if compilations() == before:
            break
    # The last step compiled nothing, so it took as long as an ordinary one.
    ordinary_s = len(times_s) * times_s[-1]
    return max(0.0, sum(times_s) - ordinary_s)
