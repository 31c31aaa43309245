"""Trials on the ranks that torchrun or srun has started: rank 0 plans, stores and reports, the others follow it.

Each rank is a supervisor of one device: it starts a fresh process for each trial that its device takes part in. Ranks
exchange messages in JSON through a store of torch.distributed, whose network is trusted as torchrun's own is:

    hello/RANK           what the rank was started with
    welcome              why rank 0 refuses to start, or empty
    order/RANK/N         the rank's N-th order; cancel/RANK/N ends what it started
    answer/RANK/N        the records of the order, and how it ended
    alive/RANK           a counter, every ``BEAT_S``
    gone/RANK            why the rank has left, or empty
"""

from __future__ import annotations

import hashlib
import ipaddress
import json
import os
import platform
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping, MutableMapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass, fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from typing import Any

from bench.launch.launcher import Ending, Launcher, ending_of
from bench.launch.local import LocalLauncher
from bench.launch.multi_node import NodeLostError, Part, agreed, free_port, merge_nodes, merge_placements, run_parts
from bench.results.records import Device, Environment, Message, Progress, TrialResult
from bench.spec.errors import UsageError
from bench.spec.text import print_plain
from bench.spec.trial import DataSource, Placement, Rendezvous, Request, SuiteRef, Trial

JOIN_S = 600.0
"""How long ranks wait for each other at the start: torchrun's own ``join_timeout``."""
BEAT_S = 5.0
SILENCE_S = 60.0
"""A rank whose counter stands still for so long is lost."""
POLL_S = 0.2
END_S = 20.0
"""How long the other ranks may take to leave when rank 0 ends."""
FREE = ("argv", "suites", "data", "data_dir", "out", "resume", "dry_run")
"""Options that may differ between ranks: paths, what is compared by content, and what concerns rank 0 alone."""
TYPE = "type"
"""The key of JSON objects that holds the name of their class."""


# Which rank this is.


@dataclass(frozen=True, kw_only=True, slots=True)
class Job:
    """This rank's place among all, as torchrun or srun has told it."""

    rank: int
    world: int
    node: int
    local_rank: int
    """Number of this rank's device on its node."""
    address: str
    port: int
    name: str = ""
    """Of this start of the job: torchrun may start it again, with the same store."""
    agent_store: bool = False
    """Whether torchrun's agent hosts a store at the address; otherwise rank 0 does."""


def read_job(environment: MutableMapping[str, str] = os.environ) -> Job | None:
    """Return this rank's place under torchrun or srun; None if the process was started alone.

    The variables are removed from ``environment``, so that processes of a trial do not take them for their own.

    Raises:
        UsageError: the address of a rendezvous is missing.
    """
    if int(environment.get("SLURM_STEP_NUM_TASKS", "1")) > 1 and "RANK" not in environment:
        # SLURM_NTASKS is set in a batch script, too, which is a single process.
        names = {"RANK": "PROCID", "WORLD_SIZE": "STEP_NUM_TASKS", "GROUP_RANK": "NODEID", "LOCAL_RANK": "LOCALID"}
        environment.update({name: environment[f"SLURM_{slurm}"] for name, slurm in names.items()})
        environment["TORCHELASTIC_RUN_ID"] = f"{environment.get('SLURM_JOB_ID')}.{environment.get('SLURM_STEP_ID')}"
    if "RANK" not in environment or "WORLD_SIZE" not in environment:
        return None
    own = [name for name in environment if name.startswith(("TORCHELASTIC_", "ROLE_", "GROUP_"))]
    own += ["RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"]
    variables = {name: environment.pop(name) for name in own if name in environment}
    if int(variables["WORLD_SIZE"]) == 1:
        return None
    if not variables.get("MASTER_ADDR") or not variables.get("MASTER_PORT", "").isdigit():
        raise UsageError(
            f"{variables['WORLD_SIZE']} ranks were started without MASTER_ADDR and MASTER_PORT. Set them to an address "
            "of the first node that all nodes reach, and a free port of it: export MASTER_PORT=29400 "
            "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
        )
    return Job(
        rank=int(variables["RANK"]),
        world=int(variables["WORLD_SIZE"]),
        node=int(variables.get("GROUP_RANK", variables["RANK"])),
        local_rank=int(variables.get("LOCAL_RANK", 0)),
        address=variables["MASTER_ADDR"],
        port=int(variables["MASTER_PORT"]),
        name=f"{variables.get('TORCHELASTIC_RUN_ID')}/{variables.get('TORCHELASTIC_RESTART_COUNT', 0)}",
        agent_store=variables.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
    )


