"""The launcher of a Ray cluster: each trial runs on nodes with its accelerator, different types at the same time."""

from __future__ import annotations

import importlib.util
import shutil
import socket
import tempfile
from collections.abc import Callable, Sequence
from concurrent.futures import CancelledError
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from bench.launch.launcher import Ending, Launcher, OnMessage, run_concurrently
from bench.launch.ray.pool import RESOURCE, AcceleratorPool, NodeLostError
from bench.results.environment import Surveys, merge
from bench.results.records import Device, Environment
from bench.spec.errors import UsageError, first_line
from bench.spec.trial import Placement, SuiteRef, Trial

CONNECT_S = 5.0
"""Timeout of the connection to the head node."""
PACKAGES = ("bench", "suites")
"""The packages that are sent to the nodes."""


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
        """Describe the nodes as one environment, with a device for each placement."""
        counts = {placement.name: len(placement.members) for placement in self._placements}

        def survey(pool: AcceleratorPool) -> dict[str, Surveys]:
            return {name: pool.survey(count) for name, count in counts.items() if name.split("+")[0] == pool.type}

        surveys = self._in_pools(survey)
        return merge({name: surveys[name.split("+")[0]][name] for name in counts})

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker on each held node, and return its value, which must be the same on all.

        Raises:
            UsageError: the function raised one, or the nodes returned different values.
        """
        translated = tuple(self._translated(argument) for argument in arguments)
        by_type = self._in_pools(lambda pool: pool.call(target, *translated))
        values = {name: value for values in by_type.values() for name, value in values.items()}
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
        """Call a function with every pool at the same time; return its values by type."""
        values: dict[str, Any] = {}

        def job(pool: AcceleratorPool) -> None:
            values[pool.type] = function(pool)

        try:
            run_concurrently([partial(job, pool) for pool in self._pools.values()], self.cancel)
        except (NodeLostError, CancelledError) as error:
            raise UsageError(f"The cluster could not be queried before the run: {error}.") from error
        return values

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

    if address is not None:  # Ray itself would try for half a minute
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
            f"There is no Ray cluster here ({first_line(error)}). Make this machine a node of it with "
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
        file, copies = Path(name).resolve(), folder / "own" / str(number)
        copies.mkdir(parents=True)
        for module in file.parent.glob("*.py"):
            shutil.copy(module, copies)
        paths[str(file)] = str((copies / file.name).relative_to(folder))
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
