"""Several nodes as one: their environments, their answers, and a trial whose processes run on all of them."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor, wait
from dataclasses import dataclass, replace
from queue import Empty, SimpleQueue
from typing import Any

from bench.launch.launcher import Ending
from bench.results.records import Device, Environment, MemoryPeak, Message, Node, TrialResult
from bench.spec.errors import UsageError

GRACE_S = 5.0
"""How long the other parts may take to fail by themselves, and say why, after one has failed."""
HALT_S = 2.0
"""How often parts that are to end are halted again."""
CAUSES = ("oom", "unsupported", "usage", "import", "timeout")
"""Endings that are a cause by themselves; others may follow from another part's, such as a closed connection."""
TEXTS = ("host", "os", "python", "torch", "torchvision", "cuda", "cudnn", "driver", "openmp")
"""Fields of an environment that are joined by commas where nodes differ."""


class NodeLostError(Exception):
    """A supervisor, or the machine it runs on, is gone."""


class CancelledError(Exception):
    """The run was stopped."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Part:
    """The processes of a trial that one supervisor starts."""

    name: str
    """The supervisor's, for error messages."""
    run: Callable[[Callable[[Message], None]], Ending]
    """Runs the processes and passes their records on; raises NodeLostError."""
    halt: Callable[[], None]
    """Ends the processes soon; may be called again."""


def run_parts(parts: Sequence[Part], on_message: Callable[[Message], None], grace_s: float = GRACE_S) -> Ending:
    """Run all parts of a trial at the same time, and return how the trial ended.

    Records of the first part are passed on: progress as it comes, results with the memory of all parts once every part
    has ended well. When one part fails, the others are halted.

    Raises:
        NodeLostError: a supervisor is gone; the other parts have ended.
        CancelledError: the run was stopped; the other parts have ended.
    """
    inbox: SimpleQueue[tuple[int, Any]] = SimpleQueue()

    def run(number: int) -> None:
        try:
            inbox.put((number, parts[number].run(lambda message: inbox.put((number, message)))))
        except Exception as error:
            inbox.put((number, error))

    trial = _MultiNodeTrial(parts, on_message, grace_s)
    with ThreadPoolExecutor(len(parts)) as pool:
        threads = [pool.submit(run, number) for number in range(len(parts))]
        try:
            while trial.running:
                try:
                    number, message = inbox.get(timeout=trial.timeout_s())
                except Empty:
                    trial.halt()
                else:
                    trial.take(number, message)
        except BaseException:  # Ctrl-C
            while wait(threads, HALT_S).not_done:
                trial.halt()
            raise
    return trial.end()


def failure(endings: Sequence[tuple[str, Ending]]) -> Ending | None:
    """Return why a trial failed, and where; None if no part failed.

    Args:
        endings: each part's name and ending, in the order in which they arrived.

    An ending that is a cause by itself comes first, then the one that arrived first. The other endings are secondary
    failures, which are appended only if no ending is sure to be the cause.
    """
    failed = [(name, ending) for name, ending in endings if ending.kind != "done"]
    if not failed:
        return None
    (name, first), *others = sorted(failed, key=lambda pair: pair[1].kind not in CAUSES)
    texts = [f"{name}: {first.text}"]
    if first.kind not in CAUSES:
        texts += [f"{other}: {ending.text.partition(' | ')[0]}" for other, ending in others]
    return Ending(kind=first.kind, text="; ".join(texts), log=first.log)


