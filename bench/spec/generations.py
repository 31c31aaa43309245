"""The generations of NVIDIA's GPUs in the order in which they appeared."""

from __future__ import annotations

# By the first compute capability of each (CUDA C++ Programming Guide, "Compute Capabilities").
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
_ORDER = tuple(NVIDIA.values())


def generation_rank(architecture: str) -> int:
    """Return the place of a device's architecture in a table.

    Older generations come first; all that is none of them, such as a CPU, comes last.
    """
    if architecture not in _ORDER:
        return len(_ORDER)
    return _ORDER.index(architecture)
