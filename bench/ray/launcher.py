"""A Ray cluster: each trial runs on nodes with its accelerator, different types at the same time.

The launcher has an actor on each accelerator, which starts a fresh process for each trial.
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
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import CancelledError
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import psutil

from bench.launch import SILENCE_S, Launcher, OnMessage
from bench.launch.local import LocalLauncher
from bench.launch.ranks import Rank, free_port, run_ranks
from bench.results.endings import Ending
from bench.results.environment import merge
from bench.results.records import Device, Environment, Message
from bench.spec.errors import UsageError, first_line
from bench.spec.own_modules import ROOT
from bench.spec.placement import Placement, Rendezvous
from bench.spec.request import Request
from bench.spec.text import print_plain
from bench.spec.trial import SuiteRef, Trial

# Timeout of the connection to the head node.
CONNECT_S = 5.0
THREADS = "OMP_NUM_THREADS"
# How Ray's resources name accelerators.
RESOURCE = "accelerator_type:"
# One node where all fit on one, else as few as possible.
STRATEGY = "PACK"
# How long to wait for accelerators before saying so.
PATIENCE_S = 10.0


class RayLauncher(Launcher):
    """Runs trials on an existing Ray cluster, one at a time on the accelerators of each type.

    It holds the accelerators from beginning to end. If a node is lost, trials on its accelerator
    fail from then on. It keeps no checkpoints, since they would stay on a node.
    """

    overlapping = True
    """Trials on different accelerators do not disturb each other."""

    def __init__(
        self,
        address: str | None,
        accelerators: Sequence[str] | None,
        suite_files: Sequence[str],
    ) -> None:
        """Connect, send the project's code to the cluster, and take the accelerators.

        It waits while others have them.

        Args:
            address: the head's ``HOST:PORT``; None takes ``RAY_ADDRESS`` or the cluster of this
                machine.
            accelerators: types to measure, as Ray names them; ``V100+V100`` trains on two together.
                None is one of each type in the cluster.
            suite_files: the user's own suite files, sent to the nodes with the other modules of
            their folders.

        Raises:
            UsageError: Ray is missing, no cluster answers, or it lacks the accelerators.
        """
        super().__init__()
        self._closed = threading.Event()
        self._held: dict[str, list[Accelerator]] = {}
        """By type, those of a node one after another."""
        self._groups: list[Any] = []
        with tempfile.TemporaryDirectory(prefix="ampmeter-") as code:  # Ray uploads it
            self._files = stage(Path(code), suite_files)
            self._ray = connect(address, Path(code))
        try:
            nodes = nodes_by_type(self._ray.nodes())
            names = accelerators or sorted(nodes)
            self._placements = [Placement(name=name) for name in names]
            # Of each type as many as the largest placement takes; smaller ones share them.
            needed: dict[str, int] = {}
            for placement in self._placements:
                _require_room(placement, nodes)
                kind = placement.members[0]
                needed[kind] = max(len(placement.members), needed.get(kind, 0))
            for kind, count in needed.items():
                has_gpus = any(node.get("GPU") for node in nodes[kind])
                self._held[kind] = self._take(kind, count, has_gpus=has_gpus)
        except BaseException:  # what is held already would stay reserved on the cluster
            self.close()
            raise

    def _take(self, kind: str, count: int, *, has_gpus: bool) -> list[Accelerator]:
        """Place a group with an actor in each bundle, and wait until Ray has started them."""
        # Ray gives a node with GPUs one of the resource, however many it has, so each bundle takes
        # a little; a node without has as many as it has accelerators.
        share = 0.001 if has_gpus else 1
        resource = {RESOURCE + kind: share}
        bundle = {"CPU": 1, "GPU": int(has_gpus), **resource}
        group = self._ray.util.placement_group([bundle] * count, strategy=STRATEGY)
        self._groups.append(group)
        actors = []
        locations = []
        for index in range(count):
            place = self._ray.util.scheduling_strategies.PlacementGroupSchedulingStrategy(
                placement_group=group, placement_group_bundle_index=index
            )
            remote = self._ray.remote(AcceleratorActor).options(
                max_concurrency=4,  # a trial, its end, and questions
                num_cpus=1,
                num_gpus=int(has_gpus),
                resources=resource,
                scheduling_strategy=place,
            )
            actor = remote.remote(os.environ.get(THREADS))
            actors.append(actor)
            locations.append(actor.locate.remote())
        ready, _ = self._ray.wait(locations, num_returns=count, timeout=PATIENCE_S)
        if len(ready) < count:
            print_plain(
                f"Waiting for {count} {kind}: Ray has lent all of them, or the node is still "
                "starting."
            )
        held = []
        for actor, location in zip(actors, locations, strict=True):
            node, host = self._get(kind, location)
            held.append(Accelerator(actor=actor, node=node, name=f"{kind} on {host}"))
        return sorted(held, key=lambda each: each.node)

    def _get(self, where: str, reference: Any) -> Any:
        """Wait for a value of the actor on an accelerator.

        Raises:
            UsageError: the actor raised one, or is lost.
        """
        try:
            return self._ray.get(reference)
        except self._ray.exceptions.RayError as error:
            raise _lost(where, error) from error

    def _ask(
        self,
        method: str,
        *arguments: object,
        **options: object,
    ) -> dict[Accelerator, Any]:
        """Call a method of all actors at the same time; return what each returned.

        Raises:
            UsageError: a method raised one, or a node is lost.
        """
        running = {}
        for held in self._held.values():
            for each in held:
                running[each] = getattr(each.actor, method).remote(*arguments, **options)
        answers = {}
        for each, reference in running.items():
            answers[each] = self._get(each.name, reference)
        return answers

    def _accelerators(self, placement: Placement) -> list[Accelerator]:
        """Return the accelerators of a placement; smaller ones share those of larger ones."""
        members = placement.members
        return self._held[members[0]][: len(members)]

    def survey(self, _gpus: tuple[str, ...] | None) -> Environment:
        answers = self._ask("survey_own")
        surveys = {}
        for placement in self._placements:
            held = self._accelerators(placement)
            surveys[placement.name] = [(each.node, answers[each]) for each in held]
        return merge(surveys)

    def call(self, target: str, *arguments: object, silence_s: float = SILENCE_S) -> Any:
        there = map(self._translated, arguments)
        answers = self._ask("call", target, *there, silence_s=silence_s)
        # Data that differ between the nodes would make their trials answer different questions.
        first, *others = answers.values()
        if any(value != first for value in others):
            texts = []
            for each, value in answers.items():
                texts.append(f"{each.name}: {value}")
            function = target.split(":")[1]
            raise UsageError(
                f"The nodes do not agree about {function}: {'; '.join(texts)}. Give all nodes the "
                "same data and suites."
            )
        return first

    def _translated(self, argument: Any) -> Any:
        """Return an argument; of a suite's reference with the path of its file on the nodes."""
        if isinstance(argument, SuiteRef) and argument.file:
            return replace(argument, file=self._files[argument.file])
        return argument

    def run(self, trial: Trial, device: Device, on_message: OnMessage) -> Ending:
        """Run one trial on accelerators of its type, passing its records on as they come.

        Raises:
            CancelledError: the run was stopped.
        """

        def forward(message: Any) -> None:
            if hasattr(message, "trial"):  # on the node its placement, and so its id, is another
                message = replace(message, trial=trial.id)
            on_message(message)

        try:
            ending = run_ranks(self._ranks(trial, device), forward)
        except UsageError as error:
            ending = Ending(kind="lost", text=str(error))
        if self._closed.is_set():  # because of which it ended
            raise CancelledError
        return ending

    def _ranks(self, trial: Trial, device: Device) -> list[Rank]:
        """Return the ranks of a trial, one on each of its accelerators.

        Each is the only one that its actor sees.
        """
        held = self._accelerators(trial.cell.placement)
        world = len(held)
        local = "0" if device.is_gpu else "cpu"
        if world > 1:  # "0@2" is the first GPU of each of two nodes
            local += f"@{world}"
        suite = self._translated(trial.cell.suite)
        cell = replace(trial.cell, suite=suite, placement=Placement(name=local))
        trial_there = replace(trial, cell=cell)
        device_there = replace(device, placement=local)
        first = held[0]
        address, port = self._get(first.name, first.actor.meeting_place.remote())
        nodes = [each.node for each in held]
        ranks = []
        for number, each in enumerate(held):
            meeting = None
            if world > 1:
                meeting = Rendezvous(
                    rank=number,
                    world=world,
                    local_world=nodes.count(each.node),
                    address=address,
                    port=port,
                )
            arguments = (trial_there, device_there, meeting)
            rank = Rank(
                name=each.name,
                run=partial(self._run_rank, each, arguments),
                halt=partial(self._halt, each),
            )
            ranks.append(rank)
        return ranks

    def _run_rank(
        self,
        held: Accelerator,
        arguments: tuple[Any, ...],
        on_message: OnMessage,
    ) -> Ending:
        """Run a rank by the actor on an accelerator, and pass its records on.

        Raises:
            UsageError: the actor is lost.
        """
        stream = held.actor.stream.options(num_returns="streaming")
        try:
            for reference in stream.remote(*arguments):
                message = self._ray.get(reference)
                if isinstance(message, Ending):
                    return message
                on_message(message)
        except self._ray.exceptions.RayError as error:
            raise _lost(held.name, error) from error
        raise UsageError(f"{held.name} ended without a message")

    def _halt(self, held: Accelerator) -> None:
        with suppress(self._ray.exceptions.RayError):  # the node is gone, and its stream raises
            held.actor.cancel.remote()

    def cancel(self) -> None:
        """Release the accelerators; Ray ends the actors that hold them, and what those run."""
        self._closed.set()
        while self._groups:
            with suppress(self._ray.exceptions.RayError):
                self._ray.util.remove_placement_group(self._groups.pop())

    def close(self) -> None:
        self.cancel()
        self._ray.shutdown()


