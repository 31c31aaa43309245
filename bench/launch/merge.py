"""What devices and nodes that train together amount to: one device, one environment, one peak of memory."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.results.records import Device, Environment, MemoryPeak, Node, TrialResult
from bench.spec.errors import UsageError

TEXTS = ("host", "os", "python", "torch", "torchvision", "cuda", "cudnn", "driver", "openmp")
"""Fields of an environment that are joined by commas where nodes differ."""


def agreed(target: str, values: Mapping[str, Any]) -> Any:
    """Return the value that a function returned on every node.

    Args:
        target: the function as ``module:name``.
        values: by the node's name.

    Raises:
        UsageError: the values differ.
    """
    first, *others = values.values()
    if any(other != first for other in others):
        text = "; ".join(f"{node}: {value}" for node, value in values.items())
        raise UsageError(
            f"The nodes do not agree about {target.split(':')[1]}: {text}. Give all nodes the same images and suites."
        )
    return first


def merge_devices(devices: Sequence[Device]) -> Device:
    """Return several devices as one; fields that only a single board has become None."""
    first, names = devices[0], list(dict.fromkeys(device.name for device in devices))
    memory = [device.memory_total_bytes for device in devices]
    reasons = {name: why for device in devices for name, why in (device.unsupported or {}).items()}
    return replace(
        first,
        placement="+".join(device.placement for device in devices),
        name=f"{len(devices)} × {names[0]}" if len(names) == 1 and first.is_gpu else " + ".join(names),
        names=tuple(dict.fromkeys(name for device in devices for name in device.names or (device.name,))),
        architecture=" + ".join(dict.fromkeys(device.architecture for device in devices)),
        memory_total_bytes=sum(size or 0 for size in memory) if all(memory) else None,
        fp32_gflops=min((device.fp32_gflops for device in devices if device.fp32_gflops), default=None),
        bf16_gflops=min((device.bf16_gflops for device in devices if device.bf16_gflops), default=None),
        uuid=None,
        uuids=(),
        power_limit_w=None,
        power_default_w=None,
        energy=None,
        unsupported={**reasons, "fp16-master": "its gradients are widened before those of several devices are joined"},
    )


def merge_nodes(environments: Sequence[Environment]) -> Environment:
    """Return one environment for several nodes whose devices train together; each holds its own devices."""
    devices = [device for environment in environments for device in environment.devices]
    nodes = tuple(_node(environment) for environment in environments)
    return replace(environments[0], **_common(environments), devices=(merge_devices(devices),), nodes=nodes)


def merge_placements(environments: Mapping[str, Environment]) -> Environment:
    """Return one environment with a device for each placement.

    Args:
        environments: by the placement's name; each has one device.
    """
    every = list(environments.values())
    devices = tuple(replace(one.devices[0], placement=name) for name, one in environments.items())
    nodes = tuple(
        replace(node, accelerator=name) for name, one in environments.items() for node in one.nodes or (_node(one),)
    )
    return replace(every[0], **_common(every), devices=devices, nodes=nodes)


def merge_results(own: Sequence[TrialResult], others: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the first part's results, with the largest device's peaks of memory and the sum over all parts."""
    merged = []
    for result in own:
        peaks = [one.memory for one in (result, *others) if one.precision == result.precision and one.memory]
        merged.append(replace(result, memory=MemoryPeak.of_all(peaks)) if result.memory else result)
    return merged


def _node(environment: Environment) -> Node:
    own = {name: getattr(environment, name) for name in ("host", "driver", "torch", "cuda", "cudnn")}
    return Node(accelerator="", device=environment.devices[0].name, **own)


def _common(environments: Sequence[Environment]) -> dict[str, Any]:
    """Return the fields of all environments: each differing text once, and every variable that was removed."""
    common: dict[str, Any] = {}
    for name in TEXTS:
        texts = [str(value) for environment in environments if (value := getattr(environment, name))]
        common[name] = ", ".join(dict.fromkeys(part for text in texts for part in text.split(", "))) or None
    removed = dict.fromkeys(name for environment in environments for name in environment.removed_variables)
    return {**common, "removed_variables": tuple(removed)}
