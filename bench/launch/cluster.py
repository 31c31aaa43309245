"""A Ray cluster: each trial on a node with the accelerator it is for, different accelerators at the same time."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from bench.launch.lane import RESOURCE, CancelledError, Lane, NodeLostError
from bench.launch.local import Ending
from bench.records import Device, Environment, Message, Node, Progress
from bench.spec import UsageError
from bench.trial import SuiteRef, Trial

CONNECT_S = 5.0
"""How long the head may take to answer."""
PACKAGES = ("bench", "suites")
OWN = "own"
"""Folder of the users' suite files within what is sent to the nodes."""


class RayLauncher:
    """Runs trials on an existing Ray cluster; has the face of LocalLauncher, and runs lanes at the same time."""

    overlapping = True
    """Trials on different accelerators do not disturb each other."""

    def __init__(self, address: str | None, accelerators: Sequence[str] | None, suite_files: Sequence[str]) -> None:
        """Connect, and send the project's code to the cluster.

        Args:
            address: the head's ``HOST:PORT``; None takes ``RAY_ADDRESS`` or the cluster of this machine.
            accelerators: types to measure, as Ray names them; None is all that the cluster has.
            suite_files: suite files of the user's own, which the nodes get with the other modules of their folders.

        Raises:
            UsageError: Ray is missing, nobody answers, or the cluster has not these accelerators.
        """
        self.on_start: Callable[[int], None] = lambda _pid: None
        self.workspace: Path | None = None
        """Not used: checkpoints would stay on a node that may be lost."""
        self.notes: list[str] = []
        """What happened to nodes during the run."""
        self._lanes: dict[str, Lane] = {}
        self._stage = Path(tempfile.mkdtemp(prefix="ampmeter-"))
        self._ray: Any = None
        try:
            self._files = stage(self._stage, suite_files)
            self._ray = connect(address, self._stage)
            for name in _choose(accelerators, self._ray.nodes()):
                self._lanes[name] = Lane(self._ray, name)
        except BaseException:
            self.close()
            raise

    def survey(self, _gpus: tuple[str, ...] | None) -> Environment:
        """Look at a node of each type: one environment, with a device for each type, called by its name."""

        def look(lane: Lane) -> Environment:
            lane.ask("host")
            placements = (lane.local_placement,)
            found: Environment = lane.call("bench.environment:survey", placements, again=False)
            return replace(found, removed_variables=lane.ask("removed_variables"))

        return join(self._everywhere(look))

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker's side on each type's node, and return what they agree on.

        Raises:
            UsageError: it raised one on some node, or the nodes do not agree.
        """
        there = tuple(self._translated(argument) for argument in arguments)
        values = self._everywhere(lambda lane: lane.call(target, *there))
        first, *others = values.values()
        if any(other != first for other in others):
            said = "; ".join(f"{self._lanes[name]}: {value}" for name, value in values.items())
            raise UsageError(f"The nodes do not agree about {target.split(':')[1]}: {said}.")
        return first

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial on a node with its accelerator; once more on another if that is lost.

        Its records are handed on when it has ended, so that those of a lost attempt are not mixed in.
        """
        lane = self._lanes[device.placement]
        there = replace(trial, cell=replace(trial.cell, suite=self._translated(trial.cell.suite)))
        lost: list[str] = []
        for _ in range(2):
            kept: list[Message] = []
            try:
                ending = lane.run(there, device, _sorter(kept, on_message))
            except (NodeLostError, UsageError) as error:
                lost.append(str(error))
                self.notes.append(f"{trial.id}: {error}")
                lane.lose()
                continue
            for message in kept:
                on_message(message)
            lane.forgive()
            if lost:
                self.notes.append(f"{trial.id} was run again: {lane}")
            return ending
        lane.forgive()
        return Ending(kind="died", text="; ".join(lost))

    def cancel(self) -> None:
        """End what is running on the nodes."""
        for lane in self._lanes.values():
            lane.close()

    def close(self) -> None:
        """Give the accelerators back, and leave the cluster."""
        self.cancel()
        if self._ray is not None:
            self._ray.shutdown()
        shutil.rmtree(self._stage, ignore_errors=True)

    def _everywhere(self, function: Callable[[Lane], Any]) -> dict[str, Any]:
        with ThreadPoolExecutor(len(self._lanes)) as pool:
            running = {name: pool.submit(function, lane) for name, lane in self._lanes.items()}
            try:
                return {name: future.result() for name, future in running.items()}
            except (NodeLostError, CancelledError) as error:
                raise UsageError(f"Looking at the cluster before the run failed: {error}.") from error
            except KeyboardInterrupt:
                self.cancel()
                raise

    def _translated(self, argument: Any) -> Any:
        """Name suite files as the nodes find them."""
        if isinstance(argument, tuple):
            return tuple(self._translated(part) for part in argument)
        if isinstance(argument, SuiteRef) and argument.file:
            return replace(argument, file=self._files[argument.file])
        return argument


