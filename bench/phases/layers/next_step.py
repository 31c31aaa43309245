"""What the search advises: how to keep the modules in fp32, and what measures the cost of that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.report.reading.load import load
from bench.report.tables.layers import kept_names, snippet
from bench.spec.phase import Advice
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.repeat import repeated


def advice(folder: Path, request: Mapping[str, Any]) -> list[Advice]:
    """Return the code that keeps the modules which a run's search has found, and the command that measures them."""
    names = kept_names(load([folder]).numerics)
    if not names:
        return []
    advised = []
    for name in names:
        if parse_precision(name).autocast:
            code = snippet(name.partition("keep=")[2])
            advised.append(Advice(code=f"In a training loop of your own, before torch.compile:\n\n{code}"))
    precisions = ",".join(dict.fromkeys((BASELINE, *names.values(), *names)))
    command = repeated(request, "--phases", "memory,speed", "--precisions", precisions)
    return [*advised, Advice(step=f"{command} measures what keeping them costs.")]
