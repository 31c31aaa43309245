"""A step's operators alone: the time of each on operands of the same shapes, strides and types, and nothing around it.

Operators are seen below autocast, forward and backward, so with the types that they really compute in. What a precision
would gain follows from the rates of the baseline's products in its compute type, without running the precision.
"""

from __future__ import annotations

import itertools
import math
import statistics
import time
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves, tree_map_only
from torch.utils.module_tracker import ModuleTracker

from bench.devices.backend import Backend, backend_of
from bench.measure.operations import flops_of, formulas, is_product
from bench.measure.trace import BOOKKEEPING, LAYOUT, operator_class
from bench.results.records import WorkClass

COVERED = 0.98
"""Operators are measured, the largest first, until so much of their FLOPs and of their bytes is covered."""
MOST_COPIES = 8
"""On a CPU, operands are taken in turn from copies of ``Backend.cold_bytes`` together, or from so many copies if those
are less: a cache does not keep large ones, and may keep small ones, as it may in a step. A GPU's caches are evicted."""
FEWEST_CALLS, MOST_CALLS = 3, 200
SHORTEST_S = 2e-4
"""A call that takes less is timed in groups that take as long, so that the clock does not count."""
CYCLES_PER_S, SPARE = 2e9, 2.0
"""A GPU's clock, roughly, and how many times as long as the host queues work the GPU waits for it."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Operand:
    """A tensor's description."""

    shape: tuple[int, ...]
    stride: tuple[int, ...]
    dtype: torch.dtype
    device: torch.device | None = None
    """Where the step had it, such as attention's random seed on the CPU; None is where the call is timed."""
    layout: torch.layout = torch.strided
    largest: int = field(default=0, compare=False, repr=False)
    """The largest of its numbers, if they are whole and not negative, as indices into another tensor are; or 0."""

    @property
    def elements(self) -> int:
        """Elements of the memory that it spans; 0 where they are not laid out by strides."""
        if 0 in self.shape or self.layout is not torch.strided:
            return 0
        return 1 + sum((size - 1) * step for size, step in zip(self.shape, self.stride, strict=True))

    def make(self, device: torch.device, generator: torch.Generator | None) -> Tensor:
        """Return such a tensor of normal random numbers; of random indices up to the largest where they are whole.

        It is on ``device`` unless the step had it elsewhere. Raises TypeError if it is not laid out by strides.
        """
        if self.layout is not torch.strided:
            raise TypeError(f"operands that are {str(self.layout).removeprefix('torch.')} are not made up")
        if self.device is not None and self.device.type != device.type:
            device, generator = self.device, None
        if self.dtype.is_floating_point:
            memory = torch.randn(self.elements, device=device, generator=generator).to(self.dtype)
        else:
            indices = torch.randint(self.largest + 1, (self.elements,), device=device, generator=generator)
            memory = indices.to(self.dtype)
        return memory.as_strided(self.shape, self.stride)

    def copy(self, tensor: Tensor) -> Tensor:
        """Return such a tensor with the numbers of another, in memory of its own."""
        return tensor.as_strided((self.elements,), (1,)).clone().as_strided(self.shape, self.stride)

    def __str__(self) -> str:
        """Describe it as in ``float32[128x64]``."""
        return f"{str(self.dtype).removeprefix('torch.')}[{'x'.join(map(str, self.shape))}]"


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """An operator on operands of certain shapes, as often as a step calls it."""

    function: Any
    """The operator's overload."""
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    """Arguments by position and by name, an ``Operand`` in the place of each tensor."""
    work: WorkClass
    module: str
    """The module that called it first, as named in the model; empty outside of them, as in the loss."""
    count: int = 0
    flops: float = 0.0
    """Of all its calls in a step; 0 for what is no product."""
    bytes: float = 0.0
    """Of the operands and results of all its calls in a step."""
    number: int = 1
    """Counts a step's calls that differ in strides or options alone, from 1."""

    @property
    def name(self) -> str:
        """The operator's name without its namespace and overload, such as ``addmm``."""
        return str(self.function.overloadpacket).rpartition(".")[2]

    @property
    def operands(self) -> list[Operand]:
        """Its tensors, in order."""
        return _operands((self.arguments, self.keywords))

    @property
    def dtype(self) -> torch.dtype | None:
        """The type that it computes in: the narrowest of its operands' floating-point types; None if it has none."""
        floats = [operand.dtype for operand in self.operands if operand.dtype.is_floating_point]
        return min(floats, key=lambda dtype: dtype.itemsize, default=None)

    @property
    def title(self) -> str:
        """Its name with its operands; no other call of its step has the same."""
        words = [self.name, *map(str, self.operands), *([f"#{self.number}"] if self.number > 1 else [])]
        return " ".join(words)

    def in_type(self, dtype: torch.dtype) -> Call:
        """Return the same call with the operands that autocast would cast in another type.

        The statistics that attention keeps for its backward pass, of fewer dimensions than its factors, stay as they
        are.
        """
        dimensions = max((len(operand.shape) for operand in self.operands), default=0)
        attention = "attention" in self.name

        def cast(operand: Operand) -> Operand:
            if operand.dtype != torch.float32 or (attention and len(operand.shape) < dimensions):
                return operand
            return replace(operand, dtype=dtype)

        return self.with_operands(cast)

    def counterpart(self, others: Iterable[Call], dtype: torch.dtype) -> Call:
        """Return this call as a step in another type does it.

        Fused attention has other kernels in other types, so it is that step's own (``others``) on as large a query or
        gradient; where there is none, and of all else, it is the same operator (``in_type``).
        """
        if "attention" not in self.name or dtype == self.dtype:
            return self.in_type(dtype)
        kind = "backward" in self.name, dtype, self.operands[0].shape
        fused = (other for other in others if "attention" in other.name)
        alike = (each for each in fused if ("backward" in each.name, each.dtype, each.operands[0].shape) == kind)
        return next(alike, self.in_type(dtype))

    def padded(self, multiple: int) -> Call:
        """Return the same call with every size above ``multiple`` rounded up to a multiple.

        Of convolutions only batch and channels are: more pixels would be other work.
        """
        dimensions = 2 if "convolution" in self.name else None

        def pad(operand: Operand) -> Operand:
            sizes = operand.shape[:dimensions]
            shape = tuple(size if size <= multiple else math.ceil(size / multiple) * multiple for size in sizes)
            shape += operand.shape[len(sizes) :]
            return replace(operand, shape=shape, stride=_strides_like(operand, shape))

        return self.with_operands(pad)

    def channels_last(self) -> Call:
        """Return the same convolution with its four-dimensional operands laid out channels last."""

        def turn(operand: Operand) -> Operand:
            if len(operand.shape) != 4:
                return operand
            _n, c, h, w = operand.shape
            return replace(operand, stride=(h * w * c, 1, w * c, c))

        return self.with_operands(turn)

    def with_operands(self, change: Callable[[Operand], Operand]) -> Call:
        """Return the same call with its operands changed."""
        arguments, keywords = self.with_each(change)
        return replace(self, arguments=arguments, keywords=keywords)

    def with_each(self, change: Callable[[Operand], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return the arguments by position and by name, with something else in the place of each operand."""
        arguments, keywords = tree_map_only(Operand, change, (self.arguments, self.keywords))
        return arguments, keywords


def _operands(tree: Any) -> list[Operand]:
    return [leaf for leaf in tree_leaves(tree) if isinstance(leaf, Operand)]


def _strides_like(operand: Operand, shape: Sequence[int]) -> tuple[int, ...]:
    """Return dense strides for a shape in the order of an operand's; expanded dimensions stay expanded."""
    strides, step = [0] * len(shape), 1
    for index in sorted(range(len(shape)), key=lambda index: (operand.stride[index], -index)):
        if operand.stride[index] or operand.shape[index] == 1:
            strides[index] = step
            step *= shape[index]
    return tuple(strides)


def calls_of(step: Callable[[], object]) -> list[Call]:
    """Do one step, forward and backward, and return the operators called, without those that only describe tensors.

    Raises:
        Exception: whatever the step raises, or a model that cannot be observed.
    """
    with ModuleTracker() as modules:
        seen = _Calls(modules)
        with seen:
            step()
    numbers: Counter[str] = Counter()
    calls = []
    for call in seen.calls.values():
        numbers[call.title] += 1
        calls.append(replace(call, number=numbers[call.title]))
    return calls


class _Calls(TorchDispatchMode):
    """Keeps the operators that are called, by their operands."""

    def __init__(self, modules: ModuleTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules, self._formulas = modules, formulas()
        self.calls: dict[str, Call] = {}
        """In the order of the first calls."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` and keep it."""
        kwargs = kwargs or {}
        described = tree_map_only(Tensor, _describe, (args, kwargs))  # before it runs, for it may change them
        result = func(*args, **kwargs)
        packet = getattr(func, "overloadpacket", None)
        if packet is not None and (work := _work(func, described)):
            key, (arguments, keywords) = f"{func} {described}", described
            new = Call(function=func, arguments=arguments, keywords=keywords, work=work, module=self._module())
            call = self.calls.get(key, new)
            tensors = [leaf for leaf in tree_leaves((args, kwargs, result)) if isinstance(leaf, Tensor)]
            moved = float(sum(tensor.numel() * tensor.itemsize for tensor in tensors))
            flops = flops_of(self._formulas.get(packet), args, kwargs, result) or 0
            self.calls[key] = replace(call, count=call.count + 1, flops=call.flops + flops, bytes=call.bytes + moved)
        return result

    def _module(self) -> str:
        """Return the innermost module that runs, in backward too."""
        names = [name for name in self._modules.parents if name != "Global"]
        return max(names, key=len, default="").partition(".")[2]


def _describe(tensor: Tensor) -> Operand:
    place: dict[str, Any] = {"dtype": tensor.dtype, "device": tensor.device, "layout": tensor.layout}
    if tensor.layout is not torch.strided:
        return Operand(shape=tuple(tensor.shape), stride=(), **place)
    whole = tensor.dtype in (torch.int32, torch.int64) and tensor.numel() > 0
    largest = int(tensor.max()) if whole and int(tensor.min()) >= 0 else 0
    return Operand(shape=tuple(tensor.shape), stride=tensor.stride(), largest=largest, **place)


def _work(func: Any, described: Any) -> WorkClass | None:
    """Return the class of an operator's work; None for views and what only describes tensors."""
    name = f"{func.namespace}::{str(func.overloadpacket).rpartition('.')[2]}"
    if BOOKKEEPING.match(name) or not _operands(described):
        return None
    if LAYOUT.match(name) or name == "aten::copy_":
        return "casts and layout"
    return "other products" if is_product(name) else operator_class(name) or "unknown"


def largest(calls: Iterable[Call], *, by: Callable[[Call], float], share: float = COVERED) -> list[Call]:
    """Return the calls that are largest by a measure and together make up a share of it; none where all are 0."""
    ordered = sorted((call for call in calls if by(call) > 0), key=by, reverse=True)
    total, so_far, chosen = sum(map(by, ordered)), 0.0, list[Call]()
    for call in ordered:
        if so_far >= share * total:
            break
        chosen.append(call)
        so_far += by(call)
    return chosen


@dataclass(frozen=True, kw_only=True, slots=True)
class Alone:
    """The times of a call alone."""

    median_ms: float
    best_ms: float


def times(
    variants: Sequence[Call],
    device: torch.device,
    budget_s: float,
    settings: Sequence[Callable[[], object]] = (),
    *,
    cached: bool = False,
) -> list[Alone | None]:
    """Time calls alone, in turn, so that a drift of the machine meets all; None for one that fails.

    Args:
        variants: the same operator in other types, layouts or sizes.
        device: where.
        budget_s: seconds to spend on all; each is called three times at least.
        settings: called before each variant, such as to set TF32's switches; none or as many as variants.
        cached: whether each call has the operands of the call before, which the cache may hold.
    """
    settings = settings or [lambda: None] * len(variants)
    runs = [_prepared(call, device, cached=cached) for call in variants]
    taken: list[list[float]] = [[] for _ in variants]
    end, turns = time.perf_counter() + budget_s, list(zip(settings, runs, taken, strict=True))
    for number in range(MOST_CALLS):
        if number >= FEWEST_CALLS and time.perf_counter() >= end:
            break
        for set_up, run, seconds in turns if number % 2 == 0 else turns[::-1]:
            if run is not None:
                set_up()
                seconds.append(run())
    return [Alone(median_ms=1e3 * statistics.median(each), best_ms=1e3 * min(each)) if each else None for each in taken]


def _prepared(call: Call, device: torch.device, *, cached: bool) -> Callable[[], float] | None:
    """Return a function that times a call once, in seconds; None where it does not run on random operands."""
    generator, backend = torch.Generator(device).manual_seed(0), backend_of(device)
    size = max(1, sum(operand.elements * operand.dtype.itemsize for operand in call.operands))
    copies = 1 if cached or backend.is_gpu else max(1, min(MOST_COPIES, math.ceil(backend.cold_bytes / size)))

    first: dict[int, Tensor] = {}

    def make(operand: Operand) -> Tensor:
        if id(operand) in first:
            return operand.copy(first[id(operand)])
        tensor = first[id(operand)] = operand.make(device, generator)
        return tensor

    try:
        sets = [call.with_each(make) for _ in range(copies)]
        functions = [partial(call.function, *arguments, **keywords) for arguments, keywords in sets]
        with torch.no_grad():
            for function in functions:
                function()
            backend.synchronize()
            taken_s = _clocked_s(functions[0], backend.synchronize)
            cold = backend.is_gpu and not cached
            if cold:
                backend.evict()  # perhaps for the first time, which allocates
            group = 1 if cold else max(1, math.ceil(SHORTEST_S / max(1e-9, taken_s)))
    except Exception as error:  # an operator that asks more of its operands than their shapes and types
        print(f"{call.title} does not run alone: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None
    turns = itertools.cycle(functions)

    def run() -> None:
        with torch.no_grad():
            for _ in range(group):
                next(turns)()

    if backend.is_gpu:
        return lambda: _gpu_s(run, backend, cold=cold) / group
    return lambda: _clocked_s(run) / group


def _clocked_s(run: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _gpu_s(run: Callable[[], object], backend: Backend, *, cold: bool = False) -> float:
    """Return the seconds that a GPU takes for what is queued, however slowly the host queues it.

    The GPU waits until all is in its queue, so that launching is in no time. ``cold`` evicts its caches before.
    """
    backend.synchronize()
    queueing_s = _clocked_s(run)
    backend.synchronize()
    backend.spin(int(SPARE * queueing_s * CYCLES_PER_S))
    if cold:
        backend.evict()
    first = backend.record_event(timing=True)
    run()
    last = backend.record_event(timing=True)
    backend.synchronize()
    return float(first.elapsed_time(last)) / 1e3


def copy_gb_per_s(device: torch.device, dtype: torch.dtype, *, to: torch.dtype | None = None, calls: int = 10) -> float:
    """Return the best rate in GB/s at which memory is read and written by a copy, in a type or from one to another."""
    backend = backend_of(device)
    source = torch.zeros(backend.cold_bytes // dtype.itemsize, dtype=dtype, device=device)
    target = torch.zeros_like(source, dtype=to or dtype)
    copy = partial(target.copy_, source)
    seconds = [_gpu_s(copy, backend) if backend.is_gpu else _clocked_s(copy) for _ in range(calls + 1)]
    moved = source.numel() * (source.itemsize + target.itemsize)
    return moved / min(seconds[1:]) / 1e9
