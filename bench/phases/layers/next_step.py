"""What the search advises: how to keep the modules in fp32, and what measures the cost of that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.cli.repeat import repeated
from bench.phases.layers.report import kept_names
from bench.report.reading.load import load
from bench.spec.phase import Advice
from bench.spec.precisions import BASELINE, parse_precision


def advice(folder: Path, request: Mapping[str, Any]) -> list[Advice]:
    """Return the code that keeps the modules found, and the command that measures their cost."""
    names = kept_names(load([folder]).details["layers_figures"])
    if not names:
        return []
    advised = []
    for name in names:
        if parse_precision(name).autocast:
            code = snippet(name.partition("keep=")[2])
            text = f"In a training loop of your own, before torch.compile:\n\n{code}"
            advised.append(Advice(code=text))
    precisions = ",".join(dict.fromkeys((BASELINE, *names.values(), *names)))
    command = repeated(request, "--phases", "memory,speed", "--precisions", precisions)
    return [*advised, Advice(step=f"{command} measures what keeping them costs.")]


def snippet(patterns: str) -> str:
    """Return code for a training of one's own that does what ``keep`` does under autocast."""
    return f"""\
from fnmatch import fnmatchcase
import torch
from torch.utils._pytree import tree_map

def in_fp32(forward, kind):
    def wide(leaf):
        is_float = isinstance(leaf, torch.Tensor) and leaf.is_floating_point()
        return leaf.float() if is_float else leaf
    def run(*args, **kwargs):
        with torch.autocast(kind, enabled=False):
            return tree_map(wide, forward(*tree_map(wide, args), **tree_map(wide, kwargs)))
    return run

for name, module in model.named_modules():  # before torch.compile and DistributedDataParallel
    if any(fnmatchcase(name, pattern) for pattern in {patterns.split("+")!r}):
        module.forward = in_fp32(module.forward, device.type)
"""
