"""The environment of a run: what run.json records of its software, its devices and its nodes."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Literal, NamedTuple

from bench.results.records import Device, Environment

# Variables that change behind the program's back how fp32 is multiplied: in TF32, or as sums of
# bfloat16 products.
OVERRIDES = (
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
    "NVIDIA_TF32_OVERRIDE",
    "CUBLAS_EMULATE_SINGLE_PRECISION",
    "CUBLAS_EMULATION_STRATEGY",
)
# Variables that may change figures, by how their names begin; folders do not, and would tell whose
# they are.
RECORDED = (
    "ATEN_CPU_CAPABILITY",
    "CUBLAS",
    "CUDA_DEVICE_",
    "CUDA_LAUNCH_BLOCKING",
    "CUDA_MODULE_LOADING",
    "CUDA_VISIBLE_DEVICES",
    "CUDNN_",
    "DNNL_",
    "HIP_",
    "HSA_",
    "KMP_",
    "MIOPEN_",
    "MKL_",
    "NCCL_",
    "OMP_NUM_THREADS",
    "ONEDNN_",
    "PYTORCH_",
    "ROCR_",
    "TORCHDYNAMO_",
    "TORCHINDUCTOR_",
    "TORCH_NCCL_",
)


class Circumstance(NamedTuple):
    """A version or a setting that run.json has of a machine or of a device."""

    name: str
    why: str = ""
    """Its effect on a comparison, a whole sentence; empty where it has none."""
    unit: str = ""
    on: Literal["any", "cuda", "cpu"] = "any"
    """The kind of devices that it matters for."""


# By the key in the environment of run.json, of ``version`` in run.json itself.
MACHINE = {
    "version": Circumstance("ampmeter", "Another version may measure, or choose, in another way."),
    "host": Circumstance("host"),
    "os": Circumstance("system"),
    "python": Circumstance("Python"),
    "torch": Circumstance("torch", "Another version has other kernels and other defaults."),
    "torchvision": Circumstance("torchvision"),
    "cuda": Circumstance("CUDA", "Its libraries hold the matrix products.", on="cuda"),
    "cudnn": Circumstance("cuDNN", "It holds the convolutions, and chooses among them.", on="cuda"),
    "driver": Circumstance(
        "driver", "It sets clocks and power, and compiles some kernels.", on="cuda"
    ),
    "openmp": Circumstance(
        "OpenMP's spinning", "Next to other programs it can change a CPU's step a lot.", on="cpu"
    ),
    "removed_variables": Circumstance("overrides removed"),
    "variables": Circumstance("environment variables", "They may change how libraries compute."),
}
# What the nodes of a cluster do not tell together.
OF_THE_FIRST = {"version", "removed_variables", "variables"}
# Of a device; several that train together have no power limit of their own.
DEVICE = {
    "name": Circumstance("device"),
    "memory_total_bytes": Circumstance("memory", unit="bytes"),
    "power_limit_w": Circumstance("power limit", "Less power means lower clocks under load.", "W"),
    "sm_clock_limit_mhz": Circumstance(
        "clock limit", "The same name stands for boards of other clocks.", "MHz"
    ),
    "memory_clock_limit_mhz": Circumstance(
        "memory clock limit", "Memory traffic is slower or faster by it.", "MHz"
    ),
    "cores": Circumstance("cores"),
    "threads": Circumstance("threads", "A CPU's step time follows it."),
}


def remove_overrides() -> tuple[str, ...]:
    """Unset what overrides how fp32 is multiplied, before torch reads it.

    Returns:
        What was set, as NAME=VALUE.
    """
    return tuple(f"{name}={os.environ.pop(name)}" for name in OVERRIDES if name in os.environ)


def recorded() -> tuple[str, ...]:
    """Return the variables that run.json records, as NAME=VALUE, by name."""
    texts = []
    for name, value in sorted(os.environ.items()):
        if name.startswith(RECORDED) and not name.endswith(("_DIR", "_PATH")):
            texts.append(f"{name}={value}")
    return tuple(texts)


def merge(surveys: Mapping[str, Sequence[tuple[str, Environment]]]) -> Environment:
    """Return the nodes of a cluster as one environment, with a device for each placement.

    Facts in which nodes differ are joined by commas.

    Args:
        surveys: by placement, of each of its accelerators the node's id, and its survey, which has
            one device.
    """
    devices: list[Device] = []
    machines: list[Environment] = []
    for placement, of_placement in surveys.items():
        by_node = dict(of_placement)
        joint = Device.joint([environment.devices[0] for _, environment in of_placement])
        # No process reads the energy of several nodes.
        energy = joint.energy if len(by_node) == 1 else None
        device = replace(joint, placement=placement, energy=energy)
        devices.append(device)
        machines += [replace(environment, devices=(device,)) for environment in by_node.values()]
    common: dict[str, Any] = {}
    for name in MACHINE.keys() - OF_THE_FIRST:
        values = dict.fromkeys(getattr(machine, name) for machine in machines)
        common[name] = ", ".join(filter(None, values)) or None
    return replace(machines[0], **common, devices=tuple(devices), machines=tuple(machines))
