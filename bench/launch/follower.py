"""A node that follows node 0: it looks at its own machine, prepares its own data, and starts its share of processes."""

from __future__ import annotations

import json
import platform
import threading
from contextlib import suppress
from dataclasses import replace
from multiprocessing import AuthenticationError
from pathlib import Path
from typing import Any

from bench.launch import wire
from bench.launch.asked import asked
from bench.launch.local import Ending, LocalLauncher
from bench.launch.orders import Answer, Call, Cancel, End, Start
from bench.launch.running import Running
from bench.launch.wire import LostError, Wire
from bench.nodes import Nodes
from bench.results.records import Message, TrialResult
from bench.spec.errors import UsageError
from bench.spec.request import Request
from bench.spec.trial import DataSource, SuiteRef, Trial

SURVEY = "bench.devices.survey:survey"


def follow(command: Request, nodes: Nodes) -> int:
    """Follow node 0 until it has ended; return 0, or 2 where nothing was run that was to be.

    Raises:
        UsageError: node 0 does not answer, refuses this node, or is lost.
    """
    begun = Follower(command, nodes).follow()
    if begun or command.dry_run:
        print("Node 0 has ended the run.")
        return 0
    print("Node 0 ended before anything ran, and says why.")
    return 2


class Follower:
    """Does what node 0 says, through a fork server of this node's own."""

    def __init__(self, command: Request, nodes: Nodes) -> None:
        """Remember what this node was asked; nothing is touched yet."""
        self._command, self._nodes = command, nodes
        self._files = {Path(word).name: str(Path(word).resolve()) for word in command.suites if word.endswith(".py")}
        self._running = Running()
        self._local = LocalLauncher(on_start=self._running.own)

    def follow(self) -> bool:
        """Follow node 0 until it has ended; say whether a run had begun.

        Raises:
            UsageError: it does not answer, refuses this node, or is lost.
        """
        line = self._join()
        try:
            while not isinstance(order := line.receive(), End):
                if isinstance(order, Cancel):
                    self._running.stop(order.number)
                else:
                    threading.Thread(target=self._do, args=(order, line), daemon=True).start()
            return order.begun
        except LostError as error:
            raise UsageError(f"Node 0 at {self._nodes.endpoint} was lost: {error}. What ran here was ended.") from error
        finally:
            self._running.stop()
            line.close()

    def _join(self) -> Wire:
        nodes = self._nodes
        print(
            f"Node {nodes.rank} of {nodes.count} on {platform.node()} follows node 0 at {nodes.endpoint}.", flush=True
        )
        try:
            connection = wire.connect(nodes.host, nodes.port, nodes.id, nodes.join_s)
            hello = {"rank": nodes.rank, "count": nodes.count, "host": platform.node(), "asked": asked(self._command)}
            connection.send_bytes(json.dumps(hello).encode())
            problem = json.loads(connection.recv_bytes())["problem"]
        except (AuthenticationError, EOFError, ValueError) as error:
            raise UsageError(
                f"Who answers at {nodes.endpoint} does not take this node ({error}): give all nodes of a job the same "
                "--rdzv-id, and each job an endpoint of its own."
            ) from error
        except OSError as error:
            raise UsageError(
                f"Node 0 did not answer at {nodes.endpoint} within {nodes.join_s:.0f} s ({error}). Start the same "
                "command there with --node-rank 0; the endpoint is an address of its own that other nodes reach."
            ) from error
        if problem:
            raise UsageError(problem)
        return Wire(connection)

    def _do(self, order: Call | Start, line: Wire) -> None:
        """Follow one order in a fresh process, and answer how it ended."""
        kept: list[TrialResult] = []

        def keep(message: Message) -> None:
            if isinstance(message, TrialResult) and message.memory is not None:
                kept.append(message)

        self._running.begin(order.number)
        try:
            if isinstance(order, Start):
                print(f"{order.trial.id}: {order.rendezvous.local} of {order.rendezvous.world} processes", flush=True)
                trial, device = self._translated(order.trial), order.device
                ending = self._local.run_share(trial, device, keep, order.rendezvous)
            elif order.target == SURVEY:
                ending = Ending(kind="done", value=self._local.survey(*order.arguments))
            else:
                arguments = self._translated(order.arguments)
                ending = Ending(kind="done", value=self._local.call(order.target, *arguments))
        except UsageError as error:
            ending = Ending(kind="usage", text=str(error))
        except Exception as error:  # whoever waits for the ending must get one
            ending = Ending(kind="error", text=f"{type(error).__name__}: {error}")
        finally:
            self._running.end()
        with suppress(LostError):  # the receiving thread says so
            line.send(Answer(number=order.number, ending=ending, memory=tuple(kept)))

    def _translated(self, value: Any) -> Any:
        """Name suite files and images as this node has them."""
        if isinstance(value, tuple):
            return tuple(self._translated(part) for part in value)
        if isinstance(value, Trial):
            cell = value.cell
            own = replace(cell, suite=self._translated(cell.suite), data=self._translated(cell.data))
            return replace(value, cell=own)
        if isinstance(value, SuiteRef) and value.file:
            return replace(value, file=self._files[Path(value.file).name])
        if isinstance(value, DataSource):
            word = self._command.data if value.kind == "folder" else None
            return DataSource.parse(word or str(value), self._command.data_dir, elsewhere=True)
        return value
