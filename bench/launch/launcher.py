"""What a run asks of whoever runs its trials, and who that is."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any, Protocol

from bench.launch.local import Ending, LocalLauncher
from bench.results.records import Device, Environment, Message
from bench.spec.request import Request
from bench.spec.trial import Trial


class Launcher(Protocol):
    """Runs functions of the worker's side, each in a fresh process, on this machine or elsewhere."""

    on_start: Callable[[int], None]
    workspace: Path | None
    notes: list[str]
    """What a reader of the run must know of how it went."""

    @property
    def overlapping(self) -> bool:
        """Whether trials of different placements run at the same time."""

    def survey(self, gpus: tuple[str, ...] | None, /) -> Environment:
        """Look at the machine."""

    def call(self, target: str, *arguments: object) -> Any:
        """Call a function of the worker's side and return its value."""

    def run(self, trial: Trial, device: Device, on_message: Callable[[Message], None]) -> Ending:
        """Run one trial, handing its records on."""

    def cancel(self) -> None:
        """Make what is running in other threads end."""

    def close(self) -> None:
        """Give back what was held."""


def open_launcher(command: Request) -> Launcher:
    """Return who runs the trials: this machine, with ``--nnodes`` others too, or with ``--on ray`` a cluster.

    Raises:
        UsageError: there is no such cluster, it has not these accelerators, or node 0 cannot be reached.
    """
    if command.nodes is not None:
        from bench.launch.nodes import NodesLauncher

        return NodesLauncher(command, command.nodes)
    if command.on is None:
        return LocalLauncher()
    from bench.launch.ray.launcher import RayLauncher

    files = [word for word in command.suites if word.endswith(".py")]
    return RayLauncher(command.on.partition("://")[2] or None, command.accelerators, files)
