"""Peak memory of the first step and of a steady state, and the bytes of a step's tensors by kind.

Tensors are counted storage by storage, after the peaks have been measured, because counting takes
memory itself. torch's own ``MemTracker`` (torch.distributed._tools) counts the same way, but names
a storage when it is made: a weight's gradient is still "temporary" at the very peak that it causes,
and what an optimizer makes and drops is "optimizer state". Here a storage is named when the step is
over and it is known what became of it.
"""

from __future__ import annotations

import ctypes
import os
import weakref
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

import psutil
import torch
from torch import Tensor, nn
from torch.optim import Optimizer
from torch.utils._python_dispatch import TorchDispatchMode, is_traceable_wrapper_subclass
from torch.utils._pytree import tree_leaves

from bench.devices.backend import backend_of
from bench.devices.base import PeakMemory
from bench.devices.monitor import DeviceLostError, open_monitor

STEADY_STEPS = 3
# glibc's own first threshold.
THRESHOLD_BYTES = 128 * 1024
# Numbers of mallopt's parameters in malloc.h.
M_TRIM_THRESHOLD = -1
M_MMAP_THRESHOLD = -3


def fix_allocator() -> None:
    """Let glibc map blocks of 128 KiB and more apart, and give them back when they are freed.

    Left alone it raises the threshold to the largest block that was freed so far, so that the heap,
    and with it the peak, depends on the order in which threads free. Source: mallopt(3), "dynamic
    mmap threshold".
    """
    with suppress(OSError, AttributeError):  # not glibc
        mallopt = ctypes.CDLL(None).mallopt
        mallopt(M_MMAP_THRESHOLD, THRESHOLD_BYTES)
        mallopt(M_TRIM_THRESHOLD, THRESHOLD_BYTES)


def measure_peaks(
    step: Callable[[], object],
    device: torch.device,
    *,
    resident_before: int | None = None,
    driver_before: int | None = None,
    uuid: str | None = None,
    steps: int = STEADY_STEPS,
) -> dict[str, int | None]:
    """Run one step, then a few more, and return the peaks of both in bytes, by their columns.

    Args:
        step: does one training step.
        device: where it runs.
        resident_before: resident set in bytes before the model was built, but after a like one has
            made the libraries load their code (CPU).
        driver_before: device memory in use, in bytes, before this process had a context on the
            device.
        uuid: the GPU's UUID.
        steps: those after the first, of a steady state.
    """
    first = _peak(step, device, 1)
    steady = _peak(step, device, steps)
    if backend_of(device).is_gpu:
        used, held = driver_memory_bytes(uuid, driver_before)
        return {
            "first_peak_bytes": first.allocated,
            "peak_allocated_bytes": steady.allocated,
            "peak_reserved_bytes": steady.reserved,
            "driver_used_bytes": held,
            "gpu_used_bytes": used,
        }
    if resident_before is None or first.resident is None or steady.resident is None:
        return {}
    # Where memory is short, the system reclaims pages meanwhile: a small model's rise may be below
    # 0.
    return {
        "first_peak_bytes": max(0, first.resident - resident_before),
        "peak_resident_bytes": max(0, steady.resident - resident_before),
    }


def _peak(step: Callable[[], object], device: torch.device, steps: int) -> PeakMemory:
    backend = backend_of(device)
    can_reset = backend.reset_peak_memory()
    for _ in range(steps):
        step()
    if can_reset:
        return backend.peak_memory()
    return PeakMemory()


def driver_memory_bytes(
    uuid: str | None, before: int | None = None
) -> tuple[int | None, int | None]:
    """Return the bytes in use on a GPU as its driver sees it, and those that this process holds.

    The latter are its context, its libraries and all that it reserved: the driver's figure where it
    lists processes, because others come and go; else what is in use above ``before``. None is
    unknown.
    """
    monitor = None
    if uuid:
        monitor = open_monitor()
    if monitor is None or uuid is None:
        return None, None
    with monitor:
        try:
            driver = monitor.memory(uuid)
            by_process = monitor.process_bytes(uuid) or {}
        except DeviceLostError:
            return None, None
    used = None
    if driver:
        used = driver.used
    held = by_process.get(os.getpid())
    # A process that does not exist here has its id from outside a container, and then ours may be
    # somebody's too.
    if held is None or not all(map(psutil.pid_exists, by_process)):
        held = None
        # If it is less than before, others have gone meanwhile.
        if used is not None and before is not None and used >= before:
            held = used - before
    return used, held


def resident_bytes() -> int:
    """Return this process's resident set without freed memory."""
    backend_of(torch.device("cpu")).release_cached_memory()
    return int(psutil.Process().memory_info().rss)


def model_bytes(model: nn.Module) -> int:
    """Return the bytes of a model's parameters and buffers."""
    return sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))


