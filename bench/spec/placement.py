"""Where a trial runs: one device, or several that train together."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.spec.errors import require

# The names of ``Placement``: equal devices joined by a plus, and a number of nodes above 1.
PLACEMENT = re.compile(
    r"(cpu(\+cpu)*|[0-9]+(\+[0-9]+)*|[A-Z][\w.-]*(\+[A-Z][\w.-]*)*)(@([2-9]|[1-9][0-9]{1,3}))?"
)
# The word of ``--gpus`` for each GPU of this machine, alone.
EVERY_GPU = "all"


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where a trial runs.

    ``cpu``, the index of one GPU as CUDA counts them, or a cluster's accelerator by type. Devices
    joined by a plus, such as ``0+1`` or ``cpu+cpu``, train together, each on its shard of every
    batch. ``0+1@2`` is four GPUs, two on each of two nodes.
    """

    name: str

    def __post_init__(self) -> None:
        allowed = "GPU indices such as 0 or 0,1, cpu, or 0+1 for both together"
        require(PLACEMENT.fullmatch(self.name) is not None, "--gpus", allowed, self.name)
        gpus = [int(word) for word in self.local.split("+") if word.isdigit()]
        once = "devices that are each named once, as in 0+1"
        require(len({*gpus}) == len(gpus), "--gpus", once, self.name)

    @property
    def on_cluster(self) -> bool:
        """Whether it is an accelerator type such as V100, which Ray names with a capital first."""
        return self.name[0].isupper()

    @property
    def local(self) -> str:
        """The devices on each node: ``0+1`` of ``0+1@2``."""
        return self.name.partition("@")[0]

    @property
    def nodes(self) -> int:
        """Number of nodes."""
        return int(self.name.partition("@")[2] or 1)

    @property
    def members(self) -> tuple[str, ...]:
        """The devices, node by node, by their names there."""
        return tuple(self.local.split("+")) * self.nodes

    def device_of(self, rank: int = 0) -> int | None:
        """Return the CUDA index of a rank's device; None for the CPU and on a cluster.

        A cluster's nodes have their own indices.
        """
        member = self.members[rank]
        return int(member) if member.isdigit() else None


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """Where the ranks of a trial meet, and which of them a process is."""

    rank: int
    world: int
    """Number of ranks."""
    local_world: int
    """Number of ranks on the same machine."""
    address: str
    """Where rank 0 listens: ``MASTER_ADDR``."""
    port: int
    """``MASTER_PORT``."""
