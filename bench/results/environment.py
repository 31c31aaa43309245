"""The environment of a run: what it records of the software and the devices, and of several nodes together."""

from __future__ import annotations

import os
from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import fields, replace
from fnmatch import fnmatchcase
from typing import Any, Literal, NamedTuple

from bench.results.records import Device, Environment, Node

TF32_VARIABLES = ("TORCH_ALLOW_TF32_CUBLAS_OVERRIDE", "NVIDIA_TF32_OVERRIDE")
EMULATION_VARIABLES = ("CUBLAS_EMULATE_SINGLE_PRECISION", "CUBLAS_EMULATION_STRATEGY")
"""Variables that change behind the program's back how fp32 is multiplied: in TF32, or as sums of bfloat16 products."""
RECORDED = (
    *("ATEN_CPU_CAPABILITY", "CUBLAS*", "CUDA_DEVICE_*", "CUDA_LAUNCH_BLOCKING", "CUDA_MODULE_LOADING"),
    *("CUDA_VISIBLE_DEVICES", "CUDNN_*", "DNNL_*", "HIP_*", "HSA_*", "KMP_*", "MIOPEN_*", "MKL_*", "NCCL_*"),
    *("OMP_NUM_THREADS", "ONEDNN_*", "PYTORCH_*", "ROCR_*", "TORCHDYNAMO_*", "TORCHINDUCTOR_*", "TORCH_NCCL_*"),
)
"""Variables that may change figures, as patterns; folders do not, and would tell whose they are."""


class Circumstance(NamedTuple):
    """A version or a setting that run.json has of a machine or of a device."""

    name: str
    why: str = ""
    """Its effect on a comparison, a whole sentence; empty where it has none."""
    unit: str = ""
    on: Literal["any", "cuda", "cpu"] = "any"
    """The kind of devices that it matters for."""


MACHINE = {
    "version": Circumstance("ampmeter", "Another version may measure, or choose, in another way."),
    "host": Circumstance("host"),
    "os": Circumstance("system"),
    "python": Circumstance("Python"),
    "torch": Circumstance("torch", "Another version has other kernels and other defaults."),
    "torchvision": Circumstance("torchvision"),
    "cuda": Circumstance("CUDA", "Its libraries hold the matrix products.", on="cuda"),
    "cudnn": Circumstance("cuDNN", "It holds the convolutions, and chooses among them.", on="cuda"),
    "driver": Circumstance("driver", "It sets clocks and power, and compiles some kernels.", on="cuda"),
    "openmp": Circumstance("OpenMP's spinning", "Next to other programs it can change a CPU's step a lot.", on="cpu"),
    "removed_variables": Circumstance("overrides removed"),
    "variables": Circumstance("environment variables", "They may change how libraries compute."),
}
"""By the key in the environment of run.json, of ``version`` in run.json itself."""
DEVICE = {
    "name": Circumstance("device"),
    "memory_total_bytes": Circumstance("memory", unit="bytes"),
    "power_limit_w": Circumstance("power limit", "Less power means lower clocks under load.", "W"),
    "sm_clock_limit_mhz": Circumstance("clock limit", "The same name stands for boards of other clocks.", "MHz"),
    "memory_clock_limit_mhz": Circumstance("memory clock limit", "Memory traffic is slower or faster by it.", "MHz"),
    "cores": Circumstance("cores"),
    "threads": Circumstance("threads", "A CPU's step time follows it."),
}
"""Of a device; several that train together have no power limit of their own."""

Surveys = Sequence[tuple[str, Environment]]
"""For each accelerator of a placement its node's id, and its survey, which has one device."""


def remove_overrides(environment: MutableMapping[str, str] = os.environ) -> tuple[str, ...]:
    """Unset what overrides how fp32 is multiplied, before torch reads it; return what there was, as NAME=VALUE."""
    names = (*TF32_VARIABLES, *EMULATION_VARIABLES)
    return tuple(f"{name}={environment.pop(name)}" for name in names if name in environment)


def recorded(environment: Mapping[str, str] = os.environ) -> tuple[str, ...]:
    """Return the variables that run.json records, as NAME=VALUE, by name."""
    known = [name for name in environment if any(fnmatchcase(name, pattern) for pattern in RECORDED)]
    return tuple(f"{name}={environment[name]}" for name in sorted(known) if not name.endswith(("_DIR", "_PATH")))


def merge(surveys: Mapping[str, Surveys]) -> Environment:
    """Return the nodes of a cluster as one environment, with a device for each placement, by the placement's name.

    Facts in which nodes differ are joined by commas.
    """
    environments = [environment for nodes in surveys.values() for _, environment in nodes]
    common: dict[str, Any] = {}
    for name in (*MACHINE.keys() - {"version"}, "left_out"):
        values = [getattr(environment, name) for environment in environments]
        if isinstance(values[0], tuple):
            common[name] = tuple(dict.fromkeys(text for value in values for text in value))
        else:
            common[name] = ", ".join(dict.fromkeys(str(value) for value in values if value)) or None
    nodes = [_node(name, environment) for name, pairs in surveys.items() for environment in dict(pairs).values()]
    devices = tuple(_device(name, pairs) for name, pairs in surveys.items())
    return replace(environments[0], **common, devices=devices, nodes=tuple(nodes))


def _device(name: str, surveys: Surveys) -> Device:
    """Return the device of a placement; of several on one node the energy is known if each has the same source."""
    devices = [environment.devices[0] for _, environment in surveys]
    if len(devices) == 1:
        return replace(devices[0], placement=name)
    uuids = tuple(device.uuid for device in devices if device.uuid)
    alike = len({node for node, _ in surveys}) == 1 and len({device.energy for device in devices}) == 1
    return replace(
        Device.joint(devices),
        placement=name,
        uuids=uuids if len(uuids) == len(devices) else (),
        energy=devices[0].energy if alike else None,
    )


def _node(placement: str, environment: Environment) -> Node:
    same = {field.name: getattr(environment, field.name) for field in fields(Node) if field.name in MACHINE}
    return Node(accelerator=placement, device=environment.devices[0].name, **same)
