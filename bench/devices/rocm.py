"""AMD's GPUs in a build of torch with ROCm: what ``torch.cuda`` makes of them. Not tried on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.devices.nvidia import Cuda
from bench.spec.precisions import Precision


class Rocm(Cuda):
    """One GPU, where it is another than NVIDIA's."""

    hint = "Install a build of torch, or of ROCm, that supports it."

    def model(self) -> str:
        """Return the gfx name without its modes, such as gfx90a for gfx90a:sramecc+:xnack-."""
        return str(self.properties.gcnArchName).partition(":")[0]

    def describe(self) -> dict[str, Any]:
        properties = self.properties
        return {
            "kind": "cuda",
            "name": properties.name,
            "architecture": self.model(),
            "memory_total_bytes": properties.total_memory,
            "uuid": str(properties.uuid),
            "cores": properties.multi_processor_count,
        }

    def missing_arithmetic(self, precision: Precision) -> str | None:
        return None  # what a GPU lacks shows when an arm fails

    def has_kernels(self, built: Sequence[str]) -> bool:
        return any(architecture.partition(":")[0] == self.model() for architecture in built)
