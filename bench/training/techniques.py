"""Techniques change an arm: its tensors' layout, optimizer, forward pass or activations.

With activation checkpointing, blocks keep their inputs alone and compute their activations again in
backward. Blocks are the children of the outermost nn.Sequential and nn.ModuleList that have
children themselves, such as residual blocks and encoder layers (Chen et al., "Training Deep Nets
with Sublinear Memory Cost", arXiv 1604.06174).

A CUDA graph, captured once and then replayed with one launch, holds the forward pass, the loss and
the backward pass, of all micro-batches where gradients are accumulated. Clipping, GradScaler,
optimizer and schedule stay outside: ``GradScaler.step`` reads from the device whether a gradient
overflowed, which a capture forbids, and a captured optimizer would keep the learning rate of the
capture (PyTorch's notes, "CUDA semantics", section "Usage with torch.cuda.amp").
"""

from __future__ import annotations

import inspect
import os
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import cache, partial
from types import MethodType
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.optim import Optimizer
from torch.utils._pytree import tree_leaves
from torch.utils.checkpoint import checkpoint

from bench.data.batch import Batch, map_leaves, tensors
from bench.devices.backend import is_out_of_memory, out_of_memory_behind
from bench.devices.nvidia import CudaGraph
from bench.spec.errors import UnsupportedError, first_line
from bench.spec.suite import Data, Suite
from bench.spec.techniques import Techniques
from bench.training import distributed

# Versions of one model that may be compiled in a process: each arm is one, and torch gives up after
# eight.
COMPILED_ARMS = 64
# Modules of the errors of torch.compile, of which others may be subclasses.
COMPILERS = ("torch._dynamo", "torch._inductor")
# Ordinary training steps before a capture, in which libraries choose algorithms and allocate
# workspaces.
WARM_UP = 3


def require_supported(
    techniques: Techniques,
    suite: Suite,
    data: Data,
    device: torch.device,
) -> None:
    """Refuse techniques that a suite or device cannot have, before its model is built.

    Raises:
        UnsupportedError: it cannot have one.
    """
    if techniques.channels_last and len(data.input_shape) != 3 and suite.batches is None:
        raise UnsupportedError(
            f"channels-last is a layout of images, and {suite.name} is not trained on images"
        )
    if suite.step is not None and (
        techniques.grad_accumulation > 1 or techniques.cuda_graphs or distributed.ranks() > 1
    ):
        raise UnsupportedError(
            f"{suite.name} has a step of its own, which trains on one device, without "
            "grad-accumulation and cuda-graphs"
        )
    if techniques.compile:
        load_compiler(device.type)


def refused(error: BaseException) -> str | None:
    """Return why a technique cannot be used here, if the error says so; else None."""
    if isinstance(error, UnsupportedError):
        return str(error)
    # A model that torch.compile cannot compile runs without it; one that lacked memory may not.
    raised_by_compile = any(cls.__module__.startswith(COMPILERS) for cls in type(error).__mro__)
    if raised_by_compile and not is_out_of_memory(error):
        return f"compile: {type(error).__name__}: {first_line(error)}"
    return None


def fused(optimizer: Optimizer) -> Optimizer:
    """Return a copy of an optimizer, before its first step, with torch's own ``fused=True``.

    Raises:
        UnsupportedError: it has no fused kernel, or none for this device, type or option.
    """
    kind: Any = type(optimizer)
    if "fused" not in inspect.signature(kind).parameters:
        raise UnsupportedError(
            f"fused-optimizer needs an optimizer with torch's fused=True, which {kind.__name__} "
            "lacks"
        )
    # Torch refuses an optimizer that is both.
    groups = [{**group, "fused": True, "foreach": None} for group in optimizer.param_groups]
    try:
        copy: Optimizer = kind(groups, lr=groups[0]["lr"], fused=True)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(
            f"fused-optimizer: {kind.__name__} says: {first_line(error)}"
        ) from error
    if isinstance(copy, torch.optim.SGD):
        _initialise_momentum(copy)
    return copy


def _initialise_momentum(optimizer: torch.optim.SGD) -> None:
    """Give every weight a momentum of zero, with which the first step is the same as without one.

    torch's fused SGD allocates momentum in its first step without writing to it where the
    GradScaler skips that step, and the next step reads whatever was in that memory.
    """
    for group in optimizer.param_groups:
        if not group["momentum"]:
            continue
        if group["dampening"]:
            raise UnsupportedError(
                "fused-optimizer: torch's fused SGD with dampening cannot skip its first step"
            )
        for weight in group["params"]:
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def compiled(
    model: nn.Module,
    mode: str | None = None,
    *,
    one_shape: bool = True,
) -> Callable[..., Any]:
    """Return the model's forward pass, which torch.compile compiles at its first call.

    The model is unchanged. ``mode`` is torch.compile's; None is its default. Of batches that may
    not have ``one_shape``, a size that changes is compiled as a variable.
    """
    config: Any = torch._dynamo.config
    # In torch 2.7 and later this is another name of recompile_limit.
    config.cache_size_limit = COMPILED_ARMS
    dynamic = None
    if one_shape:
        dynamic = False
    forward: Callable[..., Any] = torch.compile(model, dynamic=dynamic, mode=mode)
    return forward


