"""Observes single training steps: their time, what holds memory, what is cast or not finite.

It needs torch alone: a script's own process, in which this package cannot be imported, has a copy
of it. There ``LoopObserver`` follows the steps of a loop that it does not run.

The operators of a backward pass belong to the module whose forward pass recorded them: both have
the same sequence number of autograd.
"""

from __future__ import annotations

import math
import weakref
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.module import register_module_forward_hook, register_module_forward_pre_hook
from torch.optim import Optimizer
from torch.profiler import ProfilerActivity, record_function
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

# The name of the ranges that mark the steps of a trace.
STEP = "training step"
# The beginning of the name of a range that marks a module's forward pass; the module's own name
# follows.
MODULE = "module: "
# Names by which DistributedDataParallel, torch.compile and FSDP hold a model.
WRAPPERS = ("module", "_orig_mod", "_fsdp_wrapped_module")
CASTS = ("_to_copy", "clone")
# Groups of tensors that are kept, the largest: a report shows ten that changed most.
KEPT = 40
# How many times the bytes of its inputs and results an operator takes inside, from which that is
# kept: the library has fallen back to an algorithm that unfolds a copy.
UNFOLDED = 3

# The operator that made tensors, the module that called it, and their shape and type.
Group = tuple[str, str, str]
# A figure: its kind, name, module, detail and value.
Row = dict[str, Any]


class ModuleStack:
    """The modules whose forward passes run, in this thread."""

    def __init__(self, *, marked: bool = False) -> None:
        self.marked = marked
        """Whether a trace shows each as a range."""
        self._names: weakref.WeakKeyDictionary[nn.Module, str] = weakref.WeakKeyDictionary()
        self._running: list[tuple[str, Any]] = []
        self._handles: list[Any] = []

    def __enter__(self) -> ModuleStack:
        self._handles = [
            register_module_forward_pre_hook(self._begin),
            register_module_forward_hook(self._end, always_call=True),
        ]
        return self

    def __exit__(self, *_: object) -> None:
        for handle in self._handles:
            handle.remove()

    @property
    def known(self) -> list[nn.Module]:
        """The modules that ran, and those within them."""
        return list(self._names)

    @property
    def innermost(self) -> str:
        """The name of the innermost module; empty outside of all."""
        if self._running:
            return self._running[-1][0]
        return ""

    def name(self, module: nn.Module) -> str:
        """Return a module's name within the outermost one, which has the name of its class."""
        if module not in self._names:
            for path, each in module.named_modules():
                parts = [part for part in path.split(".") if part not in WRAPPERS]
                name = ".".join(parts) or type(each).__name__
                self._names.setdefault(each, name)
        return self._names[module]

    def _begin(self, module: nn.Module, _inputs: object) -> None:
        name = self.name(module)
        mark = None
        if self.marked:
            mark = record_function(MODULE + name)
            mark.__enter__()
        self._running.append((name, mark))

    def _end(self, _module: nn.Module, _inputs: object, _output: object) -> None:
        _, mark = self._running.pop()
        if mark is not None:
            mark.__exit__(None, None, None)


def open_profiler(*, gpu: bool) -> torch.profiler.profile:
    """Return a profiler of operators with the shapes of their inputs, and on a GPU of kernels."""
    activities = [ProfilerActivity.CPU]
    if gpu:
        activities.append(ProfilerActivity.CUDA)
    return torch.profiler.profile(activities=activities, record_shapes=True)


