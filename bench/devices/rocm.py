"""GPUs in a build of torch with ROCm: times and memory by ``torch.cuda``, without telemetry. Not tried on one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from bench.devices.nvidia import Nvidia
from bench.spec.generations import AMD
from bench.spec.precisions import Feature


class Rocm(Nvidia):
    """The meaning of torch's device properties in a build with ROCm, where it is another than in one with CUDA."""

    runtime = "ROCm"
    library = "AMD"
    visible = ("HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES")
    hint = "Install a build of torch, or of ROCm, that supports it."

    def model(self, properties: Any) -> str:
        """Return the gfx name without its modes, such as gfx90a for gfx90a:sramecc+:xnack-."""
        return str(properties.gcnArchName).partition(":")[0]

    def compute_capability(self, _properties: Any) -> str | None:
        return None

    def architecture(self, model: str) -> str:
        return next((name for start, name in AMD.items() if model.startswith(start)), model)

    def has_kernels(self, model: str, arch_list: Sequence[str]) -> bool:
        """Return whether a torch build runs on a GPU: code objects run on the gfx name that they were built for."""
        return model in {arch.partition(":")[0] for arch in arch_list}

    def lacks(self, _feature: Feature, _model: str) -> str | None:
        """Return None: what a GPU lacks shows when an arm fails."""
        return None