def connect(address: str | None, code: Path) -> Any:
    """Connect to a cluster, upload the folder ``code`` to it, and return Ray's module.

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
            f"No Ray cluster answers at '{address}' ({first_line(error)}). Make this machine a "
            "node of it with ray start --address=HEAD:6379, and name its head with --on "
            "ray://HEAD:6379."
        ) from error
    return ray


def stage(folder: Path, suite_files: Sequence[str]) -> dict[str, str]:
    """Copy the project's code and the user's suite files to ``folder``, for the nodes.

    Returns:
        For each suite file its path within the folder.
    """
    for package in ("bench", "suites"):
        ignore = shutil.ignore_patterns("__pycache__")
        shutil.copytree(ROOT / package, folder / package, ignore=ignore)
    paths = {}
    for number, name in enumerate(suite_files):
        file = Path(name).resolve()
        copies = folder / "own" / str(number)
        copies.mkdir(parents=True)
        for module in file.parent.glob("*.py"):  # which the suite may import
            shutil.copy(module, copies)
        paths[str(file)] = f"own/{number}/{file.name}"
    return paths


def nodes_by_type(nodes: Sequence[dict[str, Any]]) -> dict[str, list[dict[str, float]]]:
    """Return, by type of accelerator, the resources of each node of a cluster that has some of it.

    Raises:
        UsageError: there is none.
    """
    by_type: dict[str, list[dict[str, float]]] = {}
    for node in nodes:
        if not node["Alive"]:  # Ray lists nodes that have left, too
            continue
        resources = node["Resources"]
        for name in resources:
            if name.startswith(RESOURCE):
                by_type.setdefault(name.removeprefix(RESOURCE), []).append(resources)
    if not by_type:
        raise UsageError(
            "The cluster has no accelerator that Ray knows the type of. Name it when a node is "
            "started: ray start --resources '{\"accelerator_type:V100\": 1}' ..."
        )
    return by_type


def _require_room(placement: Placement, nodes: Mapping[str, Sequence[dict[str, float]]]) -> None:
    """Raise a UsageError if a cluster's nodes, by type, are too few for a placement."""
    kind = placement.members[0]
    count = len(placement.members)
    room = 0
    for node in nodes.get(kind, ()):
        room += int(node.get("GPU") or node[RESOURCE + kind])
    if room < count:
        types = ", ".join(sorted(nodes))
        raise UsageError(
            f"{placement.name} takes {count} {kind}, and the cluster has {room}. Its types are: "
            f"{types}."
        )


