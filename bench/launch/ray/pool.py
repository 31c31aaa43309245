"""The accelerators of one type of a Ray cluster, held by a placement group; one trial runs on them at a time."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from bench.launch.launcher import Ending, OnMessage
from bench.launch.ranks import Rank, run_ranks
from bench.launch.ray.actor import THREADS, AcceleratorActor
from bench.results.records import Device, Environment
from bench.spec.errors import UsageError, first_line
from bench.spec.text import print_plain
from bench.spec.trial import Placement, Rendezvous, Trial

RESOURCE = "accelerator_type:"
"""How Ray's resources name accelerators."""
STRATEGY = "PACK"
"""One node where all fit on one, else as few as possible."""
POLL_S = 2.0
"""Interval of checks that the nodes still exist while waiting for accelerators."""
PATIENCE_S = 10.0
"""How long to wait for accelerators before saying so."""


class NodeLostError(Exception):
    """A node is gone, or its actor."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """An accelerator that the run holds."""

    actor: Any
    node: str
    """Ray's id of its node."""
    name: str
    """Type and node, for messages."""
    address: str
    """Of the node, on the network that Ray uses."""


class AcceleratorPool:
    """Runs trials on accelerators of a type, and on others after one is lost."""

    def __init__(self, ray: Any, accelerator: str, most: int) -> None:
        """Prepare; the accelerators are taken with the first call.

        Args:
            ray: the connected module.
            accelerator: the type.
            most: how many are to train together at most.
        """
        self.ray, self.type, self.most = ray, accelerator, most
        self.closed = threading.Event()
        self._group: Any = None
        self._held: list[Accelerator] = []
        self._prepared: list[tuple[str, tuple[object, ...]]] = []

    @property
    def bundle(self) -> dict[str, float]:
        """An accelerator's resources: a GPU and a CPU, or without GPUs its share of its node's CPUs."""
        nodes = self._nodes()
        if any(node.get("GPU") for node in nodes):
            return {"GPU": 1, "CPU": 1, RESOURCE + self.type: 0.001}
        shares = [node.get("CPU", 0) // min(node[RESOURCE + self.type], self.most) for node in nodes]
        return {"CPU": min(shares, default=0), RESOURCE + self.type: 1}

    @property
    def room(self) -> int:
        """Number of the cluster's accelerators of this type, including those lent to others."""
        needed = {name: amount for name, amount in self.bundle.items() if amount}
        return sum(min(int(node.get(name, 0) // needed[name]) for name in needed) for node in self._nodes())

    def survey(self, count: int) -> list[tuple[str, Environment]]:
        """Describe each of ``count`` accelerators, with Ray's id of its node."""
        held = self._open(count)[:count]
        surveys = [each.actor.survey.remote(("0",) if "GPU" in self.bundle else ("cpu",)) for each in held]
        return [(each.node, self._get(each.name, survey)) for each, survey in zip(held, surveys, strict=True)]

    def call(self, target: str, *arguments: object) -> dict[str, Any]:
        """Call a function of the worker on each node, and return its values by the accelerator's name.

        A node that replaces one of these makes the same calls first.

        Args:
            target: the function as ``module:name``.
            arguments: its arguments.

        Raises:
            UsageError: the function raised one, or its process failed, died or hung.
            NodeLostError: a node is gone.
        """
        values = self._call(self._open(1), target, arguments)
        self._prepared.append((target, arguments))
        return values

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial, passing its records on as they come.

        Raises:
            NodeLostError: a node is gone.
            CancelledError: the run was stopped.
        """
        world = len(trial.cell.placement.members)
        held = self._open(world)[:world]
        nodes = [each.node for each in held]
        meetings: list[Rendezvous | None] = [None]
        if world > 1:
            port = self._get(held[0].name, held[0].actor.free_port.remote())
            address = held[0].address
            meetings = [
                Rendezvous(rank=rank, world=world, local_world=nodes.count(node), address=address, port=port)
                for rank, node in enumerate(nodes)
            ]
        ranks = [self._rank(each, trial, device, meeting) for each, meeting in zip(held, meetings, strict=True)]
        ending = run_ranks(ranks, lambda message: on_message(_renamed(message, trial)))
        if self.closed.is_set():  # because of which it ended
            raise CancelledError
        return ending

    def release(self) -> None:
        """Release the accelerators; Ray ends the actors that hold them, and with those ends what they run."""
        (group, self._group), self._held = (self._group, None), []
        if group is not None:
            with suppress(self.ray.exceptions.RayError):
                self.ray.util.remove_placement_group(group)

    def close(self) -> None:
        """End what is running and release the accelerators, for good."""
        self.closed.set()
        self.release()

    def _rank(self, held: Accelerator, trial: Trial, device: Device, meeting: Rendezvous | None) -> Rank:
        """Return the rank of a trial on an accelerator, which is the only one that its actor sees."""
        local = ("0" if device.is_gpu else "cpu") + (f"@{meeting.world}" if meeting else "")
        there = replace(trial, cell=replace(trial.cell, placement=Placement(name=local)))

        def run(on_message: OnMessage) -> Ending:
            stream = held.actor.stream.options(num_returns="streaming")
            try:
                for reference in stream.remote(there, replace(device, placement=local), meeting):
                    message = self._get(held.name, reference)
                    if isinstance(message, Ending):
                        return message
                    on_message(message)
            except self.ray.exceptions.RayError as error:
                raise self._lost(held.name, error) from error
            raise NodeLostError(f"{held.name} ended without a message")

        def halt() -> None:
            with suppress(self.ray.exceptions.RayError):  # the node is gone, and its stream raises
                held.actor.cancel.remote()

        return Rank(name=held.name, run=run, halt=halt)

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that has this accelerator."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [resources for resources in nodes if RESOURCE + self.type in resources]

    def _open(self, count: int) -> list[Accelerator]:
        """Return at least ``count`` accelerators that are held, after taking those of a new group if there is none."""
        if len(self._held) < count:
            self.release()
            self._held = self._take(count)
            for target, arguments in self._prepared:
                self._call(self._held, target, arguments)
        return self._held

    def _take(self, count: int) -> list[Accelerator]:
        """Place a group with an actor in each bundle, which start when Ray has placed it, and wait for them.

        Returns:
            The accelerators by node; the node with the most comes first, so that small trials use few nodes.
        """
        size = min(self.most, self._require(count))
        self._group = self.ray.util.placement_group([self.bundle] * size, strategy=STRATEGY)
        actors = [self._actor(index) for index in range(size)]
        locations, waited_s = [actor.locate.remote() for actor in actors], 0.0
        while len(self.ray.wait(locations, num_returns=size, timeout=POLL_S)[0]) < size:
            if self.closed.is_set():
                raise CancelledError
            if self._require(count) < size:  # a node was lost meanwhile
                self.release()
                return self._take(count)
            waited_s += POLL_S
            if waited_s == PATIENCE_S:
                accelerators = f"{size} {self.type}" if size > 1 else self.type
                print_plain(f"Waiting for {accelerators}: Ray has lent all of them, or the node is still starting.")
        held = [
            Accelerator(actor=actor, node=node, name=f"{self.type} on {host} ({address})", address=address)
            for actor, (node, host, address) in zip(actors, self._get(self.type, locations), strict=True)
        ]
        sizes = Counter(each.node for each in held)
        return sorted(held, key=lambda each: (-sizes[each.node], each.node))

    def _require(self, count: int) -> int:
        """Return the number of accelerators, of which ``count`` are to train together."""
        if (room := self.room) < count:
            raise NodeLostError(f"{count} {self.type} are needed, and the cluster has {room} left")
        return room

    def _actor(self, index: int) -> Any:
        strategy = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
            placement_group=self._group, placement_group_bundle_index=index
        )
        bundle = self.bundle
        actor = self.ray.remote(AcceleratorActor).options(
            max_concurrency=4,  # a trial, its end, and questions
            num_cpus=bundle.pop("CPU"),
            num_gpus=bundle.pop("GPU", 0),
            resources=bundle,
            scheduling_strategy=strategy,
        )
        return actor.remote(os.environ.get(THREADS))

    def _call(self, held: Sequence[Accelerator], target: str, arguments: tuple[object, ...]) -> dict[str, Any]:
        of_nodes = {each.node: each for each in held}.values()
        running = [each.actor.call.remote(target, *arguments) for each in of_nodes]
        return {each.name: self._get(each.name, value) for each, value in zip(of_nodes, running, strict=True)}

    def _get(self, where: str, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            raise self._lost(where, error) from error

    def _lost(self, where: str, error: Exception) -> Exception:
        """Return why there is no answer: the run was stopped, the user can mend it, or a node is gone."""
        if self.closed.is_set():
            return CancelledError()
        if isinstance(cause := getattr(error, "cause", None), UsageError):
            return UsageError(f"{where}: {cause}")
        return NodeLostError(f"{where} was lost ({type(error).__name__}: {first_line(error)})")


def _renamed(message: Any, trial: Trial) -> Any:
    """Return a record with the trial's own id, in which its placement has another name than on the node."""
    return replace(message, trial=trial.id) if hasattr(message, "trial") else message
