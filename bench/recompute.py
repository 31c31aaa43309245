"""Checkpointed activations: a model's blocks keep their inputs alone, and run forward again in backward.

Blocks are the children of the outermost nn.Sequential and nn.ModuleList: those that have parts of their own, as
residual blocks and encoder layers have, each by itself. A Sequential of plain layers is cut into about √n runs of
layers (Chen et al., "Training Deep Nets with Sublinear Memory Cost", arXiv 1604.06174, section 4.1).
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from typing import Any

from torch import nn
from torch.nn.modules.batchnorm import _BatchNorm
from torch.utils.checkpoint import checkpoint

from bench.technique_names import UnsupportedError

FEWEST_LAYERS = 3
"""A shorter Sequential of plain layers keeps as much as its runs' inputs would be."""


def recompute_activations(model: nn.Module, *, compiled: bool = False) -> int:
    """Let the model's blocks keep no activations, in place; return how many blocks there are.

    Random numbers drawn in a block are drawn again as they were, and batch norm counts each batch once, so that
    training is the same.

    Raises:
        UnsupportedError: the model has no such blocks, or has batch norm in them and will be compiled.
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
    blocks = [child for child in container.children() if next(child.children(), None) is not None]
    if not blocks and isinstance(container, nn.Sequential):
        return _cut(container)
    for block in blocks:
        _replace_forward(block, block.forward, [block])
    return len(blocks)


def _cut(layers: nn.Sequential) -> int:
    if len(layers) < FEWEST_LAYERS:
        return 0
    size = math.ceil(len(layers) / round(math.sqrt(len(layers))))
    listed = list(layers)
    runs = [listed[start : start + size] for start in range(0, len(listed), size)]
    steps = [_checkpointed(partial(_in_turn, run), run) for run in runs]

    def forward(inputs: Any) -> Any:
        for step in steps:
            inputs = step(inputs)
        return inputs

    _set_forward(layers, forward, layers.forward)
    return len(runs)


def _in_turn(layers: Sequence[nn.Module], inputs: Any) -> Any:
    for layer in layers:
        inputs = layer(inputs)
    return inputs


def _replace_forward(block: nn.Module, forward: Callable[..., Any], modules: Sequence[nn.Module]) -> None:
    _set_forward(block, _checkpointed(forward, modules), forward)


def _set_forward(module: nn.Module, training: Callable[..., Any], evaluating: Callable[..., Any]) -> None:
    """Let a module run one function in training and another in evaluation, which keeps nothing for backward."""

    def forward(*args: Any, **kwargs: Any) -> Any:
        return (training if module.training else evaluating)(*args, **kwargs)

    module.forward = forward


def _checkpointed(function: Callable[..., Any], modules: Sequence[nn.Module]) -> Callable[..., Any]:
    norms = [norm for module in modules for norm in module.modules() if isinstance(norm, _BatchNorm)]

    def contexts() -> tuple[AbstractContextManager[None], AbstractContextManager[None]]:
        return nullcontext(), _uncounted(norms)

    def run(*args: Any, **kwargs: Any) -> Any:
        if norms:
            return checkpoint(function, *args, use_reentrant=False, context_fn=contexts, **kwargs)
        return checkpoint(function, *args, use_reentrant=False, **kwargs)

    return run


@contextmanager
def _uncounted(norms: Sequence[_BatchNorm]) -> Iterator[None]:
    """Leave running statistics alone: the batch was counted when it ran forward first."""
    held = [(norm, norm.momentum, norm.num_batches_tracked) for norm in norms]
    try:
        for norm in norms:
            norm.momentum, norm.num_batches_tracked = 0.0, None
        yield
    finally:
        for norm, momentum, tracked in held:
            norm.momentum, norm.num_batches_tracked = momentum, tracked
