"""The actor on a node of a cluster, which starts a fresh process for each trial there."""

from __future__ import annotations

import os
import platform
import shutil
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from queue import SimpleQueue

from bench.launch.launcher import Ending, ending_of
from bench.launch.local import LocalLauncher
from bench.launch.multi_node import free_port
from bench.results.records import Device, Message
from bench.spec.trial import Rendezvous, Trial

PACKAGES = ("bench", "suites")
"""The packages that are sent to the nodes."""
OWN = "own"
"""Folder of the user's suite files, sent beside the packages."""
THREADS = "OMP_NUM_THREADS"
VISIBLE = "CUDA_VISIBLE_DEVICES"


class NodeWorker:
    """An actor that holds its node's accelerator as long as it lives."""

    def __init__(self, threads: str | None, *, move: bool = False) -> None:
        """Prepare this process.

        Args:
            threads: ``OMP_NUM_THREADS`` of the machine that started the run; None leaves torch's default.
            move: whether to work in a copy of the current folder, which Ray may remove meanwhile.
        """
        # The fork server starts a new interpreter, which would import the main script of this process: Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray sets it to the number of CPUs that the actor requested.
        os.environ.pop(THREADS, None)
        if threads is not None:
            os.environ[THREADS] = threads
        self._home = tempfile.mkdtemp(prefix="ampmeter-") if move else None
        if self._home is not None:
            for name in (*PACKAGES, OWN):  # nothing else: on a local cluster this may be the user's folder
                if Path(name).is_dir():
                    shutil.copytree(name, Path(self._home) / name)
            os.chdir(self._home)
            os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (self._home, os.environ.get("PYTHONPATH"))))
        self._launcher = LocalLauncher()

    def whereabouts(self) -> tuple[str, str, str]:
        """Return Ray's id of the node, its name, and its address on the network that Ray uses."""
        import ray

        return ray.get_runtime_context().get_node_id(), platform.node(), str(ray.util.get_node_ip_address())

    def visible(self) -> str:
        """Return the GPUs that Ray lets this process see."""
        return os.environ.get(VISIBLE, "")

    def share(self, gpus: str, several_nodes: bool) -> None:
        """Make the GPUs of this node's other actors visible to this process, too; called before anything runs.

        Args:
            gpus: the GPUs visible to all actors of this node, joined by commas; empty if there are none.
            several_nodes: whether other nodes take part in the trial.
        """
        if gpus:
            os.environ[VISIBLE] = gpus
        if several_nodes and (name := interface(self.whereabouts()[2])):
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # gloo's default is the host name's

    def free_port(self) -> int:
        """Return a free port of this node."""
        return free_port()

    def survey(self, placements: tuple[str, ...]) -> Ending:
        """Describe devices of this node."""
        return ending_of(self._launcher.survey, placements)

    def call(self, target: str, *arguments: object) -> Ending:
        """Call a function of the worker in a fresh process; an error becomes the ending's text."""
        return ending_of(self._launcher.call, target, *arguments)

    def run(self, trial: Trial, device: Device, rendezvous: Rendezvous | None = None) -> Iterator[Message | Ending]:
        """Run one trial in a fresh process and yield its records as they come, its ending last.

        With a ``rendezvous``, only this node's ranks of the trial run here.
        """
        messages: SimpleQueue[Message | Ending] = SimpleQueue()

        def execute() -> None:
            try:
                messages.put(self._launcher.run(trial, device, messages.put, rendezvous))
            except Exception as error:  # else the loop below would wait forever
                messages.put(Ending(kind="error", text=f"{type(error).__name__}: {error}"))

        threading.Thread(target=execute, daemon=True).start()
        while not isinstance(message := messages.get(), Ending):
            yield message
        yield message

    def halt(self) -> None:
        """End the process of the running trial, if there is one."""
        self._launcher.cancel()

    def stop(self) -> None:
        """End the running trial, and remove this actor's folder."""
        self.halt()
        if self._home is not None:
            shutil.rmtree(self._home, ignore_errors=True)


def interface(address: str) -> str | None:
    """Return the name of the network interface that has an address."""
    import psutil

    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(one.address == address for one in addresses)), None)
