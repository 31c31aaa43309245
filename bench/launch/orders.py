"""What node 0 and the nodes that follow it say to each other."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from bench.launch.local import Ending
from bench.nodes import Rendezvous
from bench.results.records import Device, TrialResult
from bench.spec.trial import Trial


@dataclass(frozen=True, kw_only=True, slots=True)
class Call:
    """Call a function of the worker's side, and answer with its value."""

    number: int
    target: str
    arguments: tuple[Any, ...]


@dataclass(frozen=True, kw_only=True, slots=True)
class Start:
    """Start your processes of a trial."""

    number: int
    trial: Trial
    device: Device
    rendezvous: Rendezvous


@dataclass(frozen=True, kw_only=True, slots=True)
class Cancel:
    """End what was begun with this number."""

    number: int


@dataclass(frozen=True, kw_only=True, slots=True)
class End:
    """The run has ended."""

    begun: bool
    """Whether it had begun: all nodes had agreed on what is asked."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """How what was asked ended on a node that follows."""

    number: int
    ending: Ending
    memory: tuple[TrialResult, ...] = ()
    """Peaks of the node's own devices."""


Order = Call | Start | Cancel | End