def open_store(job: Job, timeout_s: float = JOIN_S) -> Any:
    """Connect to the store that all ranks share, which rank 0 hosts unless torchrun's agent does.

    Raises:
        UsageError: nobody hosts it, or the port is taken.
    """
    distributed: Any = import_module("torch.distributed")  # its stores are not exported by its stubs
    hosts = job.rank == 0 and not job.agent_store
    end = time.monotonic() + timeout_s
    while True:
        try:
            attempt = timedelta(seconds=min(10.0, timeout_s))
            store = distributed.TCPStore(job.address, job.port, None, hosts, attempt, wait_for_workers=False)
            return distributed.PrefixStore(f"ampmeter/{job.name}", store)
        except (RuntimeError, OSError) as error:
            if hosts or time.monotonic() > end:
                where = f"{job.address}:{job.port}"
                cause = str(error).partition("\n")[0]
                raise UsageError(
                    f"Rank {job.rank} cannot {'listen' if hosts else 'connect'} at MASTER_ADDR:MASTER_PORT, {where} "
                    f"({cause}). They must name an address of rank 0's machine that all nodes reach, and a free port."
                ) from error


# JSON: dataclasses of this project, tuples, and what JSON has.


def encode(value: Any) -> Any:
    """Return a value as JSON can hold it; a dataclass carries the name of its class."""
    if is_dataclass(value) and not isinstance(value, type):
        own = {one.name: encode(getattr(value, one.name)) for one in fields(value)}
        return {TYPE: f"{type(value).__module__}:{type(value).__name__}", **own}
    if isinstance(value, tuple):
        return {TYPE: "tuple", "items": [encode(item) for item in value]}
    if isinstance(value, list):
        return [encode(item) for item in value]
    if isinstance(value, Mapping):
        return {key: encode(item) for key, item in value.items()}
    return value


def decode(value: Any) -> Any:
    """Return what was encoded.

    Raises:
        ValueError: it names a class that is no dataclass of this project.
    """
    if isinstance(value, list):
        return [decode(item) for item in value]
    if not isinstance(value, dict):
        return value
    parts = {key: decode(item) for key, item in value.items() if key != TYPE}
    name = value.get(TYPE)
    if name is None:
        return parts
    if name == "tuple":
        return tuple(parts["items"])
    module, _, name = name.partition(":")
    record: Any = getattr(import_module(module), name, None) if module.startswith("bench.") else None
    if hasattr(record, "__dataclass_fields__"):
        return record(**parts)
    raise ValueError(f"{module}:{name} is no dataclass of ampmeter")


# The channel between ranks.


class Channel:
    """Messages between ranks by key, and signs of life."""

    def __init__(self, store: Any, rank: int) -> None:
        """Begin to send signs of life.

        Args:
            store: a store of torch.distributed.
            rank: this process's.
        """
        self.rank, self._store = rank, store
        self._heard: dict[int, tuple[int, float]] = {}
        """For each other rank its counter, and when that was first read."""
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def post(self, key: str, value: Any) -> None:
        """Send a message.

        Raises:
            NodeLostError: the store is gone.
        """
        with _reachable():
            self._store.set(key, json.dumps(encode(value), default=str))

    def read(self, key: str) -> Any:
        """Return a message; None if there is none yet.

        Raises:
            NodeLostError: the store is gone.
        """
        with _reachable():
            return decode(json.loads(self._store.get(key))) if self._store.check([key]) else None

    def wait(self, key: str, sender: int, end_s: float | None = None) -> Any:
        """Return a message as soon as it is there.

        Args:
            key: its key.
            sender: rank that sends it.
            end_s: time on ``time.monotonic`` at which to give up; None is never.

        Raises:
            NodeLostError: the sender is lost, or the time is up.
        """
        while (message := self.read(key)) is None:
            if why := self.lost(sender):
                if (message := self.read(key)) is not None:  # its last, sent meanwhile
                    return message
                raise NodeLostError(why)
            if end_s is not None and time.monotonic() > end_s:
                raise NodeLostError("it did not answer in time")
            time.sleep(POLL_S)
        return message

    def lost(self, rank: int) -> str:
        """Return why a rank is lost; empty if it is not."""
        if (why := self.read(f"gone/{rank}")) is not None:
            return why or "it has left"
        beat, now = self.read(f"alive/{rank}"), time.monotonic()
        if beat is None:
            return ""  # it has not come yet
        if rank not in self._heard or self._heard[rank][0] != beat:
            self._heard[rank] = beat, now
        silent_s = now - self._heard[rank][1]
        return f"no sign of life for {silent_s:.0f} s" if silent_s > SILENCE_S else ""

    def close(self, why: str = "") -> None:
        """Leave, and say why."""
        self._closed.set()
        with suppress(NodeLostError):
            self.post(f"gone/{self.rank}", why)

    def _beat(self) -> None:
        for number in count():
            with suppress(NodeLostError):  # whoever reads the store says so
                self.post(f"alive/{self.rank}", number)
            if self._closed.wait(BEAT_S):
                return


