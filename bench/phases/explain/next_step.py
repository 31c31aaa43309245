"""What the reasons of a run advise: the command that measures the techniques that they point at."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.phases.explain.report import explained
from bench.report.reading.load import load
from bench.spec.phase import Advice
from bench.spec.precisions import BASELINE
from bench.spec.repeat import repeated


def advice(folder: Path, request: Mapping[str, Any]) -> list[Advice]:
    """Return a command for each precision that has reasons which techniques may mend."""
    techniques: dict[str, dict[str, None]] = {}
    for explanation in explained(load([folder])):
        techniques.setdefault(explanation.arm.precision, {}).update(dict.fromkeys(explanation.techniques))
    advised = []
    for precision, names in techniques.items():
        if names:
            arms = ("--precisions", f"{BASELINE},{precision}", "--techniques", ",".join(names))
            command = repeated(request, "--ladder", *arms)
            advised.append(Advice(step=f"{command} measures what {', '.join(names)} brings."))
    return advised
