"""What several nodes that train together amount to: one device, one peak of memory, one reason of failure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, replace

from bench.launch.local import Ending
from bench.launch.pool import NODE
from bench.launch.pool import together as devices_together
from bench.results.records import Device, Environment, MemoryPeak, Node, TrialResult
from bench.spec.errors import UsageError
from bench.spec.trial import Placement

TELLING = ("oom", "unsupported", "usage", "timeout")
"""Endings that are a cause; others may be the consequence of another node's, such as a connection that was closed."""


def environment(placements: Sequence[str], found: Mapping[int, Environment]) -> Environment:
    """Return node 0's environment, in which placements on several nodes are devices of them all.

    Args:
        placements: as the run calls them; node 0 has surveyed what each is on one node.
        found: every node's environment by its rank; those of the others hold what is joined alone.

    Raises:
        UsageError: they have different builds of torch.
    """
    first = found[0]
    builds = {one.torch for one in found.values()}
    if len(builds) > 1:
        said = ", ".join(f"{one.torch} on node {rank} ({one.host})" for rank, one in found.items())
        raise UsageError(f"The nodes have different builds of torch: {said}. Install the same one on all of them.")
    held = {rank: {device.placement: device for device in one.devices} for rank, one in found.items()}
    devices, nodes = [], []
    for place in (Placement(name=name) for name in placements):
        if place.nodes == 1:
            devices.append(held[0][place.name])
            continue
        each = [held[rank][place.local] for rank in found]
        devices.append(_device(place, each))
        told = [{name: value for name, value in asdict(one).items() if name in NODE} for one in found.values()]
        nodes += [
            Node(accelerator=place.name, device=device.name, **one) for device, one in zip(each, told, strict=True)
        ]
    removed = tuple(dict.fromkeys(name for one in found.values() for name in one.removed_variables))
    hosts = ", ".join(dict.fromkeys(one.host for one in found.values()))
    return replace(first, host=hosts, devices=tuple(devices), nodes=tuple(nodes), removed_variables=removed)


def _device(place: Placement, each: Sequence[Device]) -> Device:
    """Return the devices of all nodes as one."""
    first, names = each[0], list(dict.fromkeys(device.name for device in each))
    per_node = len(place.members) // place.nodes
    single = names[0].removeprefix(f"{per_node} × ")
    alike = len(names) == 1 and first.is_gpu and (per_node == 1 or single != names[0])
    return replace(
        devices_together(each),
        placement=place.name,
        name=f"{len(place.members)} × {single}" if alike else " + ".join(names),
    )


def results(own: Sequence[TrialResult], others: Sequence[TrialResult]) -> list[TrialResult]:
    """Return node 0's results of a trial; peaks of memory are the largest device's, with the sum over all nodes'."""
    made = []
    for result in own:
        peaks = [one.memory for one in (result, *others) if one.precision == result.precision and one.memory]
        made.append(replace(result, memory=MemoryPeak.of_all(peaks)) if result.memory else result)
    return made


@dataclass(frozen=True, kw_only=True, slots=True)
class Fate:
    """How a node's part of a trial ended."""

    node: str
    ending: Ending
    time_s: float
    """When that was heard, on node 0's clock."""
    lost: bool = False
    """Whether the node is gone."""


def failure(fates: Sequence[Fate]) -> Ending | None:
    """Return why a trial failed, and on which node; None where no part did.

    A node that is gone comes first, then an ending that is a cause by itself, then whatever was heard first. What the
    others say, whose connections that closed, is told only where none is sure to be the cause.
    """
    failed = [fate for fate in fates if fate.ending.kind != "done"]
    if not failed:
        return None
    failed.sort(key=lambda fate: (not fate.lost, fate.ending.kind not in TELLING, fate.time_s))
    first = failed[0]
    sure = first.lost or first.ending.kind in TELLING
    others = [] if sure else [f"{fate.node}: {fate.ending.text.partition(' | ')[0]}" for fate in failed[1:]]
    text = f"{first.node} was lost: {first.ending.text}" if first.lost else f"{first.node}: {first.ending.text}"
    return Ending(kind=first.ending.kind, text="; ".join([text, *others]))
