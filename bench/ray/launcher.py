"""A Ray cluster: each trial runs on nodes with its accelerator, different types at the same time.

The launcher has a pool for each type of accelerator, and the pool an actor on each accelerator, which starts a fresh
process for each trial.
"""

from __future__ import annotations

import importlib.util
import os
import platform
import shutil
import socket
import sys
import tempfile
import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from bench.launch import Ending, Launcher, OnMessage, run_concurrently
from bench.launch.local import LocalLauncher
from bench.launch.ranks import Rank, free_port, run_ranks
from bench.results.environment import merge
from bench.results.records import Device, Environment, Message
from bench.spec.errors import UsageError, first_line
from bench.spec.own_modules import ROOT
from bench.spec.placement import Placement, Rendezvous
from bench.spec.request import Request
from bench.spec.text import print_plain
from bench.spec.trial import SuiteRef, Trial

CONNECT_S = 5.0
"""Timeout of the connection to the head node."""
PACKAGES = ("bench", "suites")
"""The packages that are sent to the nodes."""
THREADS = "OMP_NUM_THREADS"
RESOURCE = "accelerator_type:"
"""How Ray's resources name accelerators."""
STRATEGY = "PACK"
"""One node where all fit on one, else as few as possible."""
POLL_S = 2.0
"""Interval of checks that the nodes still exist while waiting for accelerators."""
PATIENCE = 5
"""How many of these checks to wait for accelerators before saying so."""


class RayLauncher(Launcher):
    """Runs trials on an existing Ray cluster, one at a time in each accelerator pool.

    Its notes name lost nodes. It keeps no checkpoints, since they would stay on a node.
    """

    overlapping = True
    """Trials on different accelerators do not disturb each other."""

    def __init__(self, address: str | None, accelerators: Sequence[str] | None, suite_files: Sequence[str]) -> None:
        """Connect, and send the project's code to the cluster.

        Args:
            address: the head's ``HOST:PORT``; None takes ``RAY_ADDRESS`` or the cluster of this machine.
            accelerators: types to measure, as Ray names them; ``V100+V100`` trains on two together. None is one of
                each type in the cluster.
            suite_files: the user's own suite files, sent to the nodes with the other modules of their folders.

        Raises:
            UsageError: Ray is missing, no cluster answers, or it lacks the accelerators.
        """
        super().__init__()
        self._pools: dict[str, AcceleratorPool] = {}
        """By type."""
        self._stage = Path(tempfile.mkdtemp(prefix="ampmeter-"))
        self._ray: Any = None
        try:
            self._files = stage(self._stage, suite_files)
            self._ray = connect(address, self._stage)
            self._placements = [Placement(name=name) for name in _choose(accelerators, self._ray.nodes())]
            for placement in sorted(self._placements, key=lambda each: len(each.members)):
                kind, most = placement.members[0], len(placement.members)
                pool = self._pools[kind] = AcceleratorPool(self._ray, kind, most)
                if pool.room < most:
                    raise UsageError(f"{placement.name} takes {most} {kind}, and the cluster has {pool.room}.")
        except BaseException:
            self.close()
            raise

    def survey(self, _gpus: tuple[str, ...] | None) -> Environment:
        by_type = self._in_pools(lambda pool: pool.survey(pool.most))
        surveys = {}
        for placement in self._placements:
            surveys[placement.name] = by_type[placement.members[0]][: len(placement.members)]
        return merge(surveys)

    def call(self, target: str, *arguments: object) -> Any:
        translated = tuple(self._translated(argument) for argument in arguments)
        values: dict[str, Any] = {}
        for of_type in self._in_pools(lambda pool: pool.call(target, *translated)).values():
            values |= of_type
        first, *others = values.values()
        if any(other != first for other in others):
            text = "; ".join(f"{node}: {value}" for node, value in values.items())
            raise UsageError(
                f"The nodes do not agree about {target.split(':')[1]}: {text}. Give all nodes the same data and suites."
            )
        return first

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial on nodes with its accelerator; if one of them is lost, the next trial gets others."""
        pool = self._pools[trial.cell.placement.members[0]]
        there = replace(trial, cell=replace(trial.cell, suite=self._translated(trial.cell.suite)))
        try:
            ending = pool.run(there, device, on_message)
        except (NodeLostError, UsageError) as error:
            ending = Ending(kind="lost", text=str(error))
        if ending.kind == "lost":
            self.notes.append(f"{trial.id}: {ending.text}")
            pool.release()
        return ending

    def cancel(self) -> None:
        for pool in self._pools.values():
            pool.close()

    def close(self) -> None:
        self.cancel()
        if self._ray is not None:
            self._ray.shutdown()
        shutil.rmtree(self._stage, ignore_errors=True)

    def _in_pools(self, function: Callable[[AcceleratorPool], Any]) -> dict[str, Any]:
        """Call a function with every pool at the same time; return its values by type."""
        try:
            values = run_concurrently([partial(function, pool) for pool in self._pools.values()], self.cancel)
        except (NodeLostError, CancelledError) as error:
            raise UsageError(f"The cluster could not be queried before the run: {error}.") from error
        return dict(zip(self._pools, values, strict=True))

    def _translated(self, argument: Any) -> Any:
        """Return an argument; of a suite's reference with the path of its file on the nodes."""
        if isinstance(argument, SuiteRef) and argument.file:
            return replace(argument, file=self._files[argument.file])
        return argument


