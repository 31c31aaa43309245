"""Node 0 of several: it plans, stores and reports, and has the others start their share of what trains together."""

from __future__ import annotations

import json
import platform
import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from itertools import count
from multiprocessing import AuthenticationError
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any

from bench.launch import merge, wire
from bench.launch.asked import CODE, asked, differing
from bench.launch.follower import SURVEY
from bench.launch.local import Ending, LocalLauncher
from bench.launch.merge import Fate
from bench.launch.orders import Call, Cancel, End, Start
from bench.launch.peer import Peer
from bench.launch.running import Running
from bench.nodes import Nodes
from bench.results.records import Device, Environment, Message, TrialResult
from bench.spec.errors import UsageError
from bench.spec.request import Request
from bench.spec.trial import Placement, Trial

GRACE_S = 3.0
"""How long others' processes may take to fail by themselves, and tell why, after one has failed."""
SETTLE_S = 60.0
"""How long a node may take to answer when it has nothing more to do."""


class NodesLauncher:
    """Runs trials on one device here, and those on several nodes on all of them; has the face of LocalLauncher."""

    overlapping = False
    """All of them take node 0."""

    def __init__(self, command: Request, nodes: Nodes, *, grace_s: float = GRACE_S, settle_s: float = SETTLE_S) -> None:
        """Listen for the other nodes.

        Raises:
            UsageError: the endpoint is no address of this machine, or its port is taken.
        """
        self.on_start: Callable[[int], None] = lambda _pid: None
        self.workspace: Path | None = None
        """Folder in which training on one device keeps its checkpoints; on several nodes none are kept."""
        self.notes: list[str] = []
        self._nodes, self._asked = nodes, asked(command)
        self._grace_s, self._settle_s = grace_s, settle_s
        self._numbers, self._running = count(), Running()
        self._local = LocalLauncher(on_start=self._own)
        self._peers: dict[int, Peer] = {}
        self._came: SimpleQueue[Peer | str] = SimpleQueue()
        self._meeting = threading.Lock()
        self._begun = False
        try:
            self._server = wire.listen(nodes.host, nodes.port)
        except OSError as error:
            raise UsageError(
                f"Node 0 cannot listen at {nodes.endpoint} ({error}): --rdzv-endpoint is an address of node 0's own, "
                "with a free port."
            ) from error
        threading.Thread(target=self._hear, daemon=True).start()

    def survey(self, gpus: tuple[str, ...] | None) -> Environment:
        """Look at this machine, and at the others as soon as they are there."""
        places = [Placement(name=name) for name in gpus or ()]
        mine = self._local.survey(tuple(dict.fromkeys(place.local for place in places)))
        self._await_peers()
        joined = tuple(dict.fromkeys(place.local for place in places if place.nodes > 1))
        others = self._everywhere(SURVEY, (joined,))
        return merge.environment([place.name for place in places], {0: mine, **others})

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker's side on every node, and return what they agree on.

        Raises:
            UsageError: it raised one on some node, or the nodes do not agree.
        """
        said: dict[int, Any] = self._everywhere(target, arguments, lambda: self._local.call(target, *arguments))
        mine = said[0]
        for rank, value in said.items():
            if value != mine:
                raise UsageError(
                    f"The nodes do not agree about {target.split(':')[1]}: {self._name(0)}: {mine}; "
                    f"{self._name(rank)}: {value}. Give all nodes the same images and suites."
                )
        return mine

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial; where it is on several nodes, hand its results on when all of them have ended well."""
        self._begun = True
        place = trial.cell.placement
        if place.nodes == 1:
            self._local.workspace = self.workspace
            return self._local.run(trial, device, on_message)
        if gone := [peer for peer in self._peers.values() if peer.lost]:
            return Ending(kind="died", text="; ".join(f"{peer.name} was lost: {peer.lost}" for peer in gone))
        number, ranks, port = next(self._numbers), len(place.members), _free_port(self._nodes.host)
        kept: list[TrialResult] = []
        self._running.begin(number)
        for peer in self._peers.values():
            share = self._nodes.share(peer.rank, ranks, port)
            peer.ask(Start(number=number, trial=trial, device=device, rendezvous=share))
        share = self._nodes.share(0, ranks, port)
        try:
            ending = self._local.run_share(trial, device, _sorter(kept, on_message), share)
        finally:
            self._running.end()
        return self._settle(number, ending, kept, on_message)

    def cancel(self) -> None:
        """Nothing to end: nothing runs in other threads."""

    def close(self) -> None:
        """Let the other nodes go."""
        with suppress(OSError):
            self._server.shutdown(socket.SHUT_RDWR)  # who waits for callers wakes up
        self._server.close()
        for peer in self._peers.values():
            peer.ask(End(begun=self._begun))
        for peer in self._peers.values():
            peer.close()

    def _settle(
        self, number: int, ending: Ending, kept: list[TrialResult], on_message: Callable[[Message], None]
    ) -> Ending:
        """Wait for the others, end what goes on in vain, and say how the whole trial ended."""
        mine = Fate(node=self._name(0), ending=ending, time_s=time.monotonic())
        fates = [] if self._running.was_stopped(number) else [mine]
        patience = self._settle_s if ending.kind == "done" else self._grace_s
        waiting = [peer for peer in self._peers.values() if not peer.answered(number, patience)]
        for peer in waiting:
            peer.ask(Cancel(number=number))
        for peer in waiting:
            if not peer.answered(number, self._settle_s):
                peer.lose("it did not end its processes")
        late = [] if ending.kind != "done" else waiting
        fates += [
            peer.fate(number) for peer in self._peers.values() if peer.lost or peer in late or peer not in waiting
        ]
        failed = merge.failure(fates)
        if failed is None and ending.kind == "done":
            others = [row for peer in self._peers.values() for row in peer.memory(number)]
            for result in merge.results(kept, others):
                on_message(result)
        return failed or ending

    def _everywhere(
        self, target: str, arguments: tuple[object, ...], here: Callable[[], Any] | None = None
    ) -> dict[int, Any]:
        """Call a function on all other nodes, and meanwhile ``here``; return the values by rank."""
        number = next(self._numbers)
        for peer in self._peers.values():
            peer.ask(Call(number=number, target=target, arguments=arguments))
        found = {0: here()} if here else {}
        for peer in self._peers.values():
            peer.answered(number, None)
            ending = peer.fate(number).ending
            if ending.kind != "done":
                raise UsageError(f"{peer.name}: {ending.text}")
            found[peer.rank] = ending.value
        return found

    def _await_peers(self) -> None:
        end = time.monotonic() + self._nodes.join_s
        missing = set(range(1, self._nodes.count))
        said = ", ".join(f"node {rank}" for rank in sorted(missing))
        print(f"Node 0 of {self._nodes.count} waits at {self._nodes.endpoint} for {said}.", flush=True)
        while missing:
            try:
                came = self._came.get(timeout=max(0.0, end - time.monotonic()))
            except Empty:
                said = ", ".join(f"--node-rank {rank}" for rank in sorted(missing))
                raise UsageError(
                    f"Nobody came to {self._nodes.endpoint} as {said} within {self._nodes.join_s:.0f} s. Start the "
                    "same command there, with an endpoint that it can reach."
                ) from None
            if isinstance(came, str):
                raise UsageError(came)
            missing.discard(came.rank)

    def _hear(self) -> None:
        while True:
            try:
                found, address = self._server.accept()
            except OSError:
                return  # the run has ended
            threading.Thread(target=self._meet, args=(found, address), daemon=True).start()

    def _meet(self, found: socket.socket, address: tuple[Any, ...]) -> None:
        """Take in one that calls, or tell it why not."""
        try:
            connection = wire.admit(found, self._nodes.id)
            hello = json.loads(connection.recv_bytes(wire.HELLO_BYTES))
            with self._meeting:
                problem = self._problem(hello)
                connection.send_bytes(json.dumps({"problem": problem}).encode())
                peer = None if problem else Peer(hello["rank"], hello["host"], connection, self._on_trouble)
                if peer:
                    self._peers[peer.rank] = peer
            self._came.put(peer or problem)
        except AuthenticationError:
            print(f"Sent away who called from {address[0]}: another --rdzv-id.", flush=True)
        except (EOFError, OSError, ValueError, KeyError, TypeError):
            return  # it was no node

    def _problem(self, hello: dict[str, Any]) -> str:
        """Say why a node cannot take part; empty where it can."""
        rank, name = hello["rank"], f"Node {hello['rank']} ({hello['host']})"
        if hello["count"] != self._nodes.count:
            return f"{name} was started with --nnodes {hello['count']}, and node 0 with {self._nodes.count}."
        if rank in self._peers or rank not in range(1, self._nodes.count):
            return f"Two nodes say that they are node {rank}: give each its own --node-rank, from 0."
        changed = differing(self._asked, hello["asked"])
        if CODE in changed:
            return f"{name} has another {CODE} than node 0. Install the same on every node."
        if changed:
            return f"{name} was started with other {', '.join(changed)}. Start the same command on every node."
        return ""

    def _own(self, pid: int) -> None:
        self._running.own(pid)
        self.on_start(pid)

    def _on_trouble(self, number: int | None) -> None:
        """End our own processes, if they do not by themselves, after another node's have failed."""
        number = self._running.number if number is None else number
        if number is not None:
            timer = threading.Timer(self._grace_s, self._running.stop, args=(number,))
            timer.daemon = True
            timer.start()

    def _name(self, rank: int) -> str:
        return self._peers[rank].name if rank else f"node 0 ({platform.node()})"


def _sorter(kept: list[TrialResult], on_message: Callable[[Message], None]) -> Callable[[Message], None]:
    """Keep results until the other nodes have ended, too, and hand all else on."""
    return lambda message: kept.append(message) if isinstance(message, TrialResult) else on_message(message)


def _free_port(host: str) -> int:
    with wire.listen(host, 0) as found:
        return int(found.getsockname()[1])
