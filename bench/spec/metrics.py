"""All metrics, as the phases declare them.

Summary, tables, figures, JSON, frames and ``compare`` follow from them.
"""

from __future__ import annotations

from bench.spec.metric import Metric
from bench.spec.phases import PHASES

_declared: list[Metric] = []
for phase in PHASES.values():
    _declared += phase.metrics
_declared.sort(key=lambda metric: metric.place)
# By name, in the order in which tables have them.
METRICS = {metric.name: metric for metric in _declared}

SPEED = METRICS["speed"]
THROUGHPUT = METRICS["throughput"]
MEMORY = METRICS["memory"]
EPOCH = METRICS["epoch"]
ACCURACY = METRICS["accuracy"]
LOSS = METRICS["loss"]
QUALITY = METRICS["quality"]


def compared() -> list[Metric]:
    """Return the metrics that ``compare`` compares."""
    return [metric for metric in METRICS.values() if metric.compared]


def learned() -> list[Metric]:
    """Return the metrics of what a training has learned, which parity is judged by."""
    return [metric for metric in METRICS.values() if metric.seed_is_input]


def untabled() -> list[Metric]:
    """Return the metrics that have the general places of tables, figures and JSON."""
    return [metric for metric in METRICS.values() if not metric.tabled]