@dataclass(frozen=True, kw_only=True, eq=False, slots=True)
class Accelerator:
    """An accelerator that the run holds."""

    actor: Any
    node: str
    """Ray's id of its node."""
    name: str
    """Type and node, for messages."""


def _lost(where: str, error: Exception) -> UsageError:
    """Return why there is no answer: something that the user can mend, or a node is gone."""
    # Ray wraps what an actor raises.
    cause = getattr(error, "cause", None)
    if isinstance(cause, UsageError):
        return UsageError(f"{where}: {cause}")
    return UsageError(f"{where} was lost ({type(error).__name__}: {first_line(error)})")


class AcceleratorActor(LocalLauncher):
    """The launcher of an accelerator's node, as long as the run holds the accelerator."""

    def __init__(self, threads: str | None) -> None:
        """Prepare this process.

        Args:
            threads: ``OMP_NUM_THREADS`` of the machine that started the run, if it is set there.
        """
        # The fork server starts a new interpreter, which would import the main script of this
        # process: Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray sets it to the number of CPUs that the actor requested.
        os.environ.pop(THREADS, None)
        if threads is not None:
            os.environ[THREADS] = threads
        super().__init__()

    def locate(self) -> tuple[str, str]:
        """Return Ray's id of the node, and the node's name with its address on Ray's network."""
        import ray

        address = str(ray.util.get_node_ip_address())
        name = interface(address)
        if name is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # gloo's default is the host name's
        return ray.get_runtime_context().get_node_id(), f"{platform.node()} ({address})"

    def survey_own(self) -> Environment:
        """Describe the accelerator: the only GPU that this process sees, or the node's CPU."""
        import ray

        if ray.get_gpu_ids():
            return self.survey(("0",))
        return self.survey(("cpu",))

    def meeting_place(self) -> tuple[str, int]:
        """Return the node's address and a free port, at which the ranks of a trial may meet."""
        import ray

        return str(ray.util.get_node_ip_address()), free_port()

    def stream(
        self,
        trial: Trial,
        device: Device,
        rendezvous: Rendezvous | None,
    ) -> Iterator[Message | Ending]:
        """Run the accelerator's rank of a trial; yield its records, and its ending last."""
        messages: SimpleQueue[Message | Ending] = SimpleQueue()

        def execute() -> None:
            try:
                messages.put(self.run_rank(trial, device, rendezvous, messages.put))
            # Such as a process of an earlier trial that does not end: without an ending the loop
            # below would wait forever.
            except Exception as error:
                messages.put(Ending(kind="lost", text=first_line(error)))

        threading.Thread(target=execute, daemon=True).start()
        while True:
            message = messages.get()
            yield message
            if isinstance(message, Ending):
                return


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