def connect(address: str | None, code: Path) -> Any:
    """Connect to a cluster, upload the folder ``code`` as its working directory, and return Ray's module.

    Raises:
        UsageError: Ray is missing, or no cluster answers.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--on ray needs Ray, which is not installed: pip install 'ampmeter[ray]'.")
    import ray
    import ray.util.scheduling_strategies

    address = address or "auto"
    try:
        if address != "auto":  # Ray itself would try for half a minute
            host, _, port = address.rpartition(":")
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        ray.init(address=address, runtime_env={"working_dir": str(code)}, log_to_driver=False, logging_level="ERROR")
    except (OSError, RuntimeError, ValueError, OverflowError) as error:
        raise UsageError(
            f"No Ray cluster answers at '{address}' ({first_line(error)}). Make this machine a node of it with "
            "ray start --address=HEAD:6379, and name its head with --on ray://HEAD:6379."
        ) from error
    return ray


def stage(folder: Path, suite_files: Sequence[str]) -> dict[str, str]:
    """Copy the project's code and the user's suite files to ``folder``, which Ray sends to the nodes.

    Returns:
        For each suite file its path within the folder.
    """
    for package in PACKAGES:
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    paths = {}
    for number, name in enumerate(suite_files):
        file, copies = Path(name).resolve(), folder / "own" / str(number)
        copies.mkdir(parents=True)
        for module in file.parent.glob("*.py"):
            shutil.copy(module, copies)
        paths[str(file)] = str((copies / file.name).relative_to(folder))
    return paths


def _choose(requested: Sequence[str] | None, nodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the accelerators to measure, of those the cluster has."""
    available = set[str]()
    for node in nodes:
        if node["Alive"]:
            available |= {name.removeprefix(RESOURCE) for name in node["Resources"] if name.startswith(RESOURCE)}
    if not available:
        raise UsageError(
            "The cluster has no accelerator that Ray knows the type of. Name it when a node is started: "
            "ray start --resources '{\"accelerator_type:V100\": 1}' ..."
        )
    missing = [name for name in requested or () if name.split("+")[0] not in available]
    if missing:
        raise UsageError(f"The cluster has no {' and no '.join(missing)}. It has: {', '.join(sorted(available))}.")
    return tuple(requested or sorted(available))


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
        """Take Ray's connected module; the accelerators, of which ``most`` train together, with the first call."""
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

        def forward(message: Any) -> None:  # the trial's own id: on the node, its placement has another name
            on_message(replace(message, trial=trial.id) if hasattr(message, "trial") else message)

        ending = run_ranks(ranks, forward)
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
        if len(self._held) < count and not self.closed.is_set():
            self.release()
            self._held = self._take(count)
            for target, arguments in self._prepared:
                self._call(self._held, target, arguments)
        if self.closed.is_set():  # possibly before there was anything to release
            self.release()
            raise CancelledError
        return self._held

    def _take(self, count: int) -> list[Accelerator]:
        """Place a group with an actor in each bundle, which start when Ray has placed it, and wait for them.

        Returns:
            The accelerators by node, none after Ctrl-C; the node with the most comes first: small trials use few nodes.
        """
        size = min(self.most, self._require(count))
        self._group = self.ray.util.placement_group([self.bundle] * size, strategy=STRATEGY)
        actors = [self._actor(index) for index in range(size)]
        locations = [actor.locate.remote() for actor in actors]
        polls = 0
        while len(self.ray.wait(locations, num_returns=size, timeout=POLL_S)[0]) < size:
            if self.closed.is_set():
                return []
            self._require(size)  # a node may have been lost meanwhile
            polls += 1
            if polls == PATIENCE:
                print_plain(f"Waiting for {size} {self.type}: Ray has lent all of them, or the node is still starting.")
        held = []
        for actor, (node, host, address) in zip(actors, self._get(self.type, locations), strict=True):
            name = f"{self.type} on {host} ({address})"
            held.append(Accelerator(actor=actor, node=node, name=name, address=address))
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


