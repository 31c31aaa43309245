"""Trials on the ranks that torchrun or srun has started: rank 0 plans, stores and reports, the others follow it.

Each rank is a supervisor of one device: it starts a fresh process for each trial that its device takes part in. Ranks
exchange JSON through a store of torch.distributed, whose network is trusted as torchrun's own is:

    hello/RANK           what the rank was started with
    welcome              why rank 0 refuses to start, or empty
    order/RANK/N         the rank's N-th order; cancel/RANK/N ends what it started
    answer/RANK/N        how it ended
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
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, fields, is_dataclass, replace
from datetime import timedelta
from functools import partial
from importlib import import_module
from itertools import count
from pathlib import Path
from queue import SimpleQueue
from typing import Any

from bench.launch.launcher import Ending
from bench.launch.local import LocalLauncher
from bench.launch.multi_node import NodeLostError, Part, agreed, merge_nodes, merge_placements, run_parts
from bench.results.records import Device, Environment, Message, Progress, TrialResult
from bench.spec.errors import UsageError
from bench.spec.trial import DataSource, Placement, Rendezvous, Request, SuiteRef, Trial

JOIN_S = 600.0
"""How long ranks wait for each other at the start: torchrun's own ``join_timeout``."""
BEAT_S = 5.0
SILENCE_S = 60.0
"""A rank whose counter stands still for so long is lost."""
POLL_S = 0.2
END_S = 20.0
"""How long a rank may take to end its processes, or to leave."""
FREE = ("argv", "suites", "data", "data_dir", "out", "resume", "dry_run")
"""Options that may differ between ranks: paths, what is compared by content, and what concerns rank 0 alone."""
SURVEY = "bench.devices.survey:survey"
TYPE = "type"


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
    found = {name: environment.pop(name) for name in own if name in environment}
    if int(found["WORLD_SIZE"]) == 1:
        return None
    if not found.get("MASTER_ADDR") or not found.get("MASTER_PORT", "").isdigit():
        raise UsageError(
            f"{found['WORLD_SIZE']} ranks were started without MASTER_ADDR and MASTER_PORT. Set them to an address of "
            "the first node that all nodes reach, and a free port of it: export MASTER_PORT=29400 "
            "MASTER_ADDR=$(scontrol show hostnames $SLURM_JOB_NODELIST | head -n 1)"
        )
    return Job(
        rank=int(found["RANK"]),
        world=int(found["WORLD_SIZE"]),
        node=int(found.get("GROUP_RANK", found["RANK"])),
        local_rank=int(found.get("LOCAL_RANK", 0)),
        address=found["MASTER_ADDR"],
        port=int(found["MASTER_PORT"]),
        name=f"{found.get('TORCHELASTIC_RUN_ID')}/{found.get('TORCHELASTIC_RESTART_COUNT', 0)}",
        agent_store=found.get("TORCHELASTIC_USE_AGENT_STORE") == "True",
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

    def __init__(self, store: Any, rank: int, *, beat_s: float = BEAT_S, silence_s: float = SILENCE_S) -> None:
        """Begin to send signs of life.

        Args:
            store: a store of torch.distributed.
            rank: this process's.
            beat_s: interval between signs of life.
            silence_s: how long another rank may be silent before it is lost.
        """
        self.rank, self._store, self._silence_s = rank, store, silence_s
        self._heard: dict[int, tuple[int, float]] = {}
        self._looked_s: dict[int, float] = {}
        self._beat_s = beat_s
        self._closed = threading.Event()
        threading.Thread(target=self._beat, daemon=True).start()

    def post(self, key: str, value: Any) -> None:
        """Send a message.

        Raises:
            NodeLostError: the store is gone.
        """
        with self._reachable():
            self._store.set(key, json.dumps(encode(value), default=str))

    def read(self, key: str) -> Any:
        """Return a message; None if there is none yet.

        Raises:
            NodeLostError: the store is gone.
        """
        with self._reachable():
            return decode(json.loads(self._store.get(key))) if self._store.check([key]) else None

    def wait(self, key: str, sender: int, limit_s: Callable[[], float | None] = lambda: None) -> Any:
        """Return a message as soon as it is there.

        Args:
            key: its key.
            sender: rank that sends it.
            limit_s: returns the time on ``time.monotonic`` at which to give up; None is never.

        Raises:
            NodeLostError: the sender is lost, or the time is up.
        """
        while (message := self.read(key)) is None:
            if why := self.lost(sender):
                if (message := self.read(key)) is not None:  # its last, sent meanwhile
                    return message
                raise NodeLostError(why)
            end = limit_s()
            if end is not None and time.monotonic() > end:
                raise NodeLostError("it did not answer in time")
            time.sleep(POLL_S)
        return message

    def lost(self, rank: int) -> str:
        """Return why a rank is lost; empty if it is not."""
        why = self.read(f"gone/{rank}")
        if why is not None:
            return why or "it has left"
        now = time.monotonic()
        if rank not in self._heard or now - self._looked_s[rank] > self._beat_s:
            self._looked_s[rank] = now
            beat = self.read(f"alive/{rank}")
            if beat is None:
                return ""  # it has not come yet
            if rank not in self._heard or self._heard[rank][0] != beat:
                self._heard[rank] = beat, now
        silent_s = now - self._heard[rank][1]
        return f"no sign of life for {silent_s:.0f} s" if silent_s > self._silence_s else ""

    def close(self, why: str = "") -> None:
        """Leave, and say why."""
        self._closed.set()
        with suppress(NodeLostError):
            self.post(f"gone/{self.rank}", why)

    def _beat(self) -> None:
        for number in count():
            with suppress(NodeLostError):  # whoever reads the store says so
                self.post(f"alive/{self.rank}", number)
            if self._closed.wait(self._beat_s):
                return

    @contextmanager
    def _reachable(self) -> Iterator[None]:
        try:
            yield
        except RuntimeError as error:  # of which torch.distributed's errors are
            raise NodeLostError(f"the store of the ranks is gone ({str(error).partition(chr(10))[0]})") from error


@dataclass(frozen=True, kw_only=True, slots=True)
class Hello:
    """A rank, and what it was started with."""

    job: Job
    host: str
    options: dict[str, str] = field(hash=False)

    def __str__(self) -> str:
        return f"rank {self.job.rank} ({self.host})"


def hello(job: Job, request: Request) -> Hello:
    """Describe this rank by its place and the command line's options."""
    import torch

    root = Path(__file__).resolve().parents[2]
    code = sorted(path for package in ("bench", "suites") for path in (root / package).rglob("*.py"))
    own = {name: getattr(request, name) for name in (one.name for one in fields(request)) if name not in FREE}
    texts = {name.replace("_", " "): str(value) for name, value in own.items()}
    texts["suites"] = ",".join(_suite(word) for word in request.suites)
    software = {"version of ampmeter": _digest(code), "build of torch": str(torch.__version__)}
    return Hello(job=job, host=platform.node(), options={**software, **texts})


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
    """What rank 0 asks of another: to call a function, to run a part of a trial, or to end."""

    kind: str
    """``call``, ``trial`` or ``end``."""
    target: str = ""
    arguments: tuple[Any, ...] = ()
    trial: Trial | None = None
    device: Device | None = None
    rendezvous: Rendezvous | None = None
    begun: bool = False
    """Whether a run had begun when it ended."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """How an order ended, with the records of its trial."""

    ending: Ending
    records: tuple[Any, ...] = ()


# Rank 0.


class TorchrunLauncher:
    """Rank 0's launcher: trials run on the ranks whose devices their placements name, the other ranks wait."""

    overlapping = False

    def __init__(self, job: Job, request: Request, store: Any = None, **channel: float) -> None:
        """Wait for the other ranks.

        Args:
            job: this rank's place.
            request: the command line's options.
            store: a store of torch.distributed; None connects to the job's.
            channel: intervals of the channel.

        Raises:
            UsageError: a rank does not come, or was started with something else.
        """
        self.on_start: Callable[[int], None] = lambda _pid: None
        self.workspace: Path | None = None
        """Used by trials on rank 0's device alone; others keep no checkpoints."""
        self.notes: list[str] = []
        # What the other ranks of this node start descends from the same parent, torchrun's agent.
        self._local = LocalLauncher(on_start=lambda _pid: self.on_start(os.getppid()))
        self._address = own_address(job)
        self._channel = Channel(store or open_store(job), 0, **channel)
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
        places = [self._over_nodes(Placement(name=name)) for name in gpus or self._default()]
        for place in places:
            self._ranks_of(place)
        words = {place.name: [place.name] if place.nodes == 1 else place.local.split("+") for place in places}
        orders = {}
        for index, node in enumerate(self._nodes):
            names = [word for place in places if index < place.nodes for word in words[place.name]]
            if names:
                orders[node[0]] = Order(kind="call", target=SURVEY, arguments=(tuple(dict.fromkeys(names)),))
        surveys = list(self._call(orders).values())
        environments = {}
        for place in places:
            own = [
                replace(one, devices=tuple(device for device in one.devices if device.placement in words[place.name]))
                for one in surveys[: place.nodes]
            ]
            environments[place.name] = merge_nodes(own) if place.nodes > 1 else own[0]
        merged = merge_placements(environments)
        several = {place.name for place in places if len(place.members) > 1}
        return replace(merged, nodes=tuple(node for node in merged.nodes if node.accelerator in several))

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker on each node, and return the value on which they agree.

        Raises:
            UsageError: it raised one on some node, or the nodes do not agree.
        """
        order = Order(kind="call", target=target, arguments=arguments)
        values = self._call({node[0]: order for node in self._nodes})
        return agreed(target, {str(one): value for one, value in values.items()})

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial on the ranks whose devices it names."""
        self._begun = True
        ranks = self._ranks_of(trial.cell.placement)
        order = Order(kind="trial", trial=trial, device=device)
        if [one.job.rank for one in ranks] == [0]:
            self._local.workspace = self.workspace
            return self._local.run(trial, device, on_message)
        if lost := [f"{one} was lost: {self._lost[one.job.rank]}" for one in ranks if one.job.rank in self._lost]:
            return Ending(kind="died", text="; ".join(lost))
        if len(ranks) > 1:
            meeting = Rendezvous(first=0, local=1, world=len(ranks), address=self._address, port=_free_port())
            orders = [replace(order, rendezvous=replace(meeting, first=first)) for first in range(len(ranks))]
        else:
            orders = [order]
        try:
            return run_parts([self._part(one, part) for one, part in zip(ranks, orders, strict=True)], on_message)
        except NodeLostError as error:
            return Ending(kind="died", text=str(error))

    def cancel(self) -> None:
        """Do nothing: trials do not run in other threads."""

    def close(self) -> None:
        """Let the other ranks end, and wait for them: their store may end with this process."""
        others = [rank for rank in range(1, len(self._orders)) if rank not in self._lost]
        with suppress(NodeLostError):
            for rank in others:
                self._post(rank, Order(kind="end", begun=self._begun))
            end = time.monotonic() + END_S
            for rank in others:
                while time.monotonic() < end and self._channel.read(f"gone/{rank}") is None:
                    time.sleep(POLL_S)
        self._channel.close()

    def _meet(self, own: Hello, world: int) -> list[list[Hello]]:
        """Wait for all ranks, compare what they were started with, and return them by node."""
        end = time.monotonic() + JOIN_S
        nodes = {own.job.node: [own]}
        problem = ""
        for rank in range(1, world):
            try:
                other: Hello = self._channel.wait(f"hello/{rank}", rank, lambda: end)
            except NodeLostError as error:
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

    def _over_nodes(self, place: Placement) -> Placement:
        """Return a placement on all nodes if it names several devices: ``0+1@2`` for ``0+1``."""
        nodes = len(self._nodes)
        if place.nodes not in (1, nodes):
            raise UsageError(f"--gpus {place.name} is on other than the {nodes} nodes that torchrun has started.")
        several = nodes > 1 and place.nodes == 1 and len(place.members) > 1
        return Placement(name=f"{place.name}@{nodes}") if several else place

    def _ranks_of(self, place: Placement) -> list[Hello]:
        """Return the ranks of a placement's devices, in their order."""
        local = [number if word == "cpu" else int(word) for number, word in enumerate(place.local.split("+"))]
        size = len(self._nodes[0])
        if max(local) >= size:
            raise UsageError(
                f"--gpus {place.name} needs a rank for each of its devices, and each node has {size}: start it with "
                f"--nproc-per-node={max(local) + 1}."
            )
        return [node[number] for node in self._nodes[: place.nodes] for number in local]

    def _call(self, orders: Mapping[Hello, Order]) -> dict[Hello, Any]:
        """Call functions on several ranks at the same time, and return their values."""
        parts = {one: self._part(one, order) for one, order in orders.items()}
        values = {}
        for one, part in parts.items():
            try:
                *_, ending = part.run()
            except NodeLostError as error:
                raise UsageError(f"{error}.") from error
            if isinstance(ending, Ending) and ending.kind == "done":
                values[one] = ending.value
            elif isinstance(ending, Ending):
                raise UsageError(f"{one}: {ending.text}" if one.job.rank else ending.text)
        return values

    def _post(self, rank: int, order: Order) -> int:
        number = self._orders[rank]
        self._orders[rank] += 1
        self._channel.post(f"order/{rank}/{number}", order)
        return number

    def _part(self, one: Hello, order: Order) -> Part:
        """Return a rank's part of a trial or call; another rank starts it at once."""
        if one.job.rank == 0:
            return Part(name=str(one), run=partial(run_order, self._local, order), halt=self._local.cancel)
        rank = one.job.rank
        number = self._post(rank, order)
        limit: list[float] = []

        def run() -> Iterator[Message | Ending]:
            try:
                answer: Answer = self._channel.wait(f"answer/{rank}/{number}", rank, lambda: min(limit, default=None))
            except NodeLostError as error:
                self._lost[rank] = str(error)
                raise NodeLostError(f"{one} was lost: {error}") from error
            yield from answer.records
            yield answer.ending

        def halt() -> None:
            limit.append(time.monotonic() + END_S)
            with suppress(NodeLostError):
                self._channel.post(f"cancel/{rank}/{number}", True)

        return Part(name=str(one), run=run, halt=halt)


# The other ranks.


def follow(job: Job, request: Request, store: Any = None, **channel: float) -> int:
    """Follow rank 0 until it ends; return 0, or 2 if nothing was run that was to be.

    Raises:
        UsageError: rank 0 does not answer, refuses this rank, or is lost.
    """
    follower = Follower(job, request, store or open_store(job), **channel)
    try:
        begun = follower.follow()
    except NodeLostError as error:
        raise UsageError(f"Rank {job.rank} ends: rank 0 was lost ({error}).") from error
    if begun or request.dry_run:
        return 0
    print(f"Rank {job.rank}: rank 0 ended before anything ran, and says why.")
    return 2


class Follower:
    """A rank that follows rank 0's orders, through a fork server of its own."""

    def __init__(self, job: Job, request: Request, store: Any, **channel: float) -> None:
        """Say hello."""
        self._job, self._request = job, request
        self._files = {Path(word).name: str(Path(word).resolve()) for word in request.suites if word.endswith(".py")}
        self._local = LocalLauncher()
        self._channel = Channel(store, job.rank, **channel)

    def follow(self) -> bool:
        """Follow rank 0 until it ends; return whether a run had begun.

        Raises:
            UsageError: rank 0 refuses this rank.
            NodeLostError: rank 0 is lost.
        """
        why = "it was stopped"
        try:
            self._channel.post(f"hello/{self._job.rank}", hello(self._job, self._request))
            end = time.monotonic() + JOIN_S
            if problem := self._channel.wait("welcome", 0, lambda: end):
                raise UsageError(problem)
            for number in count():
                order: Order = self._channel.wait(f"order/{self._job.rank}/{number}", 0)
                if order.kind == "end":
                    why = ""
                    return order.begun
                self._channel.post(f"answer/{self._job.rank}/{number}", self._answer(order, number))
            raise AssertionError
        finally:
            self._local.cancel()
            self._channel.close(why)

    def _answer(self, order: Order, number: int) -> Answer:
        """Run an order, and end it if rank 0 asks for that or is lost."""

        def poll() -> None:
            if self._channel.read(f"cancel/{self._job.rank}/{number}") is not None:
                self._local.cancel()
            if why := self._channel.lost(0):
                raise NodeLostError(why)

        records: list[Message] = []
        ending = Ending(kind="died")
        second = order.rendezvous is not None and order.rendezvous.first > 0  # of its records only memory counts
        for message in run_order(self._local, self._translated(order), poll):
            if isinstance(message, Ending):
                ending = message
            elif isinstance(message, TrialResult) or not (second or isinstance(message, Progress)):
                records.append(message)
        return Answer(ending=ending, records=tuple(records))

    def _translated(self, value: Any) -> Any:
        """Return an order with the suite files and images of this node."""
        if isinstance(value, tuple):
            return tuple(self._translated(part) for part in value)
        if isinstance(value, Order):
            trial = value.trial
            if trial is not None:
                cell = trial.cell
                own = replace(cell, suite=self._translated(cell.suite), data=self._translated(cell.data))
                trial = replace(trial, cell=own)
            return replace(value, trial=trial, arguments=self._translated(value.arguments))
        if isinstance(value, SuiteRef) and value.file:
            return replace(value, file=self._files[Path(value.file).name])
        if isinstance(value, DataSource):
            word = self._request.data if value.kind == "folder" else None
            return DataSource.parse(word or str(value), self._request.data_dir, elsewhere=True)
        return value


def run_order(
    local: LocalLauncher, order: Order, poll: Callable[[], None] = lambda: None
) -> Iterator[Message | Ending]:
    """Run an order in a fresh process of this rank; yield the records as they come, the ending last.

    ``poll`` is called every ``POLL_S`` and may raise, which ends the process.
    """
    messages: SimpleQueue[Message] = SimpleQueue()

    def run() -> Ending:
        try:
            if order.trial is not None and order.device is not None:
                return local.run(order.trial, order.device, messages.put, order.rendezvous)
            if order.target == SURVEY:
                return Ending(kind="done", value=local.survey(*order.arguments))
            return Ending(kind="done", value=local.call(order.target, *order.arguments))
        except UsageError as error:
            return Ending(kind="usage", text=str(error))
        except Exception as error:  # rank 0 waits for an ending
            return Ending(kind="error", text=f"{type(error).__name__}: {error}")

    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(run)
        try:
            while not running.done():
                with suppress(TimeoutError):
                    running.result(POLL_S)
                while not messages.empty():
                    yield messages.get()
                poll()
        except BaseException:
            while not running.done():
                local.cancel()
                time.sleep(POLL_S)
            raise
    while not messages.empty():
        yield messages.get()
    yield running.result()


def own_address(job: Job) -> str:
    """Return an address of this machine that the other nodes reach."""
    with suppress(OSError), socket.create_connection((job.address, job.port), timeout=5.0) as route:
        address = str(route.getsockname()[0])
        if not ipaddress.ip_address(address.partition("%")[0]).is_loopback:
            return address
    return job.address


def _free_port() -> int:
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])