@contextmanager
def _reachable() -> Iterator[None]:
    try:
        yield
    except RuntimeError as error:  # of which torch.distributed's errors are
        raise NodeLostError(f"the store of the ranks is gone ({str(error).partition(chr(10))[0]})") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A rank, and what it was started with."""

    job: Job
    host: str
    options: dict[str, str]

    def __str__(self) -> str:
        return f"rank {self.job.rank} ({self.host})"


def hello(job: Job, request: Request) -> Hello:
    """Describe this rank by its place and the command line's options."""
    import torch

    root = Path(__file__).resolve().parents[2]
    code = sorted(path for package in ("bench", "suites") for path in (root / package).rglob("*.py"))
    options = {"version of ampmeter": _digest(code), "build of torch": str(torch.__version__)}
    for option in fields(request):
        if option.name not in FREE:
            options[option.name.replace("_", " ")] = str(getattr(request, option.name))
    options["suites"] = ",".join(_suite(word) for word in request.suites)
    return Hello(job=job, host=platform.node(), options=options)


def _suite(word: str) -> str:
    """Return a suite's name; for a file, wherever it is, a name by its content."""
    file = Path(word)
    return f"{file.name} {_digest([file])}" if word.endswith(".py") and file.is_file() else word


def _digest(files: list[Path]) -> str:
    digest = hashlib.sha256()
    for file in files:
        digest.update(file.name.encode() + b"\0" + file.read_bytes())
    return digest.hexdigest()[:12]


@dataclass(frozen=True, kw_only=True, slots=True)
class Order:
    """What rank 0 asks of another."""

    method: str
    """``survey``, ``call`` or ``run`` of its own launcher, or ``end``."""
    arguments: tuple[Any, ...] = ()
    """The method's; of ``run`` without the function that takes messages; of ``end`` whether a run had begun."""


def execute(local: LocalLauncher, order: Order, on_message: Callable[[Message], None]) -> Ending:
    """Run an order on this rank, pass its records on, and return how it ended."""
    if order.method == "run":
        trial, device, rendezvous = order.arguments
        return local.run(trial, device, on_message, rendezvous)
    return ending_of(getattr(local, order.method), *order.arguments)


# Rank 0.


