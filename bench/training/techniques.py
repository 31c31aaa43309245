"""How techniques change what an arm is made of: the layout of its tensors, its optimizer, its compiled forward pass."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Iterator
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn

from bench.devices.backend import backend_of
from bench.spec.errors import UnsupportedError
from bench.spec.suite import Data, Suite
from bench.spec.techniques import PLAIN, TECHNIQUES, Techniques

COMPILED_ARMS = 64
"""So many versions of one model may be compiled in a process: each arm is one, and torch gives up after eight."""


def require_supported(techniques: Techniques, suite: Suite, data: Data, device: torch.device) -> None:
    """Refuse what can be known before a model is built.

    Raises:
        UnsupportedError: with the reason.
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
    """Return inputs in the layout that the model's weights have; what is no batch of images stays as it is."""
    if techniques.channels_last and inputs.dim() == 4:
        return inputs.contiguous(memory_format=torch.channels_last)
    return inputs


def cut(inputs: Tensor, targets: Tensor, parts: int) -> Iterator[tuple[Tensor, Tensor]]:
    """Return a batch in equal parts, whose mean losses have the whole batch's as their mean.

    Raises:
        ValueError: there are no such parts; those of other sizes would weigh their samples unequally.
    """
    if len(inputs) % parts:
        raise ValueError(f"a batch of {len(inputs)} cannot be cut into {parts} equal parts for grad-accumulation")
    return zip(inputs.chunk(parts), targets.chunk(parts), strict=True)


def fused(optimizer: torch.optim.Optimizer, *, scaled: bool) -> torch.optim.Optimizer:
    """Return the same optimizer, new and with torch's own ``fused=True``.

    Args:
        optimizer: as the suite builds it, before its first step.
        scaled: whether a GradScaler may skip its steps.

    Raises:
        UnsupportedError: it has no such kernel, or none for this device, type or setting.
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
        raise UnsupportedError(f"fused-optimizer: {kind.__name__} says: {_first_line(error)}") from error
    if scaled and isinstance(made, torch.optim.SGD):
        _begin_momentum(made)
    return made


def _begin_momentum(optimizer: torch.optim.SGD) -> None:
    """Give every weight a momentum of zero, from which the first step makes what it makes without one.

    torch's fused SGD allocates momentum in its first step without writing to it where the GradScaler lets that step
    be skipped, and the next step goes on with whatever was in that memory.
    """
    for group in optimizer.param_groups:
        if group["momentum"] and group["dampening"]:
            raise UnsupportedError("fused-optimizer: torch's fused SGD with dampening cannot skip its first step")
        for weight in group["params"] if group["momentum"] else ():
            optimizer.state[weight]["momentum_buffer"] = torch.zeros_like(weight)


def compiled(model: nn.Module) -> Callable[..., Tensor]:
    """Return the model's forward pass as torch.compile makes it at its first call; the model itself stays as it is."""
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
    """Refuse to compile where torch.compile does not work.

    Raises:
        UnsupportedError: with the reason.
    """
    if why := _broken_compiler(kind):
        raise UnsupportedError(f"compile: torch.compile does not work here: {why}")


@cache
def _broken_compiler(kind: str) -> str | None:
    """Compile a function of one line, once for each kind of device; return why that failed, None where it worked.

    It needs all that compiling needs, a compiler of C++ or Triton, and pays for the first import.
    """
    try:
        torch.compile(lambda x: torch.relu(x) + 1)(torch.zeros(8, device=kind))
    except Exception as error:  # whatever a compiler that is missing or broken raises
        return _first_line(error.__cause__ or error)
    return None


def refused(error: BaseException) -> str | None:
    """Say why a technique cannot be used here, if that is what an error says; None for any other error."""
    if isinstance(error, UnsupportedError):
        return str(error)
    # What torch.compile cannot compile is no fault of the model's, which runs without it.
    if type(error).__module__.startswith("torch._dynamo"):
        return f"compile: {type(error).__name__}: {_first_line(error)}"
    return None


def _first_line(error: BaseException) -> str:
    return str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
