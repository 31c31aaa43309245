"""The question: a run's request, and the cells and trials that planning makes of it, frozen."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from bench.spec.errors import UsageError, nearest, require
from bench.spec.options import (
    assigned_values,
    assignment,
    duration_s,
    listed,
    matching,
    norm,
    option,
    path,
    percentage,
    target,
    whole,
    word,
)
from bench.spec.phases import PHASES, SELECTABLE, USUAL
from bench.spec.precisions import BASELINE, PRECISIONS, parse_precision, split
from bench.spec.suite import Parameter
from bench.spec.techniques import (
    PLAIN,
    TECHNIQUES,
    ZEROED,
    AblationStep,
    Techniques,
    parse_techniques,
    techniques,
)
from bench.spec.text import plain


@dataclass(frozen=True, kw_only=True, slots=True)
class DataSource:
    """Where the samples come from: ``--data`` and ``--data-dir``."""

    kind: Literal["cifar10", "digits", "markov", "synthetic", "suite", "script", "folder", "text"]
    """``suite`` is the suite's own batches, and ``script`` a training script's data: ``--data`` names neither."""
    path: str | None = None
    """The folder of ``folder:PATH``, or the file of ``text:FILE``, absolute."""
    directory: str = "data"
    """Where downloads and decoded images are kept, absolute."""

    @property
    def generated(self) -> bool:
        """Whether samples are computed, or the suite's own, so that there is nothing to download or to decode."""
        return self.kind in ("markov", "synthetic", "suite", "script")

    @property
    def of_tokens(self) -> bool:
        """Whether samples are sequences of tokens."""
        return self.kind in ("markov", "text")

    def __str__(self) -> str:
        return self.kind if self.path is None else f"{self.kind}:{self.path}"

    @staticmethod
    def parse(word: str, directory: str = "data", *, elsewhere: bool = False) -> DataSource:
        """Parse a word such as ``cifar10``, or ``folder:PATH``; a path ``elsewhere`` is on other machines.

        Raises:
            UsageError: it is none of these, or the folder or file does not exist.
        """
        home = str(Path(directory).resolve())
        for kind in ("cifar10", "digits", "markov", "synthetic"):
            if word == kind:
                return DataSource(kind=kind, directory=home)
        kind, _, name = word.partition(":")
        path = Path(name)
        if kind not in ("folder", "text") or not name:
            allowed = "cifar10, digits, markov, synthetic, folder:PATH or text:FILE"
            raise UsageError(f"--data must be {allowed}, not '{word}'.")
        if not elsewhere and not (path.is_file() if kind == "text" else path.is_dir()):
            form = "text:FILE, whose bytes are the tokens" if kind == "text" else "folder:PATH with train/ and test/"
            raise UsageError(f"There is no {'file' if kind == 'text' else 'folder'} '{name}'. Give {form}.")
        return DataSource(kind="text" if kind == "text" else "folder", path=str(path.resolve()), directory=home)


@dataclass(frozen=True, kw_only=True, slots=True)
class PreparedData:
    """A source of data that was looked at before anything runs; samples that are computed need no look."""

    source: DataSource
    classes: int | None = None
    """Number of classes, or size of the vocabulary, that the source really has; None where it is the suite's."""
    train_samples: int | None = None
    """Images to train on; None where the number of batches in an epoch is the suite's."""
    train_tokens: int | None = None
    """Bytes of a text that are trained on, its first ones; None for other data."""
    validation_tokens: int | None = None
    """Bytes of it that are validated on, its last ones."""
    fingerprint: str | None = None
    """Identifies a folder's images or a text on every machine; None for data that are the same everywhere."""
    left_out: tuple[str, ...] = ()
    """The images that cannot be read."""


@dataclass(frozen=True, kw_only=True, slots=True)
class SuiteRef:
    """How another process finds a suite: by the name of a file in suites/, or by a path."""

    name: str
    file: str | None = None
    """Absolute path of a suite file of the user's own."""
    digest: str = ""
    """Of the file's text: an edited recipe is another question."""
    parameters: tuple[tuple[str, Parameter], ...] = ()
    """Arguments that override the defaults of the file's ``suite()`` function, and are part of the recipe's name."""
    batch_size: Parameter | None = None
    """Its argument ``batch_size`` where that is not part of the name."""

    @property
    def word(self) -> str:
        """What ``--suite`` takes it by: its name, its file, or a library's prefix and the folder of a model."""
        library = f"{self.name.partition(':')[0]}:" if ":" in self.name else ""
        return self.name if self.file is None else f"{library}{self.file}"


