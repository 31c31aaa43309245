"""The nodes of a cluster as one environment."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from bench.results.records import Device, Environment, Node

Surveys = Sequence[tuple[str, Environment]]
"""For each accelerator of a placement its node's id, and its survey, which has one device."""
TEXTS = ("host", "os", "python", "torch", "torchvision", "cuda", "cudnn", "driver", "openmp")
"""Fields of an environment that are joined by commas where nodes differ."""
TUPLES = ("removed_variables", "variables", "left_out")
"""Fields whose items are kept once each."""


def merge(surveys: Mapping[str, Surveys]) -> Environment:
    """Return one environment with a device for each placement, by the placement's name."""
    every = [environment for found in surveys.values() for _, environment in found]
    common: dict[str, Any] = {}
    for name in TEXTS:
        texts = [str(value) for environment in every if (value := getattr(environment, name))]
        common[name] = ", ".join(dict.fromkeys(texts)) or None
    for name in TUPLES:
        common[name] = tuple(dict.fromkeys(text for environment in every for text in getattr(environment, name)))
    nodes = [_node(name, environment) for name, found in surveys.items() for environment in dict(found).values()]
    devices = tuple(_device(name, found) for name, found in surveys.items())
    return replace(every[0], **common, devices=devices, nodes=tuple(nodes))


def _device(name: str, surveys: Surveys) -> Device:
    """Return the device of a placement; of several on one node the energy is known if each has the same source."""
    devices = [environment.devices[0] for _, environment in surveys]
    if len(devices) == 1:
        return replace(devices[0], placement=name)
    uuids = [device.uuid for device in devices if device.uuid]
    alike = len({node for node, _ in surveys}) == 1 and len({device.energy for device in devices}) == 1
    return replace(
        Device.joint(devices),
        placement=name,
        uuids=tuple(uuids) if len(uuids) == len(devices) else (),
        energy=devices[0].energy if alike else None,
    )


def _node(placement: str, environment: Environment) -> Node:
    same = {name: getattr(environment, name) for name in ("host", "driver", "torch", "cuda", "cudnn")}
    return Node(accelerator=placement, device=environment.devices[0].name, **same)