class PeakHolders(TorchDispatchMode):
    """Groups the bytes that are alive at the peak of a step by the operator that made them.

    Tensors are counted storage by storage, below autocast and autograd. On CUDA, the allocator's
    own peak around an operator shows what it takes beyond its result: workspaces, and copies that
    it drops before it returns.
    """

    def __init__(self, device: torch.device, there: Mapping[str, Iterable[Tensor]]) -> None:
        """Begin with the tensors that are there before the step, by what they are."""
        super().__init__()  # type: ignore[no-untyped-call]
        self.modules = ModuleStack()
        self.peak_bytes = 0
        self.running = ("", "")
        """The operator that ran at the peak, and its module."""
        self._device = device.type
        self._bytes = 0
        self._alive: Counter[Group] = Counter()
        self._at_peak: Counter[Group] = Counter()
        self._noted: defaultdict[str, Counter[Group]] = defaultdict(Counter)
        """What is taken inside, copied whole, cast repeatedly or cast to fp32 and back, by the kind
        of its row."""
        self._casts: Counter[int] = Counter()
        """By the storage that is cast."""
        self._widened: list[Group] = []
        """Casts to a wider type since the last one to a narrower type."""
        self._module_of: dict[int, str] = {}
        """By the sequence number of the node that autograd recorded."""
        self._known: set[int] = set()
        """Storages that are counted."""
        for what, tensors in there.items():
            for tensor in tensors:
                self._see(tensor, (what, "", ""))

    def __enter__(self) -> Any:
        self.modules.__enter__()
        return super().__enter__()  # type: ignore[no-untyped-call]

    def __exit__(self, *error: Any) -> None:
        super().__exit__(*error)  # type: ignore[no-untyped-call]
        self.modules.__exit__(*error)

    def __torch_dispatch__(
        self,
        func: Any,
        types: Any,
        args: Any = (),
        kwargs: Any = None,
    ) -> Any:
        """Do an operator, and note the storages that it makes."""
        before = 0
        if self._device == "cuda":
            torch.cuda.reset_peak_memory_stats()
            before = torch.cuda.memory_allocated()
        result = func(*args, **(kwargs or {}))
        tensors = _tensors(result)
        name = func.overloadpacket.__name__
        module = self._module()
        shape = ""
        if tensors:
            shape = _shape(tensors[0])
        group = name, module, shape
        if self._device == "cuda":
            kept = max(0, torch.cuda.memory_allocated() - before)
            inside = torch.cuda.max_memory_allocated() - before - kept
            operands = _tensors((args, kwargs))
            outside = 0
            for tensor in (*operands, *tensors):
                outside += tensor.nbytes
            if inside > UNFOLDED * outside:
                self._noted["unfolded"] |= Counter({group: inside})
        if name in CASTS and isinstance(args[0], Tensor):
            source = args[0]
            self._note_copy(group, source, tensors[0])
            self._note_widening(group, source, tensors[0])
        for tensor in tensors:
            shape = _shape(tensor)
            self._see(tensor, (name, module, shape))
        return result

    def rows(self) -> Iterator[Row]:
        """Yield what was alive at the peak, and what was noted of the operators."""
        name, module = self.running
        yield _row("peak", name, module, "", self.peak_bytes)
        kinds = {"held": self._at_peak, **self._noted}
        for kind, values in kinds.items():
            for (name, module, detail), value in values.most_common(KEPT):
                yield _row(kind, name, module, detail, value)

    def _module(self) -> str:
        """Return the module of the operator that runs, and note it for its backward pass."""
        node = torch._C._current_autograd_node()
        innermost = self.modules.innermost
        if node is not None and not innermost:
            number = node._sequence_nr()
            return self._module_of.get(number, "")
        # The node that records the operator was made just before, and took the last number.
        number = torch._C._autograd._get_sequence_nr() - 1
        self._module_of[number] = innermost
        return innermost

    def _note_copy(self, group: Group, source: Tensor, result: Tensor) -> None:
        """Note a copy of a view of less memory, and a tensor that is cast more than once."""
        stored = source.untyped_storage()
        if 2 * stored.nbytes() // source.element_size() < result.numel():
            self._noted["expanded"][group] += result.nbytes
        if source.dtype != result.dtype:
            key = stored._cdata
            self._casts[key] += 1
            times = self._casts[key]
            if times > 1:
                self._noted["repeated"] |= Counter({group: times})

    def _note_widening(self, group: Group, source: Tensor, result: Tensor) -> None:
        """Note a cast to a wider type in the forward pass once a later one narrows again."""
        are_floats = source.is_floating_point() and result.is_floating_point()
        if not are_floats:
            return
        if torch._C._current_autograd_node() is not None:
            # what was widened last, such as the output for the loss, led to no narrow work
            self._widened.clear()
        elif source.itemsize < result.itemsize:
            self._widened.append(group)
        elif source.itemsize > result.itemsize:
            self._noted["widened"].update(self._widened)
            self._widened.clear()

    def _see(self, tensor: Tensor, group: Group) -> None:
        if tensor.device.type != self._device:
            return
        storage = tensor.untyped_storage()
        size = storage.nbytes()
        key = storage._cdata
        if key in self._known or not size:
            return
        self._known.add(key)
        self._alive[group] += size
        self._bytes += size
        weakref.finalize(storage, self._forget, key, group, size)
        if self._bytes > self.peak_bytes:
            self.peak_bytes = self._bytes
            self.running = group[:2]
            self._at_peak = +self._alive  # a copy without the groups that hold nothing any more

    def _forget(self, key: int, group: Group, size: int) -> None:
        self._known.discard(key)
        self._casts.pop(key, None)
        self._alive[group] -= size
        self._bytes -= size