PLACEMENT = re.compile(r"(cpu(\+cpu)*|[0-9]+(\+[0-9]+)*|[A-Z][\w.-]*(\+[A-Z][\w.-]*)*)(@([2-9]|[1-9][0-9]{1,3}))?")
"""The names of ``Placement``: equal devices joined by a plus, and a number of nodes above 1."""
EVERY_GPU = "all"
"""The word of ``--gpus`` for each GPU of this machine, alone."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Placement:
    """Where a trial runs: ``cpu``, the index of one GPU as CUDA counts them, or a cluster's accelerator by type.

    Devices joined by a plus, such as ``0+1`` or ``cpu+cpu``, train together, each on its shard of every batch.
    ``0+1@2`` is four GPUs, two on each of two nodes.
    """

    name: str

    def __post_init__(self) -> None:
        allowed = "GPU indices such as 0 or 0,1, cpu, or 0+1 for both together"
        require(PLACEMENT.fullmatch(self.name) is not None, "--gpus", allowed, self.name)
        gpus = [int(word) for word in self.local.split("+") if word.isdigit()]
        require(len({*gpus}) == len(gpus), "--gpus", "devices that are each named once, as in 0+1", self.name)

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
        """Return the CUDA index of a device; None for the CPU and on a cluster, whose nodes have their own."""
        member = self.members[rank] if len(self.members) > 1 else self.members[0]
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


PROCESS_S = 3.0
"""A process times an arm for this long, if the budget allows: starting and warming up take as long anyway."""
PROCESS_TARGET = 0.01
"""Half-width at which a process stops timing where none is asked for: processes differ by about as much."""


SILENCE_S = 600.0
"""A trial's process may say nothing for so long at least, unless ``--trial-timeout`` says otherwise."""
COMPILING_S = SEARCHING_S = JOINT_S = 1800.0
"""The same while it compiles, in the search for the largest batch, and of several devices that train together: those
that wait for one that hangs must have the time to say which."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Protocol:
    """When a comparison has measured enough (docs/measuring.md)."""

    replicates: int = 3
    """Fresh processes that measure a cell at least."""
    most_replicates: int = 10
    """And at most."""
    target_ci: float | None = option(
        "go on to this half-width of the 95%% interval, such as 1%% (default: until it is decided what is faster)",
        "SHARE",
        target,
    )
    """As a share of the speedup whose interval it is. None asks for a verdict instead."""
    min_rounds: int = 20
    """Rounds of a process before it may end because its interval is narrow enough."""
    time_budget_s: float = option(
        "most time to spend timing an arm in one comparison, all processes together (default: 30s)",
        "TIME",
        duration_s,
        default=30.0,
        name="--time-budget",
    )
    fewest_rounds: int = 3
    """Rounds that a process measures although its budget is spent, but not beyond five times the budget. In equal time
    more processes of fewer rounds give narrower intervals; a single process needs more."""

    @property
    def process_s(self) -> float:
        """How long one process may time an arm."""
        each = self.time_budget_s / self.most_replicates
        return min(self.time_budget_s / self.replicates, max(PROCESS_S, each))

    @property
    def process_target(self) -> float:
        """Half-width, as a share, at which a process stops timing."""
        return PROCESS_TARGET if self.target_ci is None else self.target_ci


def _placements(option: str, text: str) -> tuple[str, ...]:
    """Read placements on this machine, by their names."""
    words: tuple[str, ...] = listed(word)(option, text)
    placements = [Placement(name=name) for name in words if name != EVERY_GPU]
    if any(placement.on_cluster for placement in placements):
        raise UsageError(
            f"{option} takes GPU indices or cpu, not '{text}'; on a cluster: --on ray --accelerators {text}."
        )
    if any(placement.nodes > 1 for placement in placements):
        raise UsageError(f"{option} takes GPUs of this machine, not '{text}'; of several: --on ray (docs/clusters.md).")
    return words


def _accelerator(option: str, text: str) -> str:
    """Read a type of accelerator as Ray names it; types joined by a plus are equal."""
    if len({*text.split("+")}) == 1 and re.fullmatch(r"[A-Z][\w.+-]*", text) and Placement(name=text).on_cluster:
        return text
    raise UsageError(f"{option} takes types as Ray names them, such as V100 or V100,A100, not '{text}'.")


def _phase(_option: str, text: str) -> str:
    if text in SELECTABLE:
        return text
    raise UsageError(f"There is no phase '{text}'.{nearest(text, SELECTABLE)} Available: {', '.join(SELECTABLE)}.")


def _batch_size(option: str, text: str) -> int | str:
    size: int | str = text if text == MAX else whole(1, f", and {MAX}")(option, text)
    return size


STARTERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")
"""Modules that start a script's processes, as torchrun and accelerate launch do."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A training script that is run as it is, once for each arm: the command ``script``."""

    command: tuple[str, ...]
    """The words that start it, without an arm's."""
    arms: tuple[tuple[str, str], ...]
    """The name of each arm, and the options that it adds to the command; the first is the reference."""
    inject: bool = False
    """Whether the arms' names are precisions that are entered from outside, instead of by options."""
    steps: int = option("optimizer steps to time in each process (default: 50)", "N", whole(4), default=50)
    warmup: int = option("optimizer steps to leave out before (default: 10)", "N", whole(2), default=10)
    allow_writes: bool = option(
        "let it write its files outside {scratch}, which may overwrite yours or be resumed by the next arm",
        default=False,
    )

    @property
    def main(self) -> str:
        """The main module in the command: the script's absolute path, or the name after ``-m`` that is no starter.

        Raises:
            UsageError: the command has none.
        """
        for place, text in enumerate(self.command):
            module = self.command[place + 1] if text in ("-m", "--module") and place + 1 < len(self.command) else None
            if module is not None and module not in STARTERS:
                return module
            if text.endswith(".py"):
                return str(Path(text).resolve())
        raise UsageError(f"'{' '.join(self.command)}' names no script: give one that ends in .py, or -m MODULE.")

    @property
    def name(self) -> str:
        """Its name in results."""
        return self.main.rpartition("/")[2]


