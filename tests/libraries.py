"""Libraries that some tests need."""

from bench.devices.capabilities import missing_package
from bench.spec.precisions import PRECISIONS

WITHOUT_TORCHAO = missing_package(PRECISIONS["fp8-tensorwise"]) or ""
"""Why tests of torchao are skipped: it is missing, or torch is older than it works with; empty
where they run."""
