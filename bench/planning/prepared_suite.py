"""A suite with what is known before its trials are planned."""

from __future__ import annotations

from dataclasses import dataclass

from bench.planning.footprint import Footprint
from bench.spec.data_source import PreparedData
from bench.spec.suite import Suite
from bench.spec.trial import SuiteRef


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedSuite:
    """A suite, its data, and estimates of its model."""

    ref: SuiteRef
    """Names it, with its parameters."""
    suite: Suite
    data: PreparedData
    flops_per_sample: float | None = None
    """FLOPs of a training step for each sample; None is unknown."""
    footprint: Footprint | None = None
    """The memory of its model; None is unknown."""
