"""What planning makes of a request, frozen: cells, and trials in them."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path

from bench.spec.data_source import DataSource
from bench.spec.phases import PHASES
from bench.spec.placement import Placement
from bench.spec.precisions import BASELINE
from bench.spec.protocol import Protocol
from bench.spec.suite import Parameter
from bench.spec.techniques import (
    PLAIN,
    ZEROED,
    ArmSpec,
    Techniques,
    techniques,
)
from bench.spec.text import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteRef:
    """How another process finds a suite: by the name of a file in suites/, or by a path."""

    name: str
    file: str | None = None
    """Absolute path of a suite file of the user's own."""
    digest: str = ""
    """Of the file's text: an edited recipe is another question."""
    parameters: tuple[tuple[str, Parameter], ...] = ()
    """Arguments that override the defaults of the file's ``suite()`` function, and are part of the
    recipe's name."""
    batch_size: Parameter | None = None
    """Its argument ``batch_size`` where that is not part of the name."""

    @property
    def word(self) -> str:
        """What ``--suite`` takes it by: its name or file, or a library's prefix and a folder."""
        if self.file is None:
            return self.name
        prefix, colon, _ = self.name.rpartition(":")
        return f"{prefix}{colon}{self.file}"


# A trial's process may say nothing for so long at least, unless ``--trial-timeout`` says otherwise.
SILENCE_S = 600.0
# The same of several devices that train together: those that wait for one that hangs must have the
# time to say which. ``--trial-timeout`` shortens that; while a process compiles, and in the search
# for the largest batch, it does not, because a batch or a model takes as long as it takes.
COMPILING_S = SEARCHING_S = JOINT_S = 1800.0


@dataclass(frozen=True, kw_only=True, slots=True)
class Cell:
    """Suite × placement × batch size: within it the precisions are compared."""

    suite: SuiteRef
    placement: Placement
    batch_size: int
    data: DataSource
    classes: int | None = None
    """Number of classes of the data, where it is not the suite's own."""
    techniques: tuple[str, ...] = ()
    """Techniques that all arms are trained with, by canonical names, such as channels-last."""
    reference: str = BASELINE
    """The arm that the others' speedups are over; a script's may have any name."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Trial:
    """A cell and its phase: what one process measures."""

    cell: Cell
    phase: str
    """A name of ``PHASES``."""
    arms: tuple[ArmSpec, ...]
    """What is measured, each a precision, in an ablation with the techniques added so far. Speed
    and explain take all that the device supports, the baseline first; other phases one
    (``Phase.grouping``)."""
    ablation: bool = False
    """Whether the arms are steps of an ablation, whose batches lie in host memory; without
    set-to-none they zero gradients."""
    replicate: int = 0
    """Which of the protocol's processes this is, in the phases that repeat their measurement in
    fresh ones."""
    seed: int = 0
    """Seed of weights, data order and augmentation."""
    epochs: int = 1
    """Epochs to train (train)."""
    clip_grad: float | None = None
    """Norm to clip gradients to; None is the recipe's."""
    start: str | None = None
    """The checkpoint that its training starts from; None are initial weights."""
    keep_checkpoints: bool = False
    """Whether every epoch's is kept."""
    protocol: Protocol = Protocol()
    silence_s: float = SILENCE_S
    """How long its process may say nothing before it is taken to hang."""
    estimate_s: float | None = None
    """How long it should take, in seconds; None is unknown."""
    unfit: str = ""
    """Why the device's memory cannot hold any of its arms, which are then not tried; empty where it
    may."""

    @property
    def arm_names(self) -> tuple[str, ...]:
        """The names of the arms in CSVs."""
        return tuple(arm.name for arm in self.arms)

    def techniques_of(self, arm: ArmSpec) -> Techniques:
        """Return the techniques that an arm is built with."""
        base = ZEROED if self.ablation else PLAIN
        return techniques((*self.cell.techniques, *arm.techniques), base)

    def apart(self) -> tuple[Trial, ...]:
        """Return a trial for each of its arms; none of a single arm, which is alone already."""
        if len(self.arms) == 1:
            return ()
        return tuple(replace(self, arms=(arm,)) for arm in self.arms)

    @property
    def id(self) -> str:
        """A readable name, unique within a run."""
        phase = PHASES[self.phase]
        name = f"{self.cell_id}-{self.phase}"
        if phase.grouping != "together" or len(self.arms) == 1:
            name += f"-{self.arm_names[0]}"
        if phase.key:
            name += f"-{phase.key[0]}{getattr(self, phase.key)}"
        return name

    @property
    def cell_id(self) -> str:
        """A readable name of its cell, which other phases share; an ablation has its own.

        The search for a batch size has none in it.
        """
        cell = self.cell
        name = cell.suite.name
        for parameter, value in cell.suite.parameters:
            name += f"-{parameter}={value}"
        for technique in cell.techniques:
            name += f"+{technique}"
        name += f"-{cell.placement.name}"
        if self.ablation:
            name += "-ablation"
        if not PHASES[self.phase].searches:
            name += f"-b{cell.batch_size}"
        return plain(name, one_line=True)

    @property
    def checkpoint(self) -> Path:
        """Where within a run's folder its training is kept until it has ended (train)."""
        return Path("checkpoints") / f"{_file_name(self.id)}.pt"

    @property
    def log(self) -> Path:
        """Where within a run's folder all that it printed is kept if it fails."""
        return Path("logs") / f"{_file_name(self.id)}.log"


# Characters of a trial in the name of a file; file systems take 255 bytes.
LONGEST_NAME = 150


def kept_checkpoint(trial: str, epoch: int) -> Path:
    """Return where within a run's folder the checkpoint of an epoch is kept, by the trial's id."""
    return Path("checkpoints") / f"{_file_name(trial)}-e{epoch}.pt"


def _file_name(trial: str) -> str:
    """Return the name of a trial's file, which no other trial has.

    A name that is too long, or that has characters which a file's may not have, ends with a digest.
    """
    name = re.sub(r"[^A-Za-z0-9._=+-]", "_", trial)
    if name == trial and len(name) <= LONGEST_NAME:
        return name
    digest = hashlib.blake2b(trial.encode(), digest_size=4).hexdigest()
    return f"{name[:LONGEST_NAME]}-{digest}"
