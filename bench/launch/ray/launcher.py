"""The launcher of a Ray cluster: each trial runs on a node with its accelerator, different types at the same time."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

from bench.launch.launcher import Ending, Launcher
from bench.launch.multi_node import CancelledError, NodeLostError, agreed, merge_placements
from bench.launch.ray.actor import OWN, PACKAGES
from bench.launch.ray.pool import RESOURCE, AcceleratorPool
from bench.results.records import Device, Environment, Message, Progress
from bench.spec.errors import UsageError
from bench.spec.trial import Placement, SuiteRef, Trial

CONNECT_S = 5.0
"""Timeout of the connection to the head node."""


class RayLauncher(Launcher):
    """Runs trials on an existing Ray cluster, one at a time in each accelerator pool.

    Its notes name lost nodes and trials that ran again. It keeps no checkpoints, since they would stay on a node.
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
        self._placements: tuple[Placement, ...] = ()
        self._pools: dict[str, AcceleratorPool] = {}
        """By type."""
        self._stage = Path(tempfile.mkdtemp(prefix="ampmeter-"))
        self._ray: Any = None
        try:
            self._files = stage(self._stage, suite_files)
            self._ray = connect(address, self._stage)
            self._placements = tuple(Placement(name=name) for name in _choose(accelerators, self._ray.nodes()))
            for placement in sorted(self._placements, key=_count):
                self._pools[_type(placement)] = AcceleratorPool(self._ray, _type(placement), _count(placement))
            for pool in self._pools.values():
                if pool.room < pool.most:
                    wanted = "+".join([pool.type] * pool.most)
                    raise UsageError(f"{wanted} takes {pool.most} {pool.type}, and the cluster has {pool.room}.")
        except BaseException:
            self.close()
            raise

    def survey(self, _gpus: tuple[str, ...] | None) -> Environment:
        """Describe the nodes as one environment, with a device for each placement."""

        def surveys(pool: AcceleratorPool) -> dict[str, Environment]:
            own = [placement for placement in self._placements if _type(placement) == pool.type]
            return {placement.name: pool.survey(_count(placement)) for placement in own}

        environments = {name: one for each in self._in_pools(surveys).values() for name, one in each.items()}
        return merge_placements({placement.name: environments[placement.name] for placement in self._placements})

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker on each held node, and return its value, which must be the same on all.

        Raises:
            UsageError: the function raised one, or the nodes returned different values.
        """
        remote_arguments = tuple(self._translated(argument) for argument in arguments)
        values = self._in_pools(lambda pool: pool.call(target, *remote_arguments))
        return agreed(target, {str(self._pools[name]): value for name, value in values.items()})

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial on a node with its accelerator, and once more on another if the node is lost.

        Progress is passed on at once, other records only when the trial has ended: a lost attempt leaves none.
        """
        pool = self._pools[_type(trial.cell.placement)]
        remote_trial = replace(trial, cell=replace(trial.cell, suite=self._translated(trial.cell.suite)))
        failures: list[str] = []
        for _ in range(2):
            records: list[Message] = []

            def receive(message: Message, records: list[Message] = records) -> None:
                if isinstance(message, Progress):
                    on_message(message)
                else:
                    records.append(message)

            try:
                ending = pool.run(remote_trial, device, receive)
            except (NodeLostError, UsageError) as error:
                failures.append(str(error))
                self.notes.append(f"{trial.id}: {error}")
                pool.lose()
                continue
            for message in records:
                on_message(message)
            pool.forgive()
            if failures:
                self.notes.append(f"{trial.id} was run again: {pool}")
            return ending
        pool.forgive()
        return Ending(kind="died", text="; ".join(failures))

    def cancel(self) -> None:
        """Stop the running trials and release the accelerators."""
        for pool in self._pools.values():
            pool.close()

    def close(self) -> None:
        """Release the accelerators, and leave the cluster."""
        self.cancel()
        if self._ray is not None:
            self._ray.shutdown()
        shutil.rmtree(self._stage, ignore_errors=True)

    def _in_pools(self, function: Callable[[AcceleratorPool], Any]) -> dict[str, Any]:
        with ThreadPoolExecutor(len(self._pools)) as executor:
            running = {name: executor.submit(function, pool) for name, pool in self._pools.items()}
            try:
                return {name: future.result() for name, future in running.items()}
            except (NodeLostError, CancelledError) as error:
                raise UsageError(f"The cluster could not be queried before the run: {error}.") from error
            except KeyboardInterrupt:
                self.cancel()
                raise

    def _translated(self, argument: Any) -> Any:
        """Return an argument with the paths of suite files on the nodes."""
        if isinstance(argument, tuple):
            return tuple(self._translated(part) for part in argument)
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
    """Copy the project's code and the user's suite files to ``folder``, which Ray sends to the nodes.

    Returns:
        For each suite file its path within the folder.
    """
    root = Path(__file__).resolve().parents[3]
    for package in PACKAGES:
        shutil.copytree(root / package, folder / package, ignore=shutil.ignore_patterns("__pycache__"))
    paths = {}
    for number, name in enumerate(suite_files):
        file = Path(name).resolve()
        own = folder / OWN / str(number)
        own.mkdir(parents=True)
        for module in file.parent.glob("*.py"):
            shutil.copy(module, own)
        paths[str(file)] = str((own / file.name).relative_to(folder))
    return paths


def _choose(requested: Sequence[str] | None, nodes: Sequence[dict[str, Any]]) -> tuple[str, ...]:
    """Return the accelerators to measure, of those the cluster has."""
    resources = {name for node in nodes if node["Alive"] for name in node["Resources"] if name.startswith(RESOURCE)}
    available = sorted(name.removeprefix(RESOURCE) for name in resources)
    if not available:
        raise UsageError(
            "The cluster has no accelerator that Ray knows the type of. Name it when a node is started: "
            "ray start --resources '{\"accelerator_type:V100\": 1}' ..."
        )
    missing = [name for name in requested or () if name.split("+")[0] not in available]
    if missing:
        raise UsageError(f"The cluster has no {' and no '.join(missing)}. It has: {', '.join(available)}.")
    return tuple(requested or available)


def _type(placement: Placement) -> str:
    return placement.members[0]


def _count(placement: Placement) -> int:
    return len(placement.members)


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0]
