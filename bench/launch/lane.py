"""One accelerator of a Ray cluster: held by an actor, on which one thing runs at a time."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Any

from bench.launch.local import Ending
from bench.launch.node import THREADS, NodeWorker
from bench.records import Device, Message
from bench.spec import UsageError
from bench.trial import Placement, Trial

RESOURCE = "accelerator_type:"
"""How Ray's resources name accelerators."""
LOOK_S = 2.0
"""How often to look whether a node is still there while waiting for it."""
PATIENCE_S = 10.0
"""How long to wait for an accelerator before saying so."""


class NodeLostError(Exception):
    """The node, or the actor on it, is gone."""


class CancelledError(Exception):
    """The run was stopped."""


class Lane:
    """Runs what is asked on one accelerator of a type, and on another one when its node is lost."""

    def __init__(self, ray: Any, name: str) -> None:
        """Remember what to ask for; the accelerator is taken with the first call.

        Args:
            ray: the connected module.
            name: the accelerator's type, or several with + between for several of one node.
        """
        self.ray, self.name = ray, name
        self.type, self.count = name.partition("+")[0], name.count("+") + 1
        self.host = self._node = ""
        self.closed = threading.Event()
        self._actor: Any = None
        self._lost: set[str] = set()
        self._prepared: list[tuple[str, tuple[object, ...]]] = []

    def __str__(self) -> str:
        return f"{self.name} on {self.host}"

    @property
    def on_gpu(self) -> bool:
        """Whether Ray knows GPUs on the nodes of this type."""
        return any(node["Resources"].get("GPU") for node in self._nodes())

    @property
    def local_placement(self) -> str:
        """What the node itself calls it: Ray shows an actor no other GPUs than its own."""
        return "+".join(str(index) if self.on_gpu else "cpu" for index in range(self.count))

    def ask(self, method: str) -> Any:
        """Call a method of the node's worker itself.

        Raises:
            NodeLostError: it is gone.
        """
        return self._get(getattr(self._open(), method).remote())

    def call(self, target: str, *arguments: object, again: bool = True) -> Any:
        """Call a function of the worker's side in a fresh process of the node, and return its value.

        Args:
            target: the function as ``module:name``.
            arguments: what to call it with.
            again: whether another node has to do it too, before it takes this one's place.

        Raises:
            UsageError: it raised one, or it failed, died or hung.
            NodeLostError: it is gone.
        """
        value = self._call(self._open(), target, arguments)
        if again:
            self._prepared.append((target, arguments))
        return value

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial, handing its records on as they come.

        Raises:
            NodeLostError: it is gone.
        """
        actor, placement = self._open(), self.local_placement
        there = replace(trial, cell=replace(trial.cell, placement=Placement(name=placement)))
        stream = actor.run.options(num_returns="streaming").remote(there, replace(device, placement=placement))
        for message in self._listen(stream):
            if isinstance(message, Ending):
                return message
            on_message(replace(message, trial=trial.id) if hasattr(message, "trial") else message)
        raise NodeLostError(f"{self} ended without a word")

    def lose(self) -> None:
        """Let go of a node that is lost; the next one is another."""
        self._lost.add(self._node)
        self._kill()

    def forgive(self) -> None:
        """Take a node that was lost again if it is there again."""
        self._lost.clear()

    def close(self) -> None:
        """End what is running and give the accelerator back."""
        self.closed.set()
        self._kill()

    def _kill(self) -> None:
        actor, self._actor = self._actor, None
        if actor is not None:
            with suppress(self.ray.exceptions.RayError):  # it is gone, or does not answer: Ray ends it
                self.ray.get(actor.stop.remote(), timeout=LOOK_S)
            self.ray.kill(actor)

    def _nodes(self) -> list[dict[str, Any]]:
        """Return the nodes that have this accelerator and are not known to be lost."""
        nodes = [node for node in self.ray.nodes() if node["Alive"] and node["NodeID"] not in self._lost]
        return [node for node in nodes if RESOURCE + self.type in node["Resources"]]

    def _demand(self, nodes: list[dict[str, Any]]) -> dict[str, Any]:
        """Return the resources to hold: the GPUs, or a node of CPUs whole, so that nothing else of Ray's runs there."""
        if self.on_gpu:
            return {"num_gpus": self.count, "num_cpus": 1, "resources": {RESOURCE + self.type: 0.001}}
        cpus = min(node["Resources"].get("CPU", 0) for node in nodes)
        return {"num_cpus": cpus, "resources": {RESOURCE + self.type: 1}}

    def _open(self) -> Any:
        """Return the actor, placing it first where there is none."""
        if self._actor is not None:
            return self._actor
        nodes = self._nodes()
        if not nodes:
            raise NodeLostError(f"the cluster has no other node with {self.type}")
        demand = self._demand(nodes)
        if self._lost:
            affinity = self.ray.util.scheduling_strategies.NodeAffinitySchedulingStrategy
            demand["scheduling_strategy"] = affinity(nodes[0]["NodeID"], soft=False)
        actor = self.ray.remote(NodeWorker).options(max_concurrency=4, **demand)
        self._actor = actor.remote(os.environ.get(THREADS), move=True)
        self._await(self._actor.__ray_ready__.remote())
        self.host = self._get(self._actor.host.remote())
        self._node = self._get(self._actor.node.remote())
        for target, arguments in self._prepared:
            self._call(self._actor, target, arguments)
        return self._actor

    def _await(self, ready: Any) -> None:
        """Wait until the actor is placed, as long as there is a node that could have it."""
        waited = 0.0
        while not self.ray.wait([ready], timeout=LOOK_S)[0]:
            if self.closed.is_set():
                raise CancelledError
            if not self._nodes():
                self._kill()
                raise NodeLostError(f"the cluster has no other node with {self.type}")
            waited += LOOK_S
            if waited == PATIENCE_S:
                print(f"Waiting for {self.name}: Ray has lent all of them, or the node is still starting.", flush=True)
        self._get(ready)

    def _call(self, actor: Any, target: str, arguments: tuple[object, ...]) -> Any:
        ending: Ending = self._get(actor.call.remote(target, *arguments))
        if ending.kind != "done":
            raise UsageError(f"{self}: {ending.text}")
        return ending.value

    def _listen(self, stream: Any) -> Iterator[Any]:
        try:
            for reference in stream:
                yield self._get(reference)
        except self.ray.exceptions.RayError as error:
            raise self._gone(error) from error

    def _get(self, reference: Any) -> Any:
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            raise self._gone(error) from error

    def _gone(self, error: Exception) -> Exception:
        if self.closed.is_set():
            return CancelledError()
        return NodeLostError(f"{self} was lost ({type(error).__name__}: {str(error).strip().splitlines()[0]})")
