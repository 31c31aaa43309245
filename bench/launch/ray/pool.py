"""The accelerators of one type of a Ray cluster, held by a placement group; one trial runs on them at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bench.launch.launcher import Ending
from bench.launch.multi_node import CancelledError, NodeLostError, Part, agreed, merge_nodes, run_parts
from bench.launch.ray.actor import THREADS, NodeWorker
from bench.results.records import Device, Environment, Message
from bench.spec.errors import UsageError
from bench.spec.text import print_plain
from bench.spec.trial import Placement, Rendezvous, Trial

RESOURCE = "accelerator_type:"
"""How Ray's resources name accelerators."""
LABEL = "ray.io/node-id"
STRATEGY = "PACK"
"""One node where all fit on one, else as few as possible."""
POLL_S = 2.0
"""Interval of checks that the nodes still exist while waiting for accelerators."""
PATIENCE_S = 10.0
"""How long to wait for accelerators before saying so."""
STOP_S = 2.0
"""How long an actor may take to stop."""


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
    """A placement group of equal bundles with an actor in each, from the request to the removal."""

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
        """The one with the most bundles first, so that small trials use few nodes; empty until the group is placed."""
        where = {"bundle_label_selector": [{LABEL: f"!in({','.join(avoid)})"}] * count} if avoid else {}
        self._group = ray.util.placement_group([self._bundle] * count, strategy=STRATEGY, **where)

    def place(self, check: Callable[[], None]) -> None:
        """Wait for the bundles, and start an actor in each.

        Args:
            check: called every ``POLL_S`` seconds while waiting; an exception of it ends the wait.
        """
        while not self._group.wait(POLL_S):
            check()
        self._actors = [self._start(index) for index in range(self.count)]
        waiting = [actor.whereabouts.remote() for actor in self._actors]
        while len(self.ray.wait(waiting, num_returns=len(waiting), timeout=POLL_S)[0]) < len(waiting):
            check()
        by_node: dict[tuple[str, str, str], list[Any]] = {}
        for actor, whereabouts in zip(self._actors, self.ray.get(waiting), strict=True):
            by_node.setdefault(whereabouts, []).append(actor)
        for (node, host, address), actors in sorted(by_node.items(), key=lambda item: -len(item[1])):
            self.nodes += (GroupNode(actor=actors[0], id=node, host=host, address=address, size=len(actors)),)
            visible = self.ray.get([actor.visible.remote() for actor in actors])
            self.ray.get(actors[0].share.remote(",".join(filter(None, visible)), len(by_node) > 1))

    def divide(self, count: int) -> list[Ranks]:
        """Divide the first ``count`` accelerators by node."""
        division, first = [], 0
        for node in self.nodes:
            if first < count:
                division.append(Ranks(node=node, first=first, local=min(node.size, count - first)))
                first += node.size
        return division

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
        actor = self.ray.remote(NodeWorker).options(
            max_concurrency=4,
            num_cpus=self._bundle.get("CPU", 0),
            num_gpus=self._bundle.get("GPU", 0),
            resources={name: amount for name, amount in self._bundle.items() if name not in ("CPU", "GPU")},
            scheduling_strategy=strategy,
        )
        return actor.remote(os.environ.get(THREADS), move=True)


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
        division, surveys = self._open(count).divide(count), []
        for ranks in division:
            # The devices of one node are merged by its survey, those of several nodes here.
            whole = (ranks.placement(count, on_gpu=self.on_gpu),)
            each = tuple(str(index) if self.on_gpu else "cpu" for index in range(ranks.local))
            surveys.append(
                self._value(ranks.node, ranks.node.actor.survey.remote(whole if len(division) == 1 else each))
            )
        return surveys[0] if len(surveys) == 1 else merge_nodes(surveys)

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

        def take(message: Any) -> None:
            on_message(replace(message, trial=trial.id) if hasattr(message, "trial") else message)

        if len(division) > 1:
            ending = run_parts(self._parts(trial, device, division), take)
        else:
            ending = self._start(trial, device, division[0], None, take)
        if self.closed.is_set():  # because of which it ended
            raise CancelledError
        return ending

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
                run=lambda on_message: self._start(trial, device, ranks, rendezvous, on_message),
                halt=lambda: self._halt(ranks.node),
            )

        return [part(ranks) for ranks in division]

    def _start(
        self,
        trial: Trial,
        device: Device,
        ranks: Ranks,
        rendezvous: Rendezvous | None,
        on_message: Callable[[Message], None],
    ) -> Ending:
        name = ranks.placement(len(trial.cell.placement.members), on_gpu=device.is_gpu)
        there = replace(trial, cell=replace(trial.cell, placement=Placement(name=name)))
        method = ranks.node.actor.run.options(num_returns="streaming")
        try:
            for reference in method.remote(there, replace(device, placement=name), rendezvous):
                message = self._get(reference, ranks.node)
                if isinstance(message, Ending):
                    return message
                on_message(message)
        except self.ray.exceptions.RayError as error:
            raise self._gone(error, ranks.node) from error
        raise NodeLostError(f"{self.type} on {ranks.node.host} ended without a message")

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
        waited_s = 0.0

        def check() -> None:
            nonlocal waited_s
            if self.closed.is_set():
                raise CancelledError
            self._require(group.count)
            waited_s += POLL_S
            if waited_s == PATIENCE_S:
                accelerators = f"{group.count} {self.type}" if group.count > 1 else self.type
                print_plain(f"Waiting for {accelerators}: Ray has lent all of them, or the node is still starting.")

        try:
            check()
            group.place(check)
            for target, arguments in self._prepared:
                self._call(group.nodes, target, arguments)
        except self.ray.exceptions.RayError as error:
            self._release()
            raise self._gone(error) from error
        except BaseException:
            self._release()
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

    def _get(self, reference: Any, node: GroupNode) -> Any:
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
