"""The actor that holds an accelerator of a cluster, and starts a fresh process for each trial there."""

from __future__ import annotations

import os
import platform
import sys
import threading
from collections.abc import Iterator
from queue import SimpleQueue

import psutil

from bench.launch.launcher import Ending
from bench.launch.local import LocalLauncher
from bench.launch.ranks import free_port
from bench.results.records import Device, Message
from bench.spec.trial import Rendezvous, Trial

THREADS = "OMP_NUM_THREADS"


class AcceleratorActor(LocalLauncher):
    """The launcher of an accelerator's node, which lives as long as the run holds the accelerator."""

    not_started = "lost"  # a node whose processes are being killed still has its actor for a moment

    def __init__(self, threads: str | None) -> None:
        """Prepare this process.

        Args:
            threads: ``OMP_NUM_THREADS`` of the machine that started the run; None leaves torch's default.
        """
        # The fork server starts a new interpreter, which would import the main script of this process: Ray's.
        vars(sys.modules["__main__"]).pop("__file__", None)
        # Ray sets it to the number of CPUs that the actor requested.
        os.environ.pop(THREADS, None)
        if threads is not None:
            os.environ[THREADS] = threads
        super().__init__()

    def locate(self) -> tuple[str, str, str]:
        """Return Ray's id of the node, its name, and its address on the network that Ray uses."""
        import ray

        address = str(ray.util.get_node_ip_address())
        if (name := interface(address)) is not None:
            os.environ.setdefault("GLOO_SOCKET_IFNAME", name)  # gloo's default is the host name's
        return ray.get_runtime_context().get_node_id(), platform.node(), address

    def free_port(self) -> int:
        """Return a free port of this node."""
        return free_port()

    def stream(self, trial: Trial, device: Device, rendezvous: Rendezvous | None) -> Iterator[Message | Ending]:
        """Run the accelerator's rank of a trial, and yield its records as they come, its ending last."""
        messages: SimpleQueue[Message | Ending] = SimpleQueue()

        def execute() -> None:
            try:
                messages.put(self.run(trial, device, messages.put, rendezvous))
            except Exception as error:  # else the loop below would wait forever
                messages.put(Ending(kind="error", text=f"{type(error).__name__}: {error}"))

        threading.Thread(target=execute, daemon=True).start()
        while not isinstance(message := messages.get(), Ending):
            yield message
        yield message


def interface(address: str) -> str | None:
    """Return the name of the network interface that has an address."""
    interfaces = psutil.net_if_addrs().items()
    return next((name for name, addresses in interfaces if any(each.address == address for each in addresses)), None)
