"""What techniques change in an arm: the layout of its tensors, its optimizer, its forward pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bench.devices.backend import backend_of
from bench.spec.errors import UnsupportedError, first_line
from bench.spec.suite import Data, Suite
from bench.spec.techniques import PLAIN, TECHNIQUES, Techniques

COMPILED_ARMS = 64
"""Versions of one model that may be compiled in a process: each arm is one, and torch gives up after eight."""


def require_supported(techniques: Techniques, suite: Suite, data: Data, device: torch.device) -> None:
    """Refuse techniques that do not go with a suite or device, as far as that is known before a model is built.

    Raises:
        UnsupportedError: one does not.
    """
    if techniques.channels_last and len(data.input_shape) != 3:
        raise UnsupportedError(f"channels-last is a layout of images, and {suite.name} is not trained on images")
    if suite.trainer == "lightning" and techniques != PLAIN:
        raise UnsupportedError("Lightning's Trainer runs steps of its own, without techniques")
    if techniques.cuda_graphs and not backend_of(device).has_graphs:
        raise UnsupportedError(TECHNIQUES["cuda-graphs"].needs_gpu)
    if techniques.compile:
        require_compiler(device.type)


def arrange(inputs: Tensor, techniques: Techniques) -> Tensor:
    """Return a batch of images in the layout of the model's weights; other inputs are unchanged."""
    if techniques.channels_last and inputs.dim() == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


def cut(inputs: Tensor, targets: Tensor, parts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return a batch in equal parts, so that the mean of their mean losses is the whole batch's.

    Raises:
        ValueError: the batch cannot be divided equally.
    """
    if len(inputs) % parts:
        raise ValueError(f"a batch of {len(inputs)} cannot be cut into {parts} equal parts for grad-accumulation")
    return zip(inputs.chunk(parts), targets.chunk(parts), strict=True)


def fused(optimizer: torch.optim.Optimizer, *, scaled: bool) -> torch.optim.Optimizer:
    """Return the same optimizer, new and with torch's own ``fused=True``.

    Args:
        optimizer: before its first step.
        scaled: whether a GradScaler may skip its steps.

    Raises:
        UnsupportedError: it has no fused kernel, or none for this device, type or option.
    """
    kind = type(optimizer)
    if "fused" not in inspect.signature(kind).parameters:
        raise UnsupportedError(
            f"fused-optimizer needs an optimizer with torch's fused=True, which {kind.__name__} lacks"
        )
    groups = [{**group, "fused": True, "foreach": None} for group in optimizer.param_groups]
    build: Any = kind
    try:
        made: torch.optim.Optimizer = build(groups, lr=groups[0]["lr"], fused=True)
    except (RuntimeError, ValueError) as error:
        raise UnsupportedError(f"fused-optimizer: {kind.__name__} says: {first_line(error)}") from error
    if scaled and isinstance(made, torch.optim.SGD):
        _initialise_momentum(made)
    return made


def _initialise_momentum(optimizer: torch.optim.SGD) -> None:
    """Give every weight a momentum of zero, with which the first step is the same as without one.

    torch's fused SGD allocates momentum in its first step without writing to it where the GradScaler skips that step,
    and the next step reads whatever was in that memory.
    """
    for group in optimizer.param_groups:
        if group["momentum"] and group["dampening"]:
            raise UnsupportedError("fused-optimizer: torch's fused SGD with dampening cannot skip its first step")
        for weight in group["params"] if group["momentum"] else ():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def compiled(model: nn.Module) -> Callable[..., Tensor]:
    """Return the model's forward pass, which torch.compile compiles at its first call; the model is unchanged."""
    config: Any = torch._dynamo.config
    for name in ("recompile_limit", "cache_size_limit"):  # torch < 2.7 knows the latter alone
        if hasattr(config, name):
            setattr(config, name, COMPILED_ARMS)
            break
    forward: Callable[..., Tensor] = torch.compile(model, dynamic=False)  # all batches of a trial have one shape
    return forward


def compilations() -> int:
    """Return how many graphs torch.compile has compiled in this process."""
    dynamo: Any = sys.modules.get("torch._dynamo.utils")  # not imported before something is compiled
    return int(dynamo.counters["stats"]["unique_graphs"]) if dynamo else 0


def require_compiler(kind: str) -> None:
    """Refuse to compile on a kind of device where torch.compile does not work.

    Raises:
        UnsupportedError: it does not.
    """
    if why := _broken_compiler(kind):
        raise UnsupportedError(f"compile: torch.compile does not work here: {why}")


@cache
def _broken_compiler(kind: str) -> str | None:
    """Compile a small function, once for each kind of device; return why that failed, None where it worked.

    It needs the compiler that a model needs, C++ or Triton, and pays for the first import.
    """
    try:
        torch.compile(lambda x: torch.relu(x) + 1)(torch.zeros(8, device=kind))
    except Exception as error:  # a missing or broken compiler raises nearly anything
        return first_line(error.__cause__ or error)
    return None


def refused(error: BaseException) -> str | None:
    """Return why a technique cannot be used here, if that is the error; None for any other error."""
    if isinstance(error, UnsupportedError):
        return str(error)
    # A model that torch.compile cannot compile runs without it.
    if type(error).__module__.startswith("torch._dynamo"):
        return f"compile: {type(error).__name__}: {first_line(error)}"
    return None