class TorchrunLauncher(Launcher):
    """Rank 0's launcher: trials run on the ranks whose devices their placements name, the other ranks wait.

    Only trials on rank 0's device alone keep checkpoints.
    """

    started_by = "torchrun or srun"

    def __init__(self, job: Job, request: Request, store: Any = None) -> None:
        """Wait for the other ranks.

        Args:
            job: this rank's place.
            request: the command line's options.
            store: a store of torch.distributed; None connects to the job's.

        Raises:
            UsageError: a rank does not come, or was started with something else.
        """
        super().__init__()
        self._local = LocalLauncher()
        # What the other ranks of this node start descends from the same parent, torchrun's agent.
        self._local.on_start = lambda _pid: self.on_start(os.getppid())
        self._address = own_address(job)
        self._channel = Channel(store or open_store(job), 0)
        self._begun = False
        self._orders = [0] * job.world
        self._lost: dict[int, str] = {}
        self._nodes: list[list[Hello]]
        """The ranks of each node by their local rank; rank 0's node is the first."""
        try:
            self._nodes = self._meet(hello(job, request), job.world)
        except BaseException:
            self.close()
            raise

    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        """Describe all nodes as one machine, with a device for each placement.

        Unless placements are named, they are one device of rank 0's node and all ranks together.
        """
        placements = [self._over_nodes(Placement(name=name)) for name in gpus or self._default()]
        for placement in placements:
            self._ranks_of(placement)
        merged = merge_placements({placement.name: self._survey(placement) for placement in placements})
        several = {placement.name for placement in placements if len(placement.members) > 1}
        return replace(merged, nodes=tuple(node for node in merged.nodes if node.accelerator in several))

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker on each node, and return the value on which they agree.

        Raises:
            UsageError: it raised one on some node, or the nodes do not agree.
        """
        values = self._on_nodes(len(self._nodes), Order(method="call", arguments=(target, *arguments)))
        return agreed(target, values)

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial on the ranks whose devices it names."""
        self._begun = True
        ranks = self._ranks_of(trial.cell.placement)
        if [one.job.rank for one in ranks] == [0]:
            self._local.workspace = self.workspace
            return self._local.run(trial, device, on_message)
        if lost := [f"{one} was lost: {self._lost[one.job.rank]}" for one in ranks if one.job.rank in self._lost]:
            return Ending(kind="died", text="; ".join(lost))
        shares: list[Rendezvous | None] = [None]
        if len(ranks) > 1:
            meeting = Rendezvous(first=0, local=1, world=len(ranks), address=self._address, port=free_port())
            shares = [replace(meeting, first=first) for first in range(len(ranks))]
        parts = [
            self._part(one, Order(method="run", arguments=(trial, device, share)))
            for one, share in zip(ranks, shares, strict=True)
        ]
        try:
            return run_parts(parts, on_message)
        except NodeLostError as error:
            return Ending(kind="died", text=str(error))

    def close(self) -> None:
        """Let the other ranks end, and wait for them: their store may end with this process."""
        others = [rank for rank in range(1, len(self._orders)) if rank not in self._lost]
        with suppress(NodeLostError):
            for rank in others:
                self._post(rank, Order(method="end", arguments=(self._begun,)))
            end_s = time.monotonic() + END_S
            while time.monotonic() < end_s and any(self._channel.read(f"gone/{rank}") is None for rank in others):
                time.sleep(POLL_S)
        self._channel.close()

    def _meet(self, own: Hello, world: int) -> list[list[Hello]]:
        """Wait for all ranks, compare what they were started with, and return them by node."""
        end_s = time.monotonic() + JOIN_S
        nodes = {own.job.node: [own]}
        problem = ""
        for rank in range(1, world):
            try:
                other: Hello = self._channel.wait(f"hello/{rank}", rank, end_s)
            except NodeLostError as error:
                self._lost[rank] = str(error)
                problem = f"Rank {rank} did not come ({error}). Start the same command on all nodes."
                break
            nodes.setdefault(other.job.node, []).append(other)
            if different := [name for name, text in own.options.items() if other.options.get(name) != text]:
                problem = (
                    f"Rank {rank} ({other.host}) was started with other {', '.join(different)}. Start the same "
                    "command, with the same versions, on all nodes."
                )
                break
        if not problem and len({len(node) for node in nodes.values()}) > 1:
            problem = "The nodes have different numbers of ranks. Give all of them the same --nproc-per-node."
        self._channel.post("welcome", problem)
        if problem:
            raise UsageError(problem)
        return [sorted(node, key=lambda one: one.job.local_rank) for node in nodes.values()]

    def _default(self) -> tuple[str, ...]:
        on_gpu = self._local.survey(None).devices[0].is_gpu
        words = [str(index) if on_gpu else "cpu" for index in range(len(self._nodes[0]))]
        return words[0], "+".join(words) + (f"@{len(self._nodes)}" if len(self._nodes) > 1 else "")

    def _over_nodes(self, placement: Placement) -> Placement:
        """Return a placement on all nodes if it names several devices: ``0+1@2`` for ``0+1``."""
        nodes = len(self._nodes)
        if placement.nodes not in (1, nodes):
            raise UsageError(f"--gpus {placement.name} is on other than the {nodes} nodes that torchrun has started.")
        several = nodes > 1 and placement.nodes == 1 and len(placement.members) > 1
        return Placement(name=f"{placement.name}@{nodes}") if several else placement

    def _ranks_of(self, placement: Placement) -> list[Hello]:
        """Return the ranks of a placement's devices, in their order."""
        local = [number if word == "cpu" else int(word) for number, word in enumerate(placement.local.split("+"))]
        size = len(self._nodes[0])
        if max(local) >= size:
            raise UsageError(
                f"--gpus {placement.name} needs a rank for each of its devices, and each node has {size}: start it "
                f"with --nproc-per-node={max(local) + 1}."
            )
        return [node[number] for node in self._nodes[: placement.nodes] for number in local]

    def _survey(self, placement: Placement) -> Environment:
        """Describe the nodes of a placement as one, whose device is the placement's."""
        # Each of several nodes names its own devices, which are merged here.
        names = (placement.name,) if placement.nodes == 1 else tuple(dict.fromkeys(placement.local.split("+")))
        surveys = list(self._on_nodes(placement.nodes, Order(method="survey", arguments=(names,))).values())
        return merge_nodes(surveys) if len(surveys) > 1 else surveys[0]

    def _on_nodes(self, nodes: int, order: Order) -> dict[str, Any]:
        """Run an order on the first rank of each of the first nodes, and return the values by rank."""
        parts = [self._part(node[0], order) for node in self._nodes[:nodes]]
        values = {}
        for part in parts:
            try:
                ending = part.run(lambda _message: None)
            except NodeLostError as error:
                raise UsageError(f"{error}.") from error
            if ending.kind != "done":
                raise UsageError(ending.text if part is parts[0] else f"{part.name}: {ending.text}")
            values[part.name] = ending.value
        return values

    def _post(self, rank: int, order: Order) -> int:
        number = self._orders[rank]
        self._orders[rank] += 1
        self._channel.post(f"order/{rank}/{number}", order)
        return number

    def _part(self, one: Hello, order: Order) -> Part:
        """Return a rank's part of a trial or call; another rank starts it at once."""
        rank = one.job.rank
        if rank == 0:
            return Part(name=str(one), run=partial(execute, self._local, order), halt=self._local.cancel)
        number = self._post(rank, order)

        def run(on_message: Callable[[Message], None]) -> Ending:
            ending: Ending
            try:
                records, ending = self._channel.wait(f"answer/{rank}/{number}", rank)
            except NodeLostError as error:
                self._lost[rank] = str(error)
                raise NodeLostError(f"{one} was lost: {error}") from error
            for record in records:
                on_message(record)
            return ending

        def halt() -> None:
            with suppress(NodeLostError):
                self._channel.post(f"cancel/{rank}/{number}", True)

        return Part(name=str(one), run=run, halt=halt)


