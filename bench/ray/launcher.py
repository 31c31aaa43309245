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
from collections.abc import Iterator, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from bench.launch import Ending, Launcher, OnMessage
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
        self._calls: list[tuple[object, ...]] = []
        """The calls of the worker's functions so far, which a node that comes later makes, too."""
        self._stage = Path(tempfile.mkdtemp(prefix="ampmeter-"))
        self._ray: Any = None
        try:
            self._files = stage(self._stage, suite_files)
            self._ray = connect(address, self._stage)
            types = sorted(types_of(self._ray.nodes()))
            self._placements = [Placement(name=name) for name in accelerators or types]
            for placement in sorted(self._placements, key=lambda each: len(each.members)):
                kind, most = placement.members[0], len(placement.members)
                pool = self._pools[kind] = AcceleratorPool(self._ray, kind, most, self._calls)
                if pool.room < most:
                    raise UsageError(
                        f"{placement.name} takes {most} {kind}, and the cluster has {pool.room}. Its types are: "
                        f"{', '.join(types)}."
                    )
        except BaseException:
            self.close()
            raise

    def survey(self, _gpus: tuple[str, ...] | None) -> Environment:
        answers, surveys = self._ask("survey_own"), {}
        for placement in self._placements:
            of_type = [(each.node, survey) for each, survey in answers if each.type == placement.members[0]]
            surveys[placement.name] = of_type[: len(placement.members)]
        return merge(surveys)

    def call(self, target: str, *arguments: object) -> Any:
        translated = [self._translated(argument) for argument in arguments]
        answers = self._ask("call", target, *translated)
        first = answers[0][1]
        if any(value != first for _, value in answers):
            text = "; ".join(f"{each.name}: {value}" for each, value in answers)
            raise UsageError(
                f"The nodes do not agree about {target.split(':')[1]}: {text}. Give all nodes the same data and suites."
            )
        self._calls.append((target, *translated))
        return first

    def _ask(self, method: str, *arguments: object) -> list[tuple[Accelerator, Any]]:
        """Call a method of the actor on each accelerator, at the same time; return what each returned.

        Raises:
            UsageError: a method raised one, or a node is lost.
        """
        running = list[tuple[Accelerator, Any]]()
        for pool in self._pools.values():
            pool.open(pool.most)
            running += pool.ask(method, *arguments)
        return [(each, self._pools[each.type].get(each.name, value)) for each, value in running]

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial on nodes with its accelerator; if one of them is lost, the next trial gets others."""
        pool = self._pools[trial.cell.placement.members[0]]
        there = replace(trial, cell=replace(trial.cell, suite=self._translated(trial.cell.suite)))
        try:
            ending = pool.run(there, device, on_message)
        except UsageError as error:
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
        ray.init(
            address=address,
            runtime_env={"working_dir": str(code)},
            log_to_driver=False,
            logging_level="ERROR",
        )
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
    for package in ("bench", "suites"):
        shutil.copytree(ROOT / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    paths = {}
    for number, name in enumerate(suite_files):
        file, copies = Path(name).resolve(), folder / "own" / str(number)
        copies.mkdir(parents=True)
        for module in file.parent.glob("*.py"):
            shutil.copy(module, copies)
        paths[str(file)] = str((copies / file.name).relative_to(folder))
    return paths


def types_of(nodes: Sequence[dict[str, Any]]) -> set[str]:
    """Return the types of the accelerators that a cluster's nodes have.

    Raises:
        UsageError: there is none.
    """
    types = set[str]()
    for node in nodes:
        if node["Alive"]:
            types.update(name.removeprefix(RESOURCE) for name in node["Resources"] if name.startswith(RESOURCE))
    if not types:
        raise UsageError(
            "The cluster has no accelerator that Ray knows the type of. Name it when a node is started: "
            "ray start --resources '{\"accelerator_type:V100\": 1}' ..."
        )
    return types


@dataclass(frozen=True, kw_only=True, slots=True)
class Accelerator:
    """An accelerator that the run holds."""

    type: str
    actor: Any
    node: str
    """Ray's id of its node."""
    name: str
    """Type and node, for messages."""