def tensor_bytes(
    step: Callable[[], object],
    device: torch.device,
    *,
    modules: Iterable[nn.Module],
    optimizers: Collection[Optimizer],
    held: Iterable[Tensor] = (),
) -> dict[str, int]:
    """Run one step and return the bytes of its tensors at its own peak by kind, by their columns.

    Counted are tensors that operators return, not what a library takes for itself (cuDNN's and
    oneDNN's workspaces), nor the allocator's rounding. The kinds stay unknown where torch or the
    model cannot be watched.

    Args:
        step: does one training step that begins by dropping the last one's gradients and leaves its
            own. One has run before, so that the optimizer's state exists.
        device: whose tensors are counted.
        modules: model and loss, whose parameters and buffers are counted as such.
        optimizers: whose states are counted.
        held: other tensors that are there all the time, such as batches.
    """
    try:
        # What the optimizers update may be an fp32 copy of the model's parameters.
        weights = updated(optimizers)
        parameters = list(weights)
        for module in modules:
            parameters += [*module.parameters(), *module.buffers()]
        watch = _Watch(device, [*parameters, *states(optimizers), *held])
        with watch:
            step()
        by_kind = {
            "parameter_bytes": parameters,
            "gradient_bytes": [weight.grad for weight in weights if weight.grad is not None],
            "optimizer_bytes": states(optimizers),
        }
        return watch.bytes_at_peak(by_kind)
    except Exception:  # whatever a user's model does: the peaks are known by now
        return {}


@dataclass(eq=False, slots=True)
class _Storage:
    """A storage seen; it may be gone by now."""

    bytes: int
    reference: weakref.ref[Any]
    """Forgets the storage when it dies."""


class _Watch(TorchDispatchMode):
    """Watches storages come and go, and remembers which were there at the peak."""

    def __init__(self, device: torch.device, there: Iterable[Tensor]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self._device_type = device.type
        self._bytes = self._peak_bytes = 0
        self._at_peak = set[_Storage]()
        self._alive: dict[int, _Storage] = {}
        self._see(there)
        self._before = set(self._alive.values())
        self._kept: set[_Storage] | None = None
        """Those that the forward pass made and the backward pass found; None before that."""

    def __torch_dispatch__(
        self,
        function: Any,
        types: Any,
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        # The id is -1 outside a backward pass.
        if self._kept is None and torch._C._current_graph_task_id() != -1:
            self._kept = set(self._alive.values()) - self._before
        result = function(*args, **(kwargs or {}))
        self._see(leaf for leaf in tree_leaves(result) if isinstance(leaf, Tensor))
        return result

    def bytes_at_peak(self, tensors: dict[str, list[Tensor]]) -> dict[str, int]:
        """Return the bytes of the peak by kind.

        Args:
            tensors: of each kind that is known after the step; the first kind of a storage counts.
        """
        kinds = dict.fromkeys(self._kept or (), "activation_bytes")
        for kind, of_kind in reversed(tensors.items()):
            for tensor in of_kind:
                storage = self._alive.get(id(tensor.untyped_storage()))
                if storage:
                    kinds[storage] = kind
        sizes = dict.fromkeys((*tensors, "activation_bytes", "temporary_bytes"), 0)
        for storage in self._at_peak:
            kind = kinds.get(storage, "temporary_bytes")
            sizes[kind] += storage.bytes
        return sizes | {"tracked_peak_bytes": self._peak_bytes}

    def _see(self, tensors: Iterable[Tensor]) -> None:
        for tensor in tensors:
            storage = tensor.untyped_storage()
            # torch keeps one Python object for each storage for as long as the storage lives, so
            # its id is the key.
            key = id(storage)
            if tensor.device.type == self._device_type and key not in self._alive:
                size = storage.nbytes()
                forget = partial(self._forget, key)
                self._alive[key] = _Storage(size, weakref.ref(storage, forget))
                self._bytes += size
        if self._bytes > self._peak_bytes:
            self._peak_bytes = self._bytes
            self._at_peak = set(self._alive.values())

    def _forget(self, key: int, _storage: object) -> None:
        self._bytes -= self._alive.pop(key).bytes


def updated(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the weights that optimizers update."""
    weights = []
    for optimizer in optimizers:
        for group in optimizer.param_groups:
            weights += group["params"]
    return weights


def states(optimizers: Iterable[Optimizer]) -> list[Tensor]:
    """Return the tensors of optimizers' states.

    Of a tensor of a Python class, such as torchao's, they are those that hold its numbers.
    """
    tensors = []
    for optimizer in optimizers:
        for leaf in tree_leaves(list(optimizer.state.values())):
            if is_traceable_wrapper_subclass(leaf):
                names, _ = leaf.__tensor_flatten__()
                tensors += [getattr(leaf, name) for name in names]
            elif isinstance(leaf, Tensor):
                tensors.append(leaf)
    return tensors
