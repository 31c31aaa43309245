"""What is compared: suites, precisions, techniques, placements, trials. Plain data; nothing here imports torch."""

from bench.spec.suite import BASELINE, PRECISIONS, Data, Parameter, Precision, Suite, UsageError

__all__ = ["BASELINE", "PRECISIONS", "Data", "Parameter", "Precision", "Suite", "UsageError"]