def held_before(
    modules: Iterable[nn.Module], optimizers: Iterable[Optimizer]
) -> dict[str, list[Tensor]]:
    """Return the tensors that are there before a step, by what they are."""
    parameters = []
    for module in modules:
        parameters += [*module.parameters(), *module.buffers()]
    state = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            parameters += group["params"]
        state += _tensors(list(optimizer.state.values()))
    gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
    return {
        "parameters": parameters,
        "optimizer state": state,
        "gradients": gradients,
    }


class LoopObserver:
    """Observes a loop of a script by the ends of its optimizers' steps.

    Steps are left as they are, then profiled; in one more iteration memory is observed, and in
    another the modules, if the loss is not finite.
    """

    def __init__(
        self,
        trace: str,
        recorded: Sequence[Mapping[str, Any]],
        *,
        plain: int,
        profiled: int,
    ) -> None:
        """Begin.

        Args:
            trace: the path to which the profiler's trace is written.
            recorded: the hook's steps so far, to which it adds.
            plain: steps that are left as they are.
            profiled: steps that are profiled then.
        """
        self.rows: list[Row] = []
        self._optimizers: weakref.WeakSet[Optimizer] = weakref.WeakSet()
        self._course = self._observe(trace, recorded, plain, profiled)

    def ended(self, optimizer: Optimizer) -> None:
        """Go on after a step of an optimizer."""
        self._optimizers.add(optimizer)
        next(self._course, None)

    def _observe(
        self,
        trace: str,
        recorded: Sequence[Mapping[str, Any]],
        plain: int,
        profiled: int,
    ) -> Iterator[None]:
        """Yield until the next optimizer's step has ended."""
        for _ in range(plain):
            yield
        # torch.compile would compile anew with hooks on its modules, or under a dispatch mode.
        is_compiled = any("compile" in step["marks"] for step in recorded)
        modules = ModuleStack(marked=True)
        with open_profiler(gpu=torch.cuda.is_initialized()) as profiler:
            if not is_compiled:
                modules.__enter__()
            yield  # the profiler's first step is slower
            _synchronize()
            for _ in range(profiled):
                yield
            _synchronize()
            yield  # the range in which the last of them ended is whole now
            modules.__exit__()
        profiler.export_chrome_trace(trace)
        if is_compiled:
            return
        optimizers = list(self._optimizers)
        first_group = optimizers[0].param_groups[0]
        device = torch.device(first_group["params"][0].device)
        holders = PeakHolders(device, held_before(modules.known, optimizers))
        with holders:
            for _ in optimizers:
                yield
        self.rows += holders.rows()
        if not all(map(math.isfinite, recorded[-1]["losses"])):
            with watch_finite() as rows:
                for _ in optimizers:
                    yield
            self.rows += rows


def _synchronize() -> None:
    if torch.cuda.is_initialized():
        torch.cuda.synchronize()


@contextmanager
def watch_finite() -> Iterator[list[Row]]:
    """Find the first modules that make numbers that are not finite of numbers that are.

    They are those of their output, and of the gradient that they pass on; reading each tensor
    waits for the device. The list has a row for each of the two at the end.
    """
    modules = ModuleStack()
    rows: list[Row] = []
    first: dict[str, nn.Module] = {}

    def look(module: nn.Module, inputs: Any, output: Any) -> None:
        if _is_finite(inputs) and not _is_finite(output):
            first.setdefault("forward", module)
        arrived = []

        def arrive(gradient: Tensor) -> None:
            arrived.append(_is_finite(gradient))

        def leave(gradient: Tensor) -> None:
            if all(arrived) and not _is_finite(gradient):
                first.setdefault("backward", module)

        for values, hook in ((output, arrive), (inputs, leave)):
            for tensor in _tensors(values):
                if tensor.requires_grad:
                    # A view that a later operator has changed in place takes no hook.
                    with suppress(RuntimeError):
                        tensor.register_hook(hook)

    handle = register_module_forward_hook(look)
    try:
        with modules:
            yield rows
    finally:
        handle.remove()
    for direction, module in first.items():
        name = modules.name(module)
        rows.append(_row("nonfinite", type(module).__name__, name, direction, 1))


def _tensors(values: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(values) if isinstance(leaf, Tensor)]


def _is_finite(values: Any) -> bool:
    for tensor in _tensors(values):
        if not tensor.is_floating_point():
            continue
        is_finite = torch.isfinite(tensor.detach())
        if not is_finite.all():
            return False
    return True


def _shape(tensor: Tensor) -> str:
    sizes = "x".join(map(str, tensor.shape))
    dtype = str(tensor.dtype).removeprefix("torch.")
    return f"{sizes} {dtype}"


def _row(kind: str, name: str, module: str, detail: str, value: float) -> Row:
    return {
        "kind": kind,
        "name": name,
        "module": module,
        "detail": detail,
        "value": value,
    }
