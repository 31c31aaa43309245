"""The generations of GPUs in the order in which they appeared, by vendor."""

from __future__ import annotations

NVIDIA = {
    (3, 0): "Kepler",
    (5, 0): "Maxwell",
    (6, 0): "Pascal",
    (7, 0): "Volta",
    (7, 5): "Turing",
    (8, 0): "Ampere",
    (8, 9): "Ada",
    (9, 0): "Hopper",
    (10, 0): "Blackwell",
    (13, 0): "newer than Blackwell",
}
"""By the first compute capability of each (CUDA C++ Programming Guide, "Compute Capabilities")."""
AMD = {
    "gfx900": "GCN 5",
    "gfx906": "GCN 5.1",
    "gfx908": "CDNA",
    "gfx90a": "CDNA 2",
    "gfx94": "CDNA 3",
    "gfx95": "CDNA 4",
    "gfx101": "RDNA",
    "gfx103": "RDNA 2",
    "gfx110": "RDNA 3",
    "gfx115": "RDNA 3.5",
    "gfx120": "RDNA 4",
}
"""By how their gfx names begin (ROCm documentation, "GPU hardware specifications")."""
_ORDER = (*NVIDIA.values(), *AMD.values())


def generation_rank(architecture: str) -> int:
    """Return the place of a device's architecture in a table: older generations first, then others, such as CPUs."""
    return _ORDER.index(architecture) if architecture in _ORDER else len(_ORDER)