# The other ranks.


def follow(job: Job, request: Request, store: Any = None) -> int:
    """Follow rank 0's orders, through a fork server of this rank's own, until rank 0 ends.

    Returns:
        0, or 2 if nothing was run that was to be.

    Raises:
        UsageError: rank 0 does not answer, refuses this rank, or is lost.
    """
    channel, local = Channel(store or open_store(job), job.rank), LocalLauncher()
    why = "it was stopped"
    try:
        channel.post(f"hello/{job.rank}", hello(job, request))
        if problem := channel.wait("welcome", 0, time.monotonic() + JOIN_S):
            raise UsageError(problem)
        for number in count():
            order: Order = channel.wait(f"order/{job.rank}/{number}", 0)
            if order.method == "end":
                break
            channel.post(f"answer/{job.rank}/{number}", _answer(channel, local, _translated(order, request), number))
        why = ""
    except NodeLostError as error:
        raise UsageError(f"Rank {job.rank} ends: rank 0 was lost ({error}).") from error
    finally:
        channel.close(why)
    (begun,) = order.arguments
    if begun or request.dry_run:
        return 0
    print_plain(f"Rank {job.rank}: rank 0 ended before anything ran, and says why.")
    return 2


def _answer(channel: Channel, local: LocalLauncher, order: Order, number: int) -> tuple[list[Message], Ending]:
    """Run an order, and end it if rank 0 asks for that.

    Returns:
        The records that rank 0 needs: of a rank other than the trial's first only its memory counts.

    Raises:
        NodeLostError: rank 0 is lost.
    """
    rendezvous = order.arguments[-1]
    first = not isinstance(rendezvous, Rendezvous) or rendezvous.first == 0
    records: list[Message] = []

    def take(message: Message) -> None:
        """Keep a record; the launcher passes progress on, too, and an empty one every few seconds."""
        if channel.read(f"cancel/{channel.rank}/{number}") is not None:
            local.cancel()
        if why := channel.lost(0):
            raise NodeLostError(why)
        if isinstance(message, TrialResult) or (first and not isinstance(message, Progress)):
            records.append(message)

    ending = execute(local, order, take)
    return records, ending


def _translated(value: Any, request: Request) -> Any:
    """Return an order, or a part of it, with the suite files and data of this node."""
    if isinstance(value, tuple):
        return tuple(_translated(part, request) for part in value)
    if isinstance(value, Order):
        return replace(value, arguments=_translated(value.arguments, request))
    if isinstance(value, Trial):
        cell = value.cell
        own = replace(cell, suite=_translated(cell.suite, request), data=_translated(cell.data, request))
        return replace(value, cell=own)
    if isinstance(value, SuiteRef) and value.file:
        files = {Path(word).name: str(Path(word).resolve()) for word in request.suites if word.endswith(".py")}
        return replace(value, file=files[Path(value.file).name])
    if isinstance(value, DataSource):
        word = request.data if value.path else None
        return DataSource.parse(word or str(value), request.data_dir, elsewhere=True)
    return value


def own_address(job: Job) -> str:
    """Return an address of this machine that the other nodes reach."""
    with suppress(OSError), socket.create_connection((job.address, job.port), timeout=5.0) as route:
        address = str(route.getsockname()[0])
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
    return job.address