class AcceleratorPool:
    """Runs trials on accelerators of a type, and on others after one is lost."""

    def __init__(self, ray: Any, accelerator: str, most: int, calls: Sequence[tuple[object, ...]]) -> None:
        """Take no accelerators yet, of which ``most`` train together; each node that comes makes the ``calls``."""
        self.ray, self.type, self.most, self._calls = ray, accelerator, most, calls
        self.closed = threading.Event()
        self._group: Any = None
        self._held: list[Accelerator] = []

    @property
    def room(self) -> int:
        """Number of the cluster's accelerators of this type, including those lent to others."""
        return sum(int(node.get("GPU") or node[RESOURCE + self.type]) for node in self._nodes())

    def _nodes(self) -> list[dict[str, float]]:
        """Return the resources of each node that has this accelerator."""
        nodes = [node["Resources"] for node in self.ray.nodes() if node["Alive"]]
        return [resources for resources in nodes if RESOURCE + self.type in resources]

    def open(self, count: int) -> list[Accelerator]:
        """Return at least ``count`` accelerators that are held, after taking those of a new group if there is none.

        Raises:
            UsageError: the cluster has too few, or lost one.
            CancelledError: the run was stopped.
        """
        if len(self._held) < count and not self.closed.is_set():
            self.release()
            self._held = self._take(count)
            for arguments in self._calls:
                for each, value in self.ask("call", *arguments):
                    self.get(each.name, value)
        if self.closed.is_set():  # possibly before there was anything to release
            self.release()
            raise CancelledError
        return self._held

    def _take(self, count: int) -> list[Accelerator]:
        """Place a group with an actor in each bundle, which start when Ray has placed it, and wait for them.

        Returns:
            The accelerators by node; none after Ctrl-C.
        """
        size = min(self.most, self._require(count))
        gpus = 1 if any(node.get("GPU") for node in self._nodes()) else 0
        resource = {RESOURCE + self.type: 0.001 if gpus else 1}
        bundle = {"CPU": 1, "GPU": gpus, **resource}
        self._group = self.ray.util.placement_group([bundle] * size, strategy=STRATEGY)
        actors = []
        for index in range(size):
            place = self.ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=self._group, placement_group_bundle_index=index
            )
            actor = self.ray.remote(AcceleratorActor).options(
                max_concurrency=4,  # a trial, its end, and questions
                num_cpus=1,
                num_gpus=gpus,
                resources=resource,
                scheduling_strategy=place,
            )
            actors.append(actor.remote(os.environ.get(THREADS)))
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
        for actor, location in zip(actors, locations, strict=True):
            node, host = self.get(self.type, location)
            held.append(Accelerator(type=self.type, actor=actor, node=node, name=f"{self.type} on {host}"))
        return sorted(held, key=lambda each: each.node)

    def _require(self, count: int) -> int:
        """Return the number of accelerators, of which ``count`` are to train together."""
        room = self.room
        if room < count:
            raise UsageError(f"{count} {self.type} are needed, and the cluster has {room} left")
        return room

    def ask(self, method: str, *arguments: object) -> list[tuple[Accelerator, Any]]:
        """Call a method of the actor on each accelerator that is held; return what ``get`` takes to wait for each."""
        return [(each, getattr(each.actor, method).remote(*arguments)) for each in self._held]

    def get(self, where: str, reference: Any) -> Any:
        """Wait for a value of the actor on an accelerator.

        Raises:
            UsageError: the actor raised one, or is lost.
        """
        try:
            return self.ray.get(reference)
        except self.ray.exceptions.RayError as error:
            raise _lost(where, error) from error

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial, passing its records on as they come.

        Raises:
            UsageError: a node is gone.
            CancelledError: the run was stopped.
        """
        world = len(trial.cell.placement.members)
        held = self.open(world)[:world]
        nodes = [each.node for each in held]
        address, port = self.get(held[0].name, held[0].actor.meeting_place.remote())
        ranks = []
        for number, each in enumerate(held):
            meeting = Rendezvous(
                rank=number,
                world=world,
                local_world=nodes.count(each.node),
                address=address,
                port=port,
            )
            ranks.append(self._rank(each, trial, device, meeting if world > 1 else None))

        def forward(
            message: Any,
        ) -> None:  # the trial's own id: on the node, its placement has another name
            on_message(replace(message, trial=trial.id) if hasattr(message, "trial") else message)

        ending = run_ranks(ranks, forward)
        if self.closed.is_set():  # because of which it ended
            raise CancelledError
        return ending

    def _rank(self, held: Accelerator, trial: Trial, device: Device, meeting: Rendezvous | None) -> Rank:
        """Return the rank of a trial on an accelerator, which is the only one that its actor sees."""
        local = ("0" if device.is_gpu else "cpu") + (f"@{meeting.world}" if meeting else "")
        there = replace(trial, cell=replace(trial.cell, placement=Placement(name=local)))

        def run(on_message: OnMessage) -> Ending:
            stream = held.actor.stream.options(num_returns="streaming")
            try:
                for reference in stream.remote(there, replace(device, placement=local), meeting):
                    message = self.get(held.name, reference)
                    if isinstance(message, Ending):
                        return message
                    on_message(message)
            except self.ray.exceptions.RayError as error:
                raise _lost(held.name, error) from error
            raise UsageError(f"{held.name} ended without a message")

        def halt() -> None:
            with suppress(self.ray.exceptions.RayError):  # the node is gone, and its stream raises
                held.actor.cancel.remote()

        return Rank(name=held.name, run=run, halt=halt)

    def release(self) -> None:
        """Release the accelerators; Ray ends the actors that hold them, and with those ends what they run."""
        group, self._group, self._held = self._group, None, []
        if group is not None:
            with suppress(self.ray.exceptions.RayError):
                self.ray.util.remove_placement_group(group)

    def close(self) -> None:
        """End what is running and release the accelerators, for good."""
        self.closed.set()
        self.release()


def _lost(where: str, error: Exception) -> UsageError:
    """Return why there is no answer: something that the user can mend, or a node is gone."""
    cause = getattr(error, "cause", None)
    if isinstance(cause, UsageError):
        return UsageError(f"{where}: {cause}")
    return UsageError(f"{where} was lost ({type(error).__name__}: {first_line(error)})")


class AcceleratorActor(LocalLauncher):
    """The launcher of an accelerator's node, which lives as long as the run holds the accelerator."""

    def __init__(self, threads: str | None) -> None:
        """Prepare this process, with ``OMP_NUM_THREADS`` of the machine that started the run if it is set there."""
        # The fork server starts a new interpreter, which would import the main script of this process: Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray sets it to the number of CPUs that the actor requested.
        os.environ.pop(THREADS, None)
        if threads is not None:
            os.environ[THREADS] = threads
        super().__init__()

    def locate(self) -> tuple[str, str]:
        """Return Ray's id of the node, and its name with its address on the network that Ray uses."""
        import ray

        address = str(ray.util.get_node_ip_address())
        name = interface(address)
        if name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # gloo's default is the host name's
        return ray.get_runtime_context().get_node_id(), f"{platform.node()} ({address})"

    def survey_own(self) -> Environment:
        """Describe the accelerator: the only GPU that this process sees, or the node's CPU."""
        import ray

        return self.survey(("0",) if ray.get_gpu_ids() else ("cpu",))

    def meeting_place(self) -> tuple[str, int]:
        """Return the node's address and a free port of it, at which the ranks of a trial may meet."""
        import ray

        return str(ray.util.get_node_ip_address()), free_port()

    def stream(self, trial: Trial, device: Device, rendezvous: Rendezvous | None) -> Iterator[Message | Ending]:
        """Run the accelerator's rank of a trial, and yield its records as they come, its ending last."""
        messages: SimpleQueue[Message | Ending] = SimpleQueue()

        def execute() -> None:
            try:
                messages.put(self.run_rank(trial, device, rendezvous, messages.put))
            except Exception as error:  # such as a process of an earlier trial that does not end; else the loop below
                messages.put(Ending(kind="lost", text=first_line(error)))  # would wait forever

        threading.Thread(target=execute, daemon=True).start()
        message: Message | Ending = None
        while not isinstance(message, Ending):
            message = messages.get()
            yield message


def interface(address: str) -> str | None:
    """Return the name of the network interface that has an address."""
    for name, addresses in psutil.net_if_addrs().items():
        if address in {each.address for each in addresses}:
            return name
    return None


def open_launcher(request: Request) -> RayLauncher | None:
    """Connect to the cluster that a request is to run on; None of one that does not run on Ray.

    Raises:
        UsageError: no cluster answers, or it lacks the accelerators.
    """
    scheme, _, address = (request.on or "").partition("://")
    if scheme != "ray":
        return None
    files = [word for word in request.suites if word.endswith(".py")]
    return RayLauncher(address or None, request.accelerators, files)
