"""A batch of any structure: its tensors moved, pinned, arranged, cut and counted.

A batch is any nesting of what ``torch.utils._pytree`` opens: dicts, lists, tuples, named tuples,
and what libraries register there. Dataclasses, and ``UserDict``s such as the BatchEncoding of
transformers, are registered when one is first met. All else is a leaf: a tensor, an object with a
method ``to(device)``, or a value that stays as it is.
"""

from __future__ import annotations

from collections import UserDict
from collections.abc import Callable, Sequence
from copy import copy
from dataclasses import fields, is_dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import (
    TreeSpec,
    register_pytree_node,
    tree_flatten,
    tree_unflatten,
)

from bench.devices.backend import backend_of
from bench.spec.errors import UsageError

Batch = Any


def tensors(batch: Batch) -> list[Tensor]:
    """Return a batch's tensors, without those in objects that cannot be opened."""
    leaves, _ = _flatten(batch)
    return [leaf for leaf in leaves if isinstance(leaf, Tensor)]


def first_dimension(batch: Batch) -> int:
    """Return the first dimension of a batch's first tensor: its samples unless the suite counts.

    Raises:
        UsageError: it has no such tensor.
    """
    for tensor in tensors(batch):
        if tensor.dim():
            return len(tensor)
    raise UsageError(
        "The batch has no tensor whose first dimension is its samples: give the suite a "
        "count(batch)."
    )


def map_leaves(function: Callable[[Any], Any], batch: Batch) -> Batch:
    """Return a batch of the same structure with each leaf replaced by the function's value."""
    leaves, structure = _flatten(batch)
    return tree_unflatten([function(leaf) for leaf in leaves], structure)


def to_device(batch: Batch, device: torch.device, non_blocking: bool = False) -> Batch:
    """Copy a batch to ``device``; tensors that are there already are not copied.

    ``non_blocking`` does not wait for the copy. That takes pinned memory, so other memory of the
    host is pinned first.

    Raises:
        Exception: what an object's own ``to`` raises.
    """
    to_gpu = backend_of(device).is_gpu

    def moved(leaf: Any) -> Any:
        if not hasattr(leaf, "to"):
            return leaf
        # An object's own ``to`` may take no more than a device.
        if not isinstance(leaf, Tensor):
            return leaf.to(device)
        if non_blocking and to_gpu and leaf.device.type == "cpu":
            # The pinned allocator knows of the copy under way, and reuses the buffer only when it
            # is done.
            leaf = leaf.pin_memory()
        return leaf.to(device, non_blocking=non_blocking)

    return map_leaves(moved, batch)


def pinned(batch: Batch) -> Batch:
    """Return a batch in host memory with its tensors in pinned memory."""

    def moved(leaf: Any) -> Any:
        if hasattr(leaf, "pin_memory"):
            return leaf.pin_memory()
        return leaf

    return map_leaves(moved, batch)


def channels_last(batch: Batch) -> Batch:
    """Return a batch with its images in channels-last layout.

    Those are its floating-point tensors of four dimensions.
    """

    def arranged(leaf: Any) -> Any:
        if not isinstance(leaf, Tensor):
            return leaf
        is_image = leaf.dim() == 4 and leaf.is_floating_point()
        if not is_image:
            return leaf
        return leaf.contiguous(memory_format=torch.channels_last)

    return map_leaves(arranged, batch)


def cut(batch: Batch, parts: Sequence[slice], samples: int, purpose: str) -> list[Batch]:
    """Return parts of a batch: tensors are cut along their first dimension.

    Numbers and None are in each part as they are.

    Args:
        batch: of ``samples`` samples.
        parts: the samples of each part.
        samples: the first dimension that each tensor must have.
        purpose: for the message.

    Raises:
        UsageError: a part of the batch cannot be cut.
    """
    leaves, structure = _flatten(batch)
    for leaf in leaves:
        if isinstance(leaf, Tensor):
            shape = tuple(leaf.shape)
            can_be_cut = shape[:1] == (samples,)
            kind = f"tensor of shape {shape}"
        else:
            can_be_cut = isinstance(leaf, int | float | None)
            kind = type(leaf).__name__
        if not can_be_cut:
            raise UsageError(
                f"{purpose} cannot cut a {kind} of the batch, which has {samples} samples."
            )
    chunks = []
    for part in parts:
        cut_leaves = []
        for leaf in leaves:
            if isinstance(leaf, Tensor):
                cut_leaves.append(leaf[part])
            else:
                cut_leaves.append(leaf)
        chunks.append(tree_unflatten(cut_leaves, structure))
    return chunks


def _flatten(batch: Batch) -> tuple[list[Any], TreeSpec]:
    leaves, structure = tree_flatten(batch)
    for leaf in leaves:
        # A dataclass that has ``to`` moves itself.
        is_plain = is_dataclass(leaf) and not hasattr(leaf, "to")
        if is_plain or isinstance(leaf, UserDict):
            _register(type(leaf))
            return _flatten(batch)
    return leaves, structure


def _register(kind: type[Any]) -> None:
    """Let torch's trees open a class: the dict of a UserDict, or a dataclass's fields.

    All else is carried over.
    """
    names = ["data"]
    if not issubclass(kind, UserDict):
        names = [field.name for field in fields(kind)]

    def open_node(node: Any) -> tuple[list[Any], Any]:
        return [getattr(node, name) for name in names], node

    def build(values: Any, original: Any) -> Any:
        node = copy(original)
        for name, value in zip(names, values, strict=True):
            object.__setattr__(node, name, value)  # the class may be frozen
        return node

    register_pytree_node(kind, open_node, build)
