"""A step's products alone: the time of each on operands of the same shapes, strides and types, and nothing around it.

Products are matrix products, convolutions and attention, seen below autocast, forward and backward, so with the types
that they really compute in.
"""

from __future__ import annotations

import itertools
import math
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

from bench.devices.backend import backend_of
from bench.devices.base import Backend
from bench.measure.operations import flops_of, formulas, is_product

COVERED = 0.98
"""Products are measured, the largest first, until so much of their FLOPs is covered."""
MOST_COPIES = 8
"""On a CPU, operands are taken in turn from copies of ``Backend.cold_bytes`` together, or from so many copies if those
are less: a cache does not keep large ones, and may keep small ones, as it may in a step. A GPU's caches are evicted."""
FEWEST_CALLS, MOST_CALLS = 3, 200
SHORTEST_S = 2e-4
"""A call that takes less is timed in groups that take as long, so that the clock does not count."""
SPARE = 2.0
"""A GPU evicts its caches for so many times as long as the host queues a call."""


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
    """A product of operands of certain shapes, as often as a step calls it."""

    function: Any
    """The operator's overload."""
    arguments: tuple[Any, ...]
    keywords: dict[str, Any]
    """Arguments by position and by name, an ``Operand`` in the place of each tensor."""
    module: str
    """The module that called it first, as named in the model; empty outside of them, as in the loss."""
    count: int = 0
    flops: float = 0.0
    """Of all its calls in a step; 0 where no formula counts them."""
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
    """Do one step, forward and backward, and return the products called.

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
    """Keeps the products that are called, by their operands."""

    def __init__(self, modules: ModuleTracker) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._modules, self._formulas = modules, formulas()
        self.calls: dict[str, Call] = {}
        """In the order of the first calls."""

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Call ``func`` and keep it."""
        kwargs = kwargs or {}
        packet = getattr(func, "overloadpacket", None)
        if packet is None or not is_product(str(packet)):
            return func(*args, **kwargs)
        described = tree_map_only(Tensor, _describe, (args, kwargs))  # before it runs, for it may change them
        result = func(*args, **kwargs)
        key, (arguments, keywords) = f"{func} {described}", described
        new = Call(function=func, arguments=arguments, keywords=keywords, module=self._module())
        call = self.calls.get(key, new)
        flops = flops_of(self._formulas.get(packet), args, kwargs, result) or 0
        self.calls[key] = replace(call, count=call.count + 1, flops=call.flops + flops)
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


def largest(calls: Iterable[Call]) -> list[Call]:
    """Return the calls that have the most FLOPs and together make up the share ``COVERED`` of them."""
    ordered = sorted(calls, key=lambda call: call.flops, reverse=True)
    total = sum(call.flops for call in ordered)
    so_far, chosen = 0.0, list[Call]()
    for call in ordered:
        if so_far >= COVERED * total:
            break
        chosen.append(call)
        so_far += call.flops
    return chosen


def times(
    variants: Sequence[Call],
    device: torch.device,
    budget_s: float,
    settings: Sequence[Callable[[], object]] = (),
) -> list[float | None]:
    """Return the shortest time in ms of each call alone, in turn, so that a drift of the machine meets all.

    It is None for one that fails.

    Args:
        variants: the same operator in other types, layouts or sizes.
        device: where.
        budget_s: seconds to spend on all; each is called three times at least.
        settings: called before each variant, such as to set TF32's switches; none or as many as variants.
    """
    settings = settings or [lambda: None] * len(variants)
    runs = [_prepared(call, device) for call in variants]
    taken: list[list[float]] = [[] for _ in variants]
    end, turns = time.perf_counter() + budget_s, list(zip(settings, runs, taken, strict=True))
    for number in range(MOST_CALLS):
        if number >= FEWEST_CALLS and time.perf_counter() >= end:
            break
        for set_up, run, seconds in turns if number % 2 == 0 else turns[::-1]:
            if run is not None:
                set_up()
                seconds.append(run())
    return [1e3 * min(each) if each else None for each in taken]


def _prepared(call: Call, device: torch.device) -> Callable[[], float] | None:
    """Return a function that times a call once, in seconds; None where it does not run on random operands."""
    generator, backend = torch.Generator(device).manual_seed(0), backend_of(device)
    size = max(1, sum(operand.elements * operand.dtype.itemsize for operand in call.operands))
    copies = 1 if backend.is_gpu else max(1, min(MOST_COPIES, math.ceil(backend.cold_bytes / size)))

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
            if backend.is_gpu:
                backend.evict()  # allocates, the first time, for which there may be no memory
    except Exception as error:  # an operator that asks more of its operands than their shapes and types, or no memory
        print(f"{call.title} does not run alone: {type(error).__name__}: {str(error).splitlines()[0]}")
        return None
    group = 1 if backend.is_gpu else max(1, math.ceil(SHORTEST_S / max(1e-9, taken_s)))
    turns = itertools.cycle(functions)

    def run() -> None:
        with torch.no_grad():
            for _ in range(group):
                next(turns)()

    timed = partial(_gpu_s, backend=backend) if backend.is_gpu else _clocked_s
    return lambda: timed(run) / group


def _clocked_s(run: Callable[[], object], wait: Callable[[], object] = lambda: None) -> float:
    start = time.perf_counter()
    run()
    wait()
    return time.perf_counter() - start


def _gpu_s(run: Callable[[], object], backend: Backend) -> float:
    """Return the seconds that a GPU takes for what is queued, with nothing in its caches, however slow the host is.

    The GPU evicts its caches until all is in its queue, so that launching takes no time.
    """
    backend.synchronize()
    evict_s = _clocked_s(backend.evict, backend.synchronize)
    queueing_s = _clocked_s(run)
    backend.synchronize()
    for _ in range(math.ceil(SPARE * queueing_s / evict_s)):
        backend.evict()
    first = backend.record_event(timing=True)
    run()
    last = backend.record_event(timing=True)
    backend.synchronize()
    return float(first.elapsed_time(last)) / 1e3
