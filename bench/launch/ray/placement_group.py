"""Accelerators of a Ray cluster that are held together: a placement group, with an actor in each of its bundles."""

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
"""How long an actor may take to end what it runs."""
LABEL = "ray.io/node-id"


@dataclass(frozen=True, kw_only=True, slots=True)
class GroupNode:
    """What of a group is on one node."""

    actor: Any
    """Runs things there; it sees the accelerators of all the node's bundles."""
    id: str
    """Ray's id of the node."""
    host: str
    address: str
    """Of the node, on the network that Ray uses."""
    size: int
    """How many accelerators of the group it has."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Ranks:
    """Which of the processes of a trial are on one node."""

    node: GroupNode
    first: int
    """Rank of the first of them."""
    local: int

    def placement(self, world: int, *, on_gpu: bool) -> str:
        """Return what the node calls a placement of ``world`` devices, of which its own are numbered from 0.

        The other nodes' have the numbers that are left, so that each rank has a device by its place in the name.
        """
        return "+".join(str((rank - self.first) % world) if on_gpu else "cpu" for rank in range(world))


class PlacementGroup:
    """A placement group of equal bundles, from when it is asked for until it is removed."""

    def __init__(self, ray: Any, bundle: Mapping[str, float], count: int, avoid: Sequence[str] = ()) -> None:
        """Ask for it.

        Args:
            ray: the connected module.
            bundle: what each accelerator takes, as Ray's resources.
            count: how many.
            avoid: ids of nodes that are there and are not to be used.
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
            each: is called every ``look_s`` seconds while waiting; whatever it raises ends that.
            get: gets what an actor returned.
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
        """End what is running, and give the accelerators back."""
        stopping = [actor.stop.remote() for actor in self._actors]
        with suppress(self.ray.exceptions.RayError):  # they are gone, or do not answer: Ray ends them
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
        """Sort the bundles by node, and those with the most first, so that few of them are on few nodes."""
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
