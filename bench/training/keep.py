"""Modules that stay in fp32 in a narrow precision: its option ``keep``.

A kept module, and all that it holds, runs with autocast off on fp32 inputs, and what it returns
stays in fp32: rounding its output again would bring back the overflow that it is kept for. A kept
module has a class of its own, derived from the module's, so copies of the model, checkpointing,
torch.compile and DistributedDataParallel treat it as any module.
"""

from __future__ import annotations

from collections.abc import Collection
from fnmatch import fnmatchcase
from functools import cache
from typing import Any

import torch
from torch import nn

from bench.measure.gradients import cast
from bench.spec.errors import UnsupportedError, UsageError, nearest
from bench.spec.precisions import Precision


def keep(
    model: nn.Module,
    precision: Precision,
    device: torch.device,
) -> frozenset[nn.Module]:
    """Let the modules that a precision keeps run in fp32, in place.

    Returns them and all that they hold.

    Raises:
        UsageError: a pattern matches no module.
        UnsupportedError: the forward of one of them has been replaced, so that a class cannot wrap
            it.
    """
    roots = {}
    if precision.keep:
        roots = matching(model, precision.keep.split("+"))
    parts = set[nn.Module]()
    for name, module in roots.items():
        if "forward" in vars(module):
            raise UnsupportedError(
                f"keep: the forward of {name or 'the model'} has been replaced; keep what it holds"
            )
        module.__class__ = _kept(type(module))  # type: ignore[arg-type]  # a class has a hash
        vars(module)["_autocast_device"] = device.type
        parts.update(module.modules())
    return frozenset(parts)


def matching(model: nn.Module, patterns: Collection[str]) -> dict[str, nn.Module]:
    """Return the outermost modules whose whole dotted names match one of the patterns, by name.

    Raises:
        UsageError: a pattern matches none.
    """
    modules = dict(model.named_modules())
    named = set[str]()
    for pattern in patterns:
        names = [name for name in modules if fnmatchcase(name, pattern)]
        if not names:
            _whole, *parts = modules  # the model itself has no name
            hint = nearest(pattern, parts)
            raise UsageError(f"keep: no module of the model is called '{pattern}'.{hint}")
        named.update(names)
    matches: dict[str, nn.Module] = {}
    # An outer module comes before those that it holds.
    for name, module in modules.items():
        is_inner = any(lies_in(name, outer) for outer in matches)
        if name in named and not is_inner:
            matches[name] = module
    return matches


@cache
def _kept(plain: type[nn.Module]) -> type[nn.Module]:
    """Return a class that runs as ``plain``, in fp32 whatever autocast region it is called in."""

    def forward(self: Any, *inputs: Any, **named: Any) -> Any:
        inputs, named = cast((inputs, named), torch.float32)
        with torch.autocast(self._autocast_device, enabled=False):
            output = plain.forward(self, *inputs, **named)
        return cast(output, torch.float32)

    members = {"forward": forward, "__module__": plain.__module__}
    return type(f"{plain.__name__}InFp32", (plain,), members)


def lies_in(name: str, other: str) -> bool:
    """Return whether one module lies within another, by their names."""
    if not other:  # the whole model
        return name != other
    return name.startswith(f"{other}.")