MAX = "max"
"""Among the batch sizes: the largest that fits."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run's options, each checked by itself; None is the default, which may depend on the suite or the device.

    The command line and its help follow from the fields, in their order.
    """

    argv: tuple[str, ...] = ()
    """The words of the command line, which a bare ``--resume`` repeats."""
    suites: tuple[str, ...] = option(
        "suites by name or .py file, with commas between",
        "NAMES",
        listed(word),
        default=(),
        name="--suite",
        group="what to compare",
    )
    """Empty only with ``resume``, whose run has them."""
    precisions: tuple[str, ...] | None = option(
        f"of {', '.join(PRECISIONS)} (default: by device), with options as in amp-fp16:init_scale=1024,cache=off",
        "NAMES",
        listed(lambda _option, text: parse_precision(text).name, split),
    )
    batch_sizes: tuple[int, ...] | None = option(
        "such as 64,128,256, and max for the largest that fits (default: the suite's)", "SIZES", listed(_batch_size)
    )
    largest_batch: bool = False
    """Whether to search for the largest batch that fits and measure there, as well as at ``batch_sizes``."""
    parameters: tuple[tuple[str, str], ...] = option(
        "a suite's parameter; repeatable",
        "NAME=VALUE",
        assignment,
        default=(),
        name="--set",
        repeatable=True,
        changes_nothing=True,
    )
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = option(
        "compare with each of a suite's parameter's values, such as width=4096,4097; repeatable: all combinations",
        "NAME=V1,V2",
        assigned_values,
        default=(),
        repeatable=True,
    )
    techniques: tuple[str, ...] = option(
        f"of {', '.join(TECHNIQUES)} (as in grad-accumulation=4), for all precisions alike: docs/techniques.md",
        "LIST",
        lambda _option, text: parse_techniques(text),
        default=(),
    )
    gpus: tuple[str, ...] | None = option(
        "CUDA indices such as 0,1, all, or cpu; 0+1 and cpu+cpu train together (default: every GPU, else cpu)",
        "LIST",
        _placements,
        group="where",
    )
    on: str | None = option(
        "run on a Ray cluster (docs/clusters.md)",
        "ray[://HOST:PORT]",
        matching(r"ray(://[^/\s]+:\d+)?", "ray or ray://HOST:PORT", lambda match: match[0]),
        changes_nothing=True,
    )
    accelerators: tuple[str, ...] | None = option(
        "types on the cluster, as V100,A100; V100+V100 train together (default: one of each type)",
        "LIST",
        listed(_accelerator),
    )
    exclusive: bool = option("refuse to start when a GPU is in use by others", default=False)
    phases: tuple[str, ...] = option(
        f"of {', '.join(SELECTABLE)} (default: {{usual}}; --rigorous: floor, too)",
        "LIST",
        listed(_phase),
        default=USUAL,
        group="how",
    )
    epochs: int | None = option("epochs to train (default: the suite's short form)", "N", whole(1), of_training=True)
    seeds: tuple[int, ...] | None = option(
        "seeds to train with (default: the suite's, usually 0)", "LIST", listed(whole(0)), with_resume=True
    )
    target_accuracy_pct: float | None = option(
        "tell how long training took to this test accuracy",
        "PCT",
        percentage,
        name="--target-accuracy",
        of_training=True,
    )
    clip_grad: float | None = option(
        "clip gradients to this norm (default: the suite's)", "MAXNORM", norm, of_training=True
    )
    keep_checkpoints: bool = option("keep the checkpoint of every epoch in the run's folder", default=False)
    start: Path | None = option(
        "continue the training of a run with --keep-checkpoints, in any precision: from fp32's, or its only one's",
        "RUN",
        path,
        name="--from",
        of_training=True,
    )
    from_epoch: int | None = option("the epoch after which --from continues", "K", whole(1), of_training=True)
    quick: bool = option(
        "a first answer in a minute: one process, fp32 and the precision that the device should gain most by, at one "
        "batch size; no training unless one of its options is given",
        default=False,
    )
    protocol: Protocol = Protocol()
    trial_timeout_s: float | None = option(
        "end a trial whose process says nothing for so long, such as 5m (default: ten times the longest silence that "
        "is expected, 10m at least; 30m while compiling, searching the largest batch or training on several devices)",
        "TIME",
        duration_s,
        name="--trial-timeout",
        with_resume=True,
        changes_nothing=True,
    )
    within_s: float | None = option(
        "end in this time, report included, such as 90s: speed first, then memory, then training; what is undecided "
        "then is named, and --resume goes on",
        "TIME",
        duration_s,
        name="--within",
        with_resume=True,
        changes_nothing=True,
    )
    data: str | None = option(
        "cifar10, digits, markov, synthetic, folder:PATH or text:FILE (default: the suite's)", "SOURCE", group="data"
    )
    data_dir: str = option(
        "for downloads and decoded images (default: data)", "DIR", default="data", changes_nothing=True
    )
    script: Script | None = None
    """Of ``script`` alone, whose suite is the script's name."""
    out: Path | None = option(
        "a new folder (default: results/SUITE-DEVICE-TIME)", "DIR", path, group="results", changes_nothing=True
    )
    resume: Path | None = option(
        "go on with this run; finished trials are kept, and --seeds may add to the run's own",
        "DIR",
        path,
        with_resume=True,
        changes_nothing=True,
    )
    dry_run: bool = option("show the plan and stop", default=False, with_resume=True, changes_nothing=True)


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
    arms: tuple[AblationStep, ...]
    """The arms: speed takes all that the device supports, the baseline first, or one of those that do not fit together;
    every other phase takes one (``Phase.arms``)."""
    ablation: bool = False
    """Whether the arms are steps of an ablation, whose batches lie in host memory; without set-to-none they zero
    gradients."""
    replicate: int = 0
    """Which of the protocol's processes this is, in the phases that repeat their measurement in fresh ones."""
    seed: int = 0
    """Seed of weights, data order and augmentation."""
    epochs: int = 1
    """Epochs to train (train)."""
    target_accuracy_pct: float | None = None
    """Test accuracy to tell the time to (train)."""
    clip_grad: float | None = None
    """Norm to clip gradients to; None is the recipe's."""
    start: str | None = None
    """The checkpoint that its training starts from; None are initial weights."""
    keep_checkpoints: bool = False
    """Whether every epoch's is kept."""
    protocol: Protocol = Protocol()
    silence_s: float = SILENCE_S
    """How long its process may say nothing before it is taken to hang."""
    unfit: str = ""
    """Why the device's memory cannot hold any of its arms, which are then not tried; empty where it may."""

    @property
    def precisions(self) -> tuple[str, ...]:
        """The names of the arms in CSVs."""
        return tuple(arm.name for arm in self.arms)

    def techniques_of(self, arm: AblationStep) -> Techniques:
        """Return the techniques that an arm is built with."""
        return techniques((*self.cell.techniques, *arm.techniques), ZEROED if self.ablation else PLAIN)

    def apart(self) -> tuple[Trial, ...]:
        """Return a trial for each of its arms, where there are several that may have to be measured apart."""
        return tuple(replace(self, arms=(arm,)) for arm in self.arms) if len(self.arms) > 1 else ()

    @property
    def id(self) -> str:
        """A readable name, unique within a run."""
        phase = PHASES[self.phase]
        arms = "" if phase.arms == "together" and len(self.precisions) > 1 else f"-{self.precisions[0]}"
        tail = f"-{phase.key[0]}{getattr(self, phase.key)}" if phase.key else ""
        return f"{self.cell_id}-{self.phase}{arms}{tail}"

    @property
    def cell_id(self) -> str:
        """A readable name of its cell, which other phases share; an ablation has its own.

        The search for a batch size has none in it.
        """
        cell = self.cell
        changed = "".join(f"-{name}={value}" for name, value in cell.suite.parameters)
        changed += "".join(f"+{technique}" for technique in cell.techniques)
        batch = "" if PHASES[self.phase].searches else f"-b{cell.batch_size}"
        ablation = "-ablation" if self.ablation else ""
        return plain(f"{cell.suite.name}{changed}-{cell.placement.name}{ablation}{batch}", one_line=True)

    @property
    def checkpoint(self) -> Path:
        """Where within a run's folder its training is kept until it has ended (train)."""
        return Path("checkpoints") / f"{_file_name(self.id)}.pt"

    @property
    def recipe(self) -> dict[str, str]:
        """What is trained, whatever the precision and the device: settings by the names that messages use."""
        suite = self.cell.suite
        settings = {
            "the suite": suite.name,
            "its file": suite.digest,
            "its parameters": dict(suite.parameters),
            "the batch size": self.cell.batch_size,
            "the data": self.cell.data,
            "the number of classes": self.cell.classes,
            "techniques": ",".join(self.cell.techniques),
            "--epochs": self.epochs,
            "the seed": self.seed,
            "--clip-grad": self.clip_grad,
        }
        return {name: str(value) for name, value in settings.items()}

    @property
    def log(self) -> Path:
        """Where within a run's folder all that it printed is kept if it fails."""
        return Path("logs") / f"{_file_name(self.id)}.log"


LONGEST_NAME = 150
"""Characters of a trial in the name of a file; file systems take 255 bytes."""


def kept_checkpoint(trial: str, epoch: int) -> Path:
    """Return where within a run's folder the checkpoint of an epoch of a trial is kept, by the trial's id."""
    return Path("checkpoints") / f"{_file_name(trial)}-e{epoch}.pt"


def _file_name(trial: str) -> str:
    """Return a name that no other trial has, also where a file's may not have all of the characters."""
    name = re.sub(r"[^A-Za-z0-9._=+-]", "_", trial)
    if name == trial and len(name) <= LONGEST_NAME:
        return name
    return f"{name[:LONGEST_NAME]}-{hashlib.blake2b(trial.encode(), digest_size=4).hexdigest()}"