def connect(address: str | None, code: Path) -> Any:
    """Connect to a cluster, give it the folder ``code`` to run in, and return Ray's module.

    Raises:
        UsageError: Ray is missing, or nobody answers.
    """
    if importlib.util.find_spec("ray") is None:
        raise UsageError("--on ray needs Ray, which is not installed: pip install 'ampmeter[ray]'.")
    import ray
    import ray.util.scheduling_strategies

    if address is not None:
        host, _, port = address.rpartition(":")
        try:
            socket.create_connection((host, int(port)), timeout=CONNECT_S).close()
        except (OSError, ValueError, OverflowError) as error:
            raise UsageError(
                f"No Ray cluster answers at '{address}' ({error}). --on ray://HOST:PORT takes the address that "
                "ray start --head printed, with port 6379 unless another was chosen; this machine must be a node."
            ) from error
    try:
        ray.init(
            address=address or "auto",
            runtime_env={"working_dir": str(code)},
            log_to_driver=False,
            logging_level="ERROR",
        )
    except (ConnectionError, RuntimeError, ValueError) as error:
        raise UsageError(
            f"There is no Ray cluster here ({_first_line(error)}). Make this machine a node of it with "
            "ray start --address=HEAD:6379, or name its head with --on ray://HEAD:6379."
        ) from error
    return ray


def stage(folder: Path, suite_files: Sequence[str]) -> dict[str, str]:
    """Copy the project's code and the user's suite files to ``folder``, which is what the nodes get.

    Returns:
        For each suite file its path within the folder.
    """
    root = Path(__file__).resolve().parents[2]
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    found = {}
    for number, name in enumerate(suite_files):
        file = Path(name).resolve()
        own = folder / OWN / str(number)
        own.mkdir(parents=True)
        for module in file.parent.glob("*.py"):
            shutil.copy(module, own)
        found[str(file)] = str((own / file.name).relative_to(folder))
    return found


def join(found: dict[str, Environment]) -> Environment:
    """Make one environment of those of several nodes; what they differ in is told of all of them."""
    devices = tuple(replace(one.devices[0], placement=name) for name, one in found.items())
    nodes = tuple(
        Node(
            accelerator=name,
            device=one.devices[0].name,
            **{key: value for key, value in asdict(one).items() if key in ("host", "driver", "torch", "cuda", "cudnn")},
        )
        for name, one in found.items()
    )
    first = next(iter(found.values()))
    texts: dict[str, Any] = {
        key: ", ".join(dict.fromkeys(str(value) for one in found.values() if (value := getattr(one, key)))) or None
        for key in ("host", "os", "python", "torch", "torchvision", "cuda", "cudnn", "driver", "openmp")
    }
    removed = tuple(dict.fromkeys(name for one in found.values() for name in one.removed_variables))
    return replace(first, **texts, devices=devices, nodes=nodes, removed_variables=removed)


def _choose(asked: Sequence[str] | None, nodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the accelerators to measure, of those the cluster has."""
    held = {name for node in nodes if node["Alive"] for name in node["Resources"] if name.startswith(RESOURCE)}
    there = sorted(name.removeprefix(RESOURCE) for name in held)
    if not there:
        raise UsageError(
            "The cluster has no accelerator that Ray knows the type of. Name it when a node is started: "
            "ray start --resources '{\"accelerator_type:V100\": 1}' ..."
        )
    missing = [name for name in asked or () if name.split("+")[0] not in there]
    if missing:
        raise UsageError(f"The cluster has no {' and no '.join(missing)}. It has: {', '.join(there)}.")
    return tuple(asked or there)


def _sorter(kept: list[Message], on_message: Callable[[Message], None]) -> Callable[[Message], None]:
    """Hand signs of life on at once, and keep the rest."""
    return lambda message: on_message(message) if isinstance(message, Progress) else kept.append(message)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
