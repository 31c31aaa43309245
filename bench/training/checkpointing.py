"""Activation checkpointing: blocks keep their inputs alone, and compute their activations again in backward.

Blocks are the children of the outermost nn.Sequential and nn.ModuleList that have children themselves, such as residual
blocks and encoder layers, each by itself. A Sequential of plain layers is cut into about √n runs of layers
(Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from types import MethodType
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from bench.spec.errors import UnsupportedError

FEWEST_LAYERS = 3
"""A shorter Sequential of plain layers keeps as much as its runs' inputs would be."""


def recompute_activations(model: nn.Module, *, compiled: bool = False) -> int:
    """Checkpoint the activations of the model's blocks, in place; return the number of blocks.

    Random numbers are drawn again as they were and batch norm counts each batch once, so that training is the same.

    Raises:
        UnsupportedError: the model has no blocks, or has batch norm and will be compiled.
    """
    if compiled and any(isinstance(module, _BatchNorm) for module in model.modules()):
        raise UnsupportedError("torch.compile, where it recomputes, cannot keep batch norm from counting a batch twice")
    count = sum(_wrap(container) for container in _outermost(model))
    if not count:
        raise UnsupportedError(
            f"checkpointing wraps blocks within nn.Sequential or nn.ModuleList, and {type(model).__name__} has none"
        )
    return count


def _outermost(module: nn.Module) -> Iterator[nn.Module]:
    if isinstance(module, nn.Sequential | nn.ModuleList):
        yield module
        return
    for child in module.children():
        yield from _outermost(child)


def _wrap(container: nn.Module) -> int:
    """Give blocks another forward, as methods of their own, so that a copy of the model runs the copy's layers."""
    blocks = [child for child in container.children() if next(child.children(), None) is not None]
    for block in blocks:
        vars(block)["forward"] = MethodType(_recomputed_block, block)
    if not blocks and isinstance(container, nn.Sequential) and len(container) >= FEWEST_LAYERS:
        vars(container)["forward"] = MethodType(_recomputed_layers, container)
        return len(_runs(container))
    return len(blocks)


def _recomputed_block(block: nn.Module, *args: Any, **kwargs: Any) -> Any:
    """Run a block; where it trains, its inputs alone are kept."""
    forward = partial(type(block).forward, block)
    return _recomputed(forward, block.modules(), *args, **kwargs) if block.training else forward(*args, **kwargs)


def _recomputed_layers(layers: nn.Sequential, inputs: Any) -> Any:
    """Run plain layers; where they train, the inputs of each run of them alone are kept."""
    if not layers.training:
        return _in_turn(list(layers), inputs)
    for run in _runs(layers):
        inputs = _recomputed(partial(_in_turn, run), run, inputs)
    return inputs


def _runs(layers: nn.Sequential) -> list[list[nn.Module]]:
    listed = list(layers)
    size = math.ceil(len(listed) / round(math.sqrt(len(listed))))
    return [listed[start : start + size] for start in range(0, len(listed), size)]


def _in_turn(layers: Sequence[nn.Module], inputs: Any) -> Any:
    for layer in layers:
        inputs = layer(inputs)
    return inputs


def _recomputed(function: Callable[..., Any], modules: Iterable[nn.Module], *args: Any, **kwargs: Any) -> Any:
    norms = [module for module in modules if isinstance(module, _BatchNorm)]
    if not norms:
        return checkpoint(function, *args, use_reentrant=False, **kwargs)
    contexts = partial(_contexts, norms)
    return checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)


def _contexts(norms: Sequence[_BatchNorm]) -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
    return nullcontext(), _uncounted(norms)


@contextmanager
def _uncounted(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Leave running statistics unchanged: the batch was counted in the first forward pass."""
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, tracked in held:
            norm.momentum, norm.num_batches_tracked = momentum, tracked
