"""What one placement of a run was measured with, and in what that differs from another's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from bench.report.load import Run

SOFTWARE = {"torch": "torch", "cuda": "CUDA", "cudnn": "cuDNN", "driver": "driver"}
"""Keys of run.json's environment, and of its nodes on a cluster, with their names in sentences."""
LIMITS = {"sm_clock_limit_mhz": "clock limit", "memory_clock_limit_mhz": "memory clock limit"}
LIMITS |= {"power_limit_w": "power limit", "threads": "number of threads"}
"""What may be set on a device; several that train together have no power limit of their own."""


def nodes(run: Run, placement: str) -> list[Mapping[str, Any]]:
    """Return the cluster's nodes that a placement was on; none where the run was on one machine."""
    every = run.part("environment").get("nodes") or []
    return [one for one in every if isinstance(one, dict) and str(one.get("accelerator")) == placement]


def software(run: Run, placement: str, key: str) -> str | None:
    """Return a version, such as the driver's, where a placement was measured; None where that is not known."""
    machine = run.part("environment")
    values = [one.get(key, machine.get(key)) for one in nodes(run, placement)] or [machine.get(key)]
    told = dict.fromkeys(str(value) for value in values if value is not None and value != "")
    return ", ".join(told) or None


def host(run: Run, placement: str) -> str | None:
    """Return the machine that a placement was on."""
    return software(run, placement, "host")


def digest(run: Run, suite: str) -> str | None:
    """Return the digest of a recipe's text, as the run had it."""
    refs = [
        ref for ref in run.part("request").get("suites") or [] if isinstance(ref, dict) and ref.get("name") == suite
    ]
    return next((str(ref["digest"]) for ref in refs if ref.get("digest")), None)


def differing(one: tuple[Run, str], other: tuple[Run, str], suite: str) -> list[str]:
    """Name what two placements, each of its run, were not measured with alike; GPUs' libraries only on GPUs.

    A version that is known of one alone differs; a limit must be known of both.
    """
    on_cpu = one[1].startswith("cpu")
    found = [
        name
        for key, name in SOFTWARE.items()
        if not (on_cpu and key != "torch") and software(*one, key) != software(*other, key)
    ]
    if on_cpu and software(*one, "openmp") != software(*other, "openmp"):
        found.append("OpenMP's spinning")
    found += ["text of the recipe"] if digest(one[0], suite) != digest(other[0], suite) else []
    limits = [_device(*placed) for placed in (one, other)]
    for key, name in LIMITS.items():
        first, second = (device.get(key) for device in limits)
        found += [name] if None not in (first, second) and first != second else []
    return found


def _device(run: Run, placement: str) -> Mapping[str, Any]:
    devices = run.part("environment").get("devices") or []
    found = (one for one in devices if isinstance(one, dict) and str(one.get("placement")) == placement)
    return next(found, {})
