"""Several nodes that train together: torchrun's options for them, and which of all processes a node starts."""

from __future__ import annotations

import re
from dataclasses import dataclass

from bench.spec.errors import UsageError

JOIN_S = 600.0
"""How long nodes wait for each other at the start: torchrun's own ``join_timeout``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Rendezvous:
    """Which of the processes that train together one machine starts, and where all of them meet."""

    first: int
    """Rank of the first of them."""
    local: int
    """How many this machine starts."""
    world: int
    """How many there are on all machines."""
    address: str
    """Where the process of rank 0 listens: ``MASTER_ADDR``."""
    port: int
    """``MASTER_PORT``."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Nodes:
    """What ``--nnodes`` and the options beside it say. Node 0 plans, stores and reports; the others follow it."""

    count: int
    rank: int
    host: str
    """An address of node 0 that all reach."""
    port: int
    id: str = "none"
    """A word that the nodes of one job share; whoever does not know it is not listened to."""
    join_s: float = JOIN_S

    @property
    def endpoint(self) -> str:
        """Where node 0 listens."""
        return f"{self.host}:{self.port}"

    def share(self, rank: int, ranks: int, port: int) -> Rendezvous:
        """Return which of ``ranks`` processes a node starts, that meet at a port of node 0."""
        local = ranks // self.count
        return Rendezvous(first=rank * local, local=local, world=ranks, address=self.host, port=port)


def parse_nodes(
    *,
    nnodes: str | None,
    node_rank: str | None,
    endpoint: str | None,
    job: str | None,
    backend: str | None,
    conf: str | None,
) -> Nodes | None:
    """Read torchrun's options; None where there is one node.

    Raises:
        UsageError: one is missing or malformed.
    """
    others = {"--node-rank": node_rank, "--rdzv-endpoint": endpoint, "--rdzv-id": job}
    others |= {"--rdzv-backend": backend, "--rdzv-conf": conf}
    if nnodes is None:
        if idle := next((name for name, value in others.items() if value is not None), None):
            raise UsageError(f"{idle} is for several nodes: add --nnodes.")
        return None
    if not re.fullmatch(r"[1-9]\d{0,3}", nnodes):
        raise UsageError(f"--nnodes takes how many nodes there are, such as 2, not '{nnodes}'.")
    count = int(nnodes)
    if not re.fullmatch(r"\d{1,4}", node_rank or ("0" if count == 1 else "")) or int(node_rank or 0) >= count:
        raise UsageError(
            f"--node-rank takes a whole number from 0 to {count - 1}, another on each node and 0 on the one that "
            f"reports{'' if node_rank is None else f', not {node_rank!r}'}."
        )
    if backend not in (None, "c10d"):
        raise UsageError(f"--rdzv-backend takes c10d, not '{backend}'.")
    if count == 1:
        return None
    host, port = _endpoint(endpoint, count)
    return Nodes(
        count=count, rank=int(node_rank or 0), host=host, port=port, id=job or "none", join_s=_join_timeout(conf)
    )


def _endpoint(text: str | None, count: int) -> tuple[str, int]:
    if text is None:
        raise UsageError(
            f"--nnodes {count} needs --rdzv-endpoint HOST:PORT: an address of node 0 that all nodes reach."
        )
    match = re.fullmatch(r"([^\s:/]+):(\d{1,5})", text)
    if match is None or not 0 < int(match[2]) < 65536:
        raise UsageError(f"--rdzv-endpoint takes HOST:PORT, such as node0:29400, not '{text}'.")
    return match[1], int(match[2])


def _join_timeout(conf: str | None) -> float:
    if conf is None:
        return JOIN_S
    match = re.fullmatch(r"join_timeout=(\d{1,6})", conf)
    if match is None or not int(match[1]):
        raise UsageError(f"--rdzv-conf takes join_timeout=SECONDS, not '{conf}'.")
    return float(match[1])


def over_nodes(placements: tuple[str, ...] | None, nodes: Nodes | None, on: str | None) -> tuple[str, ...] | None:
    """Return the placements' names, those that train together over all nodes: ``0+1@2`` for ``0+1``.

    Raises:
        UsageError: nothing trains together, or on other nodes than there are.
    """
    names = placements or ()
    counts = {name: name.partition("@")[2] for name in names if "@" in name}
    if nodes is None:
        if counts:
            name, count = next(iter(counts.items()))
            raise UsageError(f"--gpus {name} is on {count} nodes: add --nnodes {count}, and start it on each of them.")
        return placements
    if on is not None:
        raise UsageError("--nnodes is for machines that each start this command; with --on ray leave it out.")
    if wrong := next((name for name, count in counts.items() if count != str(nodes.count)), None):
        raise UsageError(f"--gpus {wrong} is on other than the {nodes.count} nodes that --nnodes says.")
    found = tuple(f"{name}@{nodes.count}" if "+" in name and "@" not in name else name for name in names)
    if not any("@" in name for name in found):
        raise UsageError(
            f"--nnodes {nodes.count} is for devices that train together: name them, as in --gpus 0+1, or "
            f"--gpus 0@{nodes.count} for one on each node."
        )
    return tuple(dict.fromkeys(found))