def compilations() -> int:
    """Return how many graphs torch.compile has compiled in this process."""
    # Not imported before something is compiled: importing it takes seconds.
    dynamo: Any = sys.modules.get("torch._dynamo.utils")
    if dynamo:
        return int(dynamo.counters["stats"]["unique_graphs"])
    return 0


def fresh_compiler_cache() -> AbstractContextManager[None]:
    """Return a context in which torch.compile starts from an empty cache.

    An arm's time to compile must not depend on other arms. The files stay with the process's
    others, which its launcher removes.
    """
    from torch._inductor.utils import fresh_inductor_cache

    empty: AbstractContextManager[None] = fresh_inductor_cache(
        dir=os.environ.get("TORCHINDUCTOR_CACHE_DIR"), delete=False
    )
    return empty


@cache
def load_compiler(kind: str) -> None:
    """Compile a small function, so that no arm's time to compile includes the compiler's import."""
    torch.compile(lambda x: torch.relu(x) + 1)(torch.zeros(8, device=kind))


def checkpoint_activations(model: nn.Module, *, compiled: bool = False) -> None:
    """Checkpoint the activations of the model's blocks, in place.

    Random numbers are drawn again as they were and batch norm counts each batch once, so that
    training is the same.

    Raises:
        UnsupportedError: the model has no blocks, or has batch norm and will be compiled.
    """
    if compiled and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UnsupportedError(
            "torch.compile, where it recomputes, cannot keep batch norm from counting a batch twice"
        )
    has_blocks = False
    for container in _outermost(model):
        for child in container.children():
            if next(child.children(), None) is not None:
                # A method of each block, so that a model's copy runs the copy's layers.
                vars(child)["forward"] = MethodType(_forward_block, child)
                has_blocks = True
    if not has_blocks:
        raise UnsupportedError(
            "checkpointing wraps blocks within nn.Sequential or nn.ModuleList, and "
            f"{type(model).__name__} has none"
        )


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    """Yield the outermost containers of layers."""
    if isinstance(module, nn.Sequential | nn.ModuleList):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _forward_block(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a block; in training it keeps only its inputs."""
    # The class's own: the block's attribute is this function.
    forward = partial(type(block).forward, block)
    if not block.training:
        return forward(*args, **kwargs)
    norms = [module for module in block.modules() if isinstance(module, _BatchNorm)]
    if norms:
        kwargs["context_fn"] = lambda: (nullcontext(), _uncounted(norms))
    return checkpoint(forward, *args, use_reentrant=False, **kwargs)


@contextmanager
def _uncounted(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Leave running statistics unchanged: the batch was counted in the first forward pass."""
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum = 0.0
            norm.num_batches_tracked = None
        yield
    finally:
        for norm, momentum, tracked in held:
            norm.momentum = momentum
            norm.num_batches_tracked = tracked


class GraphedStep:
    """Gradients of a batch, computed by a graph from the fourth batch on; all have one shape."""

    def __init__(self, gradients: Callable[[Batch], Tensor], device: torch.device) -> None:
        """Take the function that computes them without a graph, and returns the loss."""
        self.gradients = gradients
        self.graph = CudaGraph(device)
        self._warmed_up = 0
        self._held: list[Tensor] = []
        """The tensors of a batch that the graph reads."""
        self._shapes: list[Any] = []
        """Theirs, and the batch's other values, which are constants of the graph."""
        self._loss: Tensor | None = None
        """The loss that the graph writes."""

    def __call__(self, batch: Batch) -> Tensor:
        """Compute the batch's gradients; return the loss, a tensor that no later step overwrites.

        Raises:
            UnsupportedError: the step has an operation that cannot be captured, such as reading a
                value on the host, or the batch is not of the shapes that were captured.
        """
        if self._warmed_up < WARM_UP:
            self._warmed_up += 1
            return self.graph.warm_up(partial(self.gradients, batch))
        if self._loss is None:
            self._loss = self._capture(batch)
        shapes = _shapes(batch)
        if shapes != self._shapes:
            raise UnsupportedError(
                f"cuda-graphs: a graph of batches {self._shapes} cannot take {shapes}"
            )
        for held, tensor in zip(self._held, tensors(batch), strict=True):
            held.copy_(tensor)
        self.graph.replay()
        return self._loss.clone()

    def _capture(self, batch: Batch) -> Tensor:
        """Capture the step on a copy of the batch, without running it; return the loss."""
        static = map_leaves(lambda leaf: leaf.clone() if isinstance(leaf, Tensor) else leaf, batch)
        self._held = tensors(static)
        self._shapes = _shapes(static)
        try:
            return self.graph.capture(partial(self.gradients, static)).detach()
        except RuntimeError as error:
            original = out_of_memory_behind(error)
            if original is not None:
                raise original from None
            # Ending a failed capture raises too, which hides the cause.
            reason = first_line(error.__context__ or error)
            raise UnsupportedError(f"cuda-graphs: the step cannot be captured: {reason}") from error


def _shapes(batch: Batch) -> list[Any]:
    """Return the shapes of a batch's tensors, and its other values as they are."""
    return [tuple(leaf.shape) if isinstance(leaf, Tensor) else leaf for leaf in tree_leaves(batch)]
