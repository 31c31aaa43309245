"""What accelerators on several nodes of a cluster amount to: one device, one environment, one answer."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, replace
from typing import Any

from bench.results.records import Device, Environment, Node
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS

NODE = ("host", "driver", "torch", "cuda", "cudnn")
"""What is told of each node by itself."""
TEXTS = ("host", "os", "python", "torch", "torchvision", "cuda", "cudnn", "driver", "openmp")
"""What is told of all of them."""


def agreed(target: str, values: Mapping[str, Any]) -> Any:
    """Return what a function returned wherever it was called.

    Raises:
        UsageError: it did not return the same everywhere.
    """
    first, *others = values.values()
    if any(other != first for other in others):
        said = "; ".join(f"{where}: {value}" for where, value in values.items())
        raise UsageError(f"The nodes do not agree about {target.split(':')[1]}: {said}.")
    return first


def pool(found: Sequence[Environment]) -> Environment:
    """Make one environment of those of several nodes whose devices train together; each holds its own devices."""
    devices = [device for one in found for device in one.devices]
    nodes = tuple(Node(accelerator="", device=one.devices[0].name, **_told(one)) for one in found)
    return replace(found[0], **_texts(found), devices=(together(devices),), nodes=nodes, **_removed(found))


def together(devices: Sequence[Device]) -> Device:
    """Make one device of several; what is one board's alone is unknown of them."""
    first, names = devices[0], list(dict.fromkeys(device.name for device in devices))
    single = dict.fromkeys(name for device in devices for name in device.names or (device.name,))
    memory = [device.memory_total_bytes for device in devices]
    reasons = {name: why for device in devices for name, why in (device.unsupported or {}).items()}
    return replace(
        first,
        placement="+".join(device.placement for device in devices),
        name=f"{len(devices)} × {names[0]}" if len(names) == 1 and first.is_gpu else " + ".join(names),
        names=tuple(single),
        architecture=" + ".join(dict.fromkeys(device.architecture for device in devices)),
        memory_total_bytes=sum(size or 0 for size in memory) if all(memory) else None,
        fp32_gflops=min((device.fp32_gflops for device in devices if device.fp32_gflops), default=None),
        bf16_gflops=min((device.bf16_gflops for device in devices if device.bf16_gflops), default=None),
        uuid=None,
        uuids=(),
        power_limit_w=None,
        power_default_w=None,
        energy=None,
        unsupported={**reasons, **{name: p.single_device for name, p in PRECISIONS.items() if p.single_device}},
    )


def join(found: Mapping[str, Environment]) -> Environment:
    """Make one environment of those of several placements, with a device for each, called by its name.

    What they differ in is told of all of them.
    """
    devices = tuple(replace(one.devices[0], placement=name) for name, one in found.items())
    nodes = tuple(
        replace(node, accelerator=name)
        for name, one in found.items()
        for node in one.nodes or (Node(accelerator=name, device=one.devices[0].name, **_told(one)),)
    )
    every = list(found.values())
    return replace(every[0], **_texts(every), devices=devices, nodes=nodes, **_removed(every))


def _told(one: Environment) -> dict[str, Any]:
    return {name: value for name, value in asdict(one).items() if name in NODE}


def _texts(found: Sequence[Environment]) -> dict[str, Any]:
    said = {name: [value for one in found if (value := getattr(one, name))] for name in TEXTS}
    each = {name: [part for value in values for part in str(value).split(", ")] for name, values in said.items()}
    return {name: ", ".join(dict.fromkeys(parts)) or None for name, parts in each.items()}


def _removed(found: Sequence[Environment]) -> dict[str, Any]:
    return {"removed_variables": tuple(dict.fromkeys(name for one in found for name in one.removed_variables))}
