"""A Ray placement group that holds accelerators, with an actor in each of its bundles."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from bench.launch.ray.actor import THREADS, NodeWorker

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