class AcceleratorActor(LocalLauncher):
    """The launcher of an accelerator's node, which lives as long as the run holds the accelerator."""

    not_started = "lost"  # a node whose processes are being killed still has its actor for a moment

    def __init__(self, threads: str | None) -> None:
        """Prepare this process, with ``OMP_NUM_THREADS`` of the machine that started the run if it is set there."""
        # The fork server starts a new interpreter, which would import the main script of this process: Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray sets it to the number of CPUs that the actor requested.
        os.environ.pop(THREADS, None)
        if threads is not None:
            os.environ[THREADS] = threads
        super().__init__()

    def locate(self) -> tuple[str, str, str]:
        """Return Ray's id of the node, its name, and its address on the network that Ray uses."""
        import ray

        address = str(ray.util.get_node_ip_address())
        if (name := interface(address)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # gloo's default is the host name's
        return ray.get_runtime_context().get_node_id(), platform.node(), address

    def free_port(self) -> int:
        return free_port()

    def stream(self, trial: Trial, device: Device, rendezvous: Rendezvous | None) -> Iterator[Message | Ending]:
        """Run the accelerator's rank of a trial, and yield its records as they come, its ending last."""
        messages: SimpleQueue[Message | Ending] = SimpleQueue()

        def execute() -> None:
            try:
                messages.put(self.run(trial, device, messages.put, rendezvous))
            except UsageError as error:  # a process of an earlier trial does not end: others can be measured elsewhere
                messages.put(Ending(kind="lost", text=str(error)))
            except Exception as error:  # else the loop below would wait forever
                messages.put(Ending(kind="error", text=f"{type(error).__name__}: {error}"))

        threading.Thread(target=execute, daemon=True).start()
        while not isinstance(message := messages.get(), Ending):
            yield message
        yield message


def interface(address: str) -> str | None:
    """Return the name of the network interface that has an address."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(each.address == address for each in addresses)), None)


def open_launcher(request: Request) -> RayLauncher | None:
    """Connect to the cluster that a request is to run on; None of one that runs here.

    Raises:
        UsageError: no cluster answers, or it lacks the accelerators.
    """
    if request.on is None:
        return None
    files = [word for word in request.suites if word.endswith(".py")]
    return RayLauncher(request.on.partition("://")[2] or None, request.accelerators, files)