class _MultiNodeTrial:
    """The state of a trial in several parts."""

    def __init__(self, parts: Sequence[Part], on_message: Callable[[Message], None], grace_s: float) -> None:
        self.parts, self.on_message, self.grace_s = parts, on_message, grace_s
        self.running = set(range(len(parts)))
        self.results: list[list[TrialResult]] = [[] for _ in parts]
        self.endings: list[tuple[str, Ending]] = []
        self.errors: list[Exception] = []
        self.halt_s: float | None = None
        """When the parts that still run are halted next."""
        self.halted = False

    def timeout_s(self) -> float | None:
        """Return how long to wait for the next message; None is without limit."""
        return None if self.halt_s is None else max(0.0, self.halt_s - time.monotonic())

    def take(self, number: int, message: Message | Ending | Exception) -> None:
        """Take a part's message, its ending, or the error that it raised instead."""
        if isinstance(message, TrialResult):
            self.results[number].append(message)
        elif isinstance(message, Exception):
            self.running.discard(number)
            self.errors.append(message)
            self.halt()
        elif isinstance(message, Ending):
            self.running.discard(number)
            if self.halted:
                return  # because of which it ended
            self.endings.append((self.parts[number].name, message))
            if message.kind in CAUSES:
                self.halt()
            elif message.kind != "done" and self.halt_s is None:
                self.halt_s = time.monotonic() + self.grace_s
        elif number == 0 and not self.halted:
            self.on_message(message)

    def halt(self) -> None:
        """End the parts that still run; to be repeated, for a process may have been about to start."""
        self.halted, self.halt_s = True, time.monotonic() + HALT_S
        for number in self.running:
            self.parts[number].halt()

    def end(self) -> Ending:
        """Return how the trial ended, after passing on its results if it did not fail."""
        if self.errors:
            raise self.errors[0]
        if (failed := failure(self.endings)) is not None:
            return failed
        first, *others = self.results
        for result in merge_results(first, [result for results in others for result in results]):
            self.on_message(result)
        return Ending(kind="done")


def free_port() -> int:
    """Return a free port of this machine, at which the processes of a trial may meet."""
    with socket.create_server(("", 0)) as server:
        return int(server.getsockname()[1])


# What several nodes amount to.


def agreed(target: str, values: Mapping[str, Any]) -> Any:
    """Return the value that a function returned on every node.

    Args:
        target: the function as ``module:name``.
        values: by the node's name.

    Raises:
        UsageError: the values differ.
    """
    first, *others = values.values()
    if any(other != first for other in others):
        text = "; ".join(f"{node}: {value}" for node, value in values.items())
        raise UsageError(
            f"The nodes do not agree about {target.split(':')[1]}: {text}. Give all nodes the same data and suites."
        )
    return first


def merge_nodes(environments: Sequence[Environment]) -> Environment:
    """Return one environment for several nodes whose devices train together; each holds its own devices."""
    devices = [device for environment in environments for device in environment.devices]
    nodes = tuple(_node(environment) for environment in environments)
    return replace(environments[0], **_common(environments), devices=(Device.joint(devices),), nodes=nodes)


def merge_placements(environments: Mapping[str, Environment]) -> Environment:
    """Return one environment with a device for each placement.

    Args:
        environments: by the placement's name; each has one device.
    """
    every = list(environments.values())
    devices = tuple(replace(one.devices[0], placement=name) for name, one in environments.items())
    nodes = tuple(
        replace(node, accelerator=name) for name, one in environments.items() for node in one.nodes or (_node(one),)
    )
    return replace(every[0], **_common(every), devices=devices, nodes=nodes)


def merge_results(own: Sequence[TrialResult], others: Sequence[TrialResult]) -> list[TrialResult]:
    """Return the first part's results, with the largest device's peaks of memory and the sum over all parts."""
    merged = []
    for result in own:
        peaks = [one.memory for one in (result, *others) if one.precision == result.precision and one.memory]
        merged.append(replace(result, memory=MemoryPeak.of_all(peaks)) if result.memory else result)
    return merged


def _node(environment: Environment) -> Node:
    own = {name: getattr(environment, name) for name in ("host", "driver", "torch", "cuda", "cudnn")}
    return Node(accelerator="", device=environment.devices[0].name, **own)


def _common(environments: Sequence[Environment]) -> dict[str, Any]:
    """Return the fields of all environments: each differing text, variable and sentence once."""
    common: dict[str, Any] = {}
    for name in TEXTS:
        texts = [str(value) for environment in environments if (value := getattr(environment, name))]
        common[name] = ", ".join(dict.fromkeys(part for text in texts for part in text.split(", "))) or None
    for name in ("removed_variables", "variables", "left_out"):
        common[name] = tuple(dict.fromkeys(text for environment in environments for text in getattr(environment, name)))
    return common
