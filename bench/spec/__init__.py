"""Suites, precisions, techniques, phases, metrics, placements and trials.

Plain data; nothing here imports torch.
"""

from bench.spec.errors import UnsupportedError, UsageError, require
from bench.spec.precisions import BASELINE, PRECISIONS, Precision
from bench.spec.suite import Data, Parameter, Quality, Suite

__all__ = [
    "BASELINE",
    "PRECISIONS",
    "Data",
    "Parameter",
    "Precision",
    "Quality",
    "Suite",
    "UnsupportedError",
    "UsageError",
    "require",
]
