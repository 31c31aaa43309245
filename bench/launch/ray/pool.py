"""The accelerators of one type of a Ray cluster, held by a placement group; one trial runs on them at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bench.launch.launcher import Ending
from bench.launch.multi_node import CancelledError, NodeLostError, Part, agreed, merge_nodes, run_parts
from bench.launch.ray.actor import THREADS, NodeWorker
from bench.results.records import Device, Environment, Message
from bench.spec.errors import UsageError
from bench.spec.trial import Placement, Rendezvous, Trial

RESOURCE = "accelerator_type:"
"""How Ray's resources name accelerators."""
LOOK_S = 2.0
"""Interval of checks that the node still exists while waiting for it."""
PATIENCE_S = 10.0
"""How long to wait for an accelerator before saying so."""
STRATEGY = "PACK"
"""One node where all fit on one, else as few as possible."""
STOP_S = 2.0
"""How long an actor may take to stop."""
LABEL = "ray.io/node-id"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupNode:
    """The bundles of a group on one node."""

    actor: Any
    """The first bundle's actor, which sees the accelerators of all of the node's bundles."""
    id: str
    """Ray's id of the node."""
    host: str
    address: str
    """Of the node, on the network that Ray uses."""
    size: int
    """Number of the group's accelerators on the node."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """The ranks of a trial on one node."""

    node: GroupNode
    first: int
    """Rank of the first of them."""
    local: int

    def placement(self, world: int, *, on_gpu: bool) -> str:
        """Return the node's name of a placement of ``world`` devices.

        The node's own devices are numbered from 0. The other nodes' get the numbers that are left, so that each rank
        finds its device at its place in the name.
        """
        return "+".join(str((rank - self.first) % world) if on_gpu else "cpu" for rank in range(world))


class PlacementGroup:
    """A placement group of equal bundles, from the request to the removal."""

    def __init__(self, ray: Any, bundle: Mapping[str, float], count: int, avoid: Sequence[str] = ()) -> None:
        """Request the group.

        Args:
            ray: the connected module.
            bundle: resources of each accelerator.
            count: number of accelerators.
            avoid: ids of nodes not to use.
        """
        self.ray, self.count, self._bundle = ray, count, dict(bundle)
        self._actors: list[Any] = []
        self.nodes: tuple[GroupNode, ...] = ()
        """By node, the one with the most bundles first; empty until it is placed."""
        where = {"bundle_label_selector": [{LABEL: f"!in({','.join(avoid)})"}] * count} if avoid else {}
        self._group = ray.util.placement_group([self._bundle] * count, strategy=STRATEGY, **where)

    def place(self, each: Callable[[], None], get: Callable[[Any], Any], look_s: float) -> None:
        """Wait for the bundles, and start an actor in each.

        Args:
            each: called every ``look_s`` seconds while waiting; an exception of it ends the wait.
            get: returns the value of an actor's call.
            look_s: in seconds.
        """
        while not self._group.wait(look_s):
            each()
        self._actors = [self._start(index) for index in range(self.count)]
        waiting = [actor.__ray_ready__.remote() for actor in self._actors]
        while len(self.ray.wait(waiting, num_returns=len(waiting), timeout=look_s)[0]) < len(waiting):
            each()
        for ready in waiting:
            get(ready)
        self.nodes = self._arrange([get(actor.whereabouts.remote()) for actor in self._actors])
        for node in self.nodes:
            visible = [get(actor.visible.remote()) for actor in self._of(node.id)]
            get(node.actor.share.remote(",".join(filter(None, visible)), len(self.nodes) > 1))

    def divide(self, count: int) -> tuple[Ranks, ...]:
        """Divide the first ``count`` accelerators by node."""
        return tuple(self._divide(count))

    def remove(self) -> None:
        """End what is running, and release the accelerators."""
        stopping = [actor.stop.remote() for actor in self._actors]
        with suppress(self.ray.exceptions.RayError):  # actors that are gone or do not answer are killed below
            self.ray.wait(stopping, num_returns=len(stopping), timeout=STOP_S) if stopping else None
        for actor in self._actors:
            self.ray.kill(actor)
        with suppress(self.ray.exceptions.RayError):
            self.ray.util.remove_placement_group(self._group)

    def _start(self, index: int) -> Any:
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )
        own = {name: amount for name, amount in self._bundle.items() if name not in ("CPU", "GPU")}
        actor = self.ray.remote(NodeWorker).options(
            max_concurrency=4,
            num_cpus=self._bundle.get("CPU", 0),
            num_gpus=self._bundle.get("GPU", 0),
            resources=own,
            scheduling_strategy=strategy,
        )
        return actor.remote(os.environ.get(THREADS), move=True)

    def _arrange(self, places: Sequence[tuple[str, str, str]]) -> tuple[GroupNode, ...]:
        """Return the bundles by node, the node with the most first, so that small trials use few nodes."""
        self._nodes = [node for node, _, _ in places]
        found = {node: (node, host, address) for node, host, address in places}
        nodes = [
            GroupNode(actor=self._of(node)[0], id=node, host=host, address=address, size=self._nodes.count(node))
            for node, host, address in found.values()
        ]
        return tuple(sorted(nodes, key=lambda node: -node.size))

    def _of(self, node: str) -> list[Any]:
        return [actor for actor, at in zip(self._actors, self._nodes, strict=True) if at == node]

    def _divide(self, count: int) -> Iterator[Ranks]:
        first = 0
        for node in self.nodes:
            if first < count:
                local = min(node.size, count - first)
                yield Ranks(node=node, first=first, local=local)
                first += local


class AcceleratorPool:
    """Runs trials on accelerators of a type, and on other nodes when one is lost."""

    def __init__(self, ray: Any, accelerator: str, most: int) -> None:
        """Prepare; the accelerators are taken with the first call.

        Args:
            ray: the connected module.
            accelerator: the type.
            most: how many are to train together at most.
        """
        self.ray, self.type, self.most = ray, accelerator, most
        self.closed = threading.Event()
        self._group: PlacementGroup | None = None
        self._suspect = ""
        """Id of the node that failed last."""
        self._lost: set[str] = set()
        self._prepared: list[tuple[str, tuple[object, ...]]] = []

    def __str__(self) -> str:
        return f"{self.type} on {', '.join(node.host for node in self._group.nodes)}" if self._group else self.type

    @property
    def on_gpu(self) -> bool:
        """Whether the nodes of this type have GPUs."""
        return any(node["Resources"].get("GPU") for node in self._nodes())

    @property
    def room(self) -> int:
        """Number of accelerators on nodes that are not lost, including those lent to others."""
        return sum(self._fitting(node["Resources"]) for node in self._nodes())

    def survey(self, count: int) -> Environment:
        """Describe ``count`` accelerators that train together as one environment."""
        division, found = self._open(count).divide(count), []
        for ranks in division:
            # The devices of one node are merged by its survey, those of several nodes here.
            whole = (ranks.placement(count, on_gpu=self.on_gpu),)
            each = tuple(str(index) if self.on_gpu else "cpu" for index in range(ranks.local))
            names = whole if len(division) == 1 else each
            look = ranks.node.actor.call.remote("bench.devices.survey:survey", names)
            one: Environment = self._value(ranks.node, look)
            found.append(replace(one, removed_variables=self._get(ranks.node.actor.removed_variables.remote())))
        return found[0] if len(found) == 1 else merge_nodes(found)

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker on each node, and return the value on which they agree.

        A node that replaces one of these makes the same calls first.

        Args:
            target: the function as ``module:name``.
            arguments: its arguments.

        Raises:
            UsageError: the function raised one, its process failed, died or hung, or the nodes do not agree.
            NodeLostError: a node is gone.
        """
        values = self._call(self._open(1).nodes, target, arguments)
        self._prepared.append((target, arguments))
        return agreed(target, values)

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial, passing its records on as they come.

        Raises:
            NodeLostError: a node is gone.
            CancelledError: the run was stopped.
        """
        world = len(trial.cell.placement.members)
        division = self._open(world).divide(world)

        def heard(message: Any) -> None:
            on_message(replace(message, trial=trial.id) if hasattr(message, "trial") else message)

        if len(division) > 1:
            return self._unless_stopped(run_parts(self._parts(trial, device, division), heard))
        for message in self._start(trial, device, division[0]):
            if isinstance(message, Ending):
                return self._unless_stopped(message)
            heard(message)
        raise NodeLostError(f"{self} ended without a word")

    def lose(self) -> None:
        """Release the accelerators and avoid the node that was lost."""
        if self._suspect:
            self._lost.add(self._suspect)
        self._release()

    def forgive(self) -> None:
        """Allow nodes that were lost, which may be back."""
        self._lost.clear()

    def close(self) -> None:
        """End what is running and release the accelerators."""
        self.closed.set()
        self._release()

    def _parts(self, trial: Trial, device: Device, division: Sequence[Ranks]) -> list[Part]:
        """Return the parts of a trial on several nodes, whose processes meet on the first of them."""
        lead, world = division[0].node, len(trial.cell.placement.members)
        port = self._get(lead.actor.free_port.remote(), lead)

        def part(ranks: Ranks) -> Part:
            rendezvous = Rendezvous(first=ranks.first, local=ranks.local, world=world, address=lead.address, port=port)
            return Part(
                name=f"{self.type} on {ranks.node.host} ({ranks.node.address})",
                run=lambda: self._start(trial, device, ranks, rendezvous),
                halt=lambda: self._halt(ranks.node),
            )

        return [part(ranks) for ranks in division]

    def _start(self, trial: Trial, device: Device, ranks: Ranks, rendezvous: Rendezvous | None = None) -> Iterator[Any]:
        name = ranks.placement(len(trial.cell.placement.members), on_gpu=device.is_gpu)
        there = replace(trial, cell=replace(trial.cell, placement=Placement(name=name)))
        method = ranks.node.actor.run.options(num_returns="streaming")
        try:
            for reference in method.remote(there, replace(device, placement=name), rendezvous):
                yield self._get(reference, ranks.node)
        except self.ray.exceptions.RayError as error:
            raise self._gone(error, ranks.node) from error

    def _unless_stopped(self, ending: Ending) -> Ending:
        """Return a trial's ending; raise CancelledError if it ended because the run was stopped."""
        if self.closed.is_set():
            raise CancelledError
        return ending

    def _halt(self, node: GroupNode) -> None:
        with suppress(self.ray.exceptions.RayError):  # the node is gone, and its stream raises
            node.actor.halt.remote()

    def _release(self) -> None:
        group, self._group = self._group, None
        if group is not None:
            group.remove()

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have this accelerator and are not known to be lost."""
        nodes = [node for node in self.ray.nodes() if node["Alive"] and node["NodeID"] not in self._lost]
        return [node for node in nodes if RESOURCE + self.type in node["Resources"]]

    def _fitting(self, resources: dict[str, float]) -> int:
        """Return the number of bundles that a node has room for."""
        if self.on_gpu:
            return int(min(resources.get("GPU", 0), resources.get("CPU", 0)))
        return min(int(resources[RESOURCE + self.type]), self.most)

    def _bundle(self) -> dict[str, float]:
        """Return an accelerator's resources: a GPU and a CPU, or without GPUs its share of the node's CPUs."""
        if self.on_gpu:
            return {"GPU": 1, "CPU": 1, RESOURCE + self.type: 0.001}
        nodes = [node["Resources"] for node in self._nodes()]
        cpus = [resources.get("CPU", 0) // (self._fitting(resources) or 1) for resources in nodes]
        return {"CPU": min(cpus), RESOURCE + self.type: 1}

    def _open(self, count: int) -> PlacementGroup:
        """Return a group with at least ``count`` accelerators, placing one if there is none."""
        if self._group is not None and self._group.count >= count:
            return self._group
        self._release()
        self._require(count)
        present = {node["NodeID"] for node in self.ray.nodes() if node["Alive"]}
        group = PlacementGroup(self.ray, self._bundle(), min(self.most, self.room), sorted(self._lost & present))
        self._group = group
        waited = 0.0

        def look() -> None:
            nonlocal waited
            if self.closed.is_set():
                raise CancelledError
            self._require(group.count)
            waited += LOOK_S
            if waited == PATIENCE_S:
                said = f"{group.count} {self.type}" if group.count > 1 else self.type
                print(f"Waiting for {said}: Ray has lent all of them, or the node is still starting.", flush=True)

        try:
            look()
            group.place(look, self._get, LOOK_S)
            for target, arguments in self._prepared:
                self._call(group.nodes, target, arguments)
        except BaseException:
            self._group = None
            group.remove()
            raise
        return group

    def _require(self, count: int) -> None:
        room = self.room
        if not room:
            raise NodeLostError(f"the cluster has no other node with {self.type}")
        if room < count:
            raise NodeLostError(f"the cluster has only {room} {self.type} left, and {count} are to train together")

    def _call(self, nodes: Sequence[GroupNode], target: str, arguments: tuple[object, ...]) -> dict[str, Any]:
        running = [node.actor.call.remote(target, *arguments) for node in nodes]
        return {
            f"{self.type} on {node.host}": self._value(node, reference)
            for node, reference in zip(nodes, running, strict=True)
        }

    def _value(self, node: GroupNode, reference: Any) -> Any:
        ending: Ending = self._get(reference, node)
        if ending.kind != "done":
            self._suspect = node.id
            raise UsageError(f"{self.type} on {node.host}: {ending.text}")
        return ending.value

    def _get(self, reference: Any, node: GroupNode | None = None) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            raise self._gone(error, node) from error

    def _gone(self, error: Exception, node: GroupNode | None = None) -> Exception:
        if self.closed.is_set():
            return CancelledError()
        self._suspect = node.id if node is not None else ""
        where = f"{self.type} on {node.host}" if node is not None else self.type
        return NodeLostError(f"{where} was lost ({type(error).__name__}: {str(error).strip().splitlines()[0]})")
