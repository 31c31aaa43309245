"""A run's request: each option with its help, how its words are read, and what it changes."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

from bench.spec.errors import UsageError, unknown
from bench.spec.options import (
    assigned_values,
    assignment,
    duration_s,
    listed,
    norm,
    option,
    path,
    whole,
    word,
)
from bench.spec.phases import DEFAULT_PHASES, SELECTABLE
from bench.spec.placement import EVERY_GPU, Placement
from bench.spec.precisions import PRECISIONS, parse_precision, split
from bench.spec.protocol import Protocol
from bench.spec.techniques import TECHNIQUES, parse_techniques


def _placement(option: str, text: str) -> str:
    """Read a placement on this machine, by its name."""
    if text == EVERY_GPU:
        return text
    placement = Placement(name=text)
    if placement.on_cluster or placement.nodes > 1:
        where = "on a cluster: --on ray --accelerators TYPES (docs/clusters.md)"
        raise UsageError(
            f"{option} takes GPU indices of this machine or cpu, not '{text}'; {where}."
        )
    return text


def _launcher(option: str, text: str) -> str:
    if not re.fullmatch(r"[a-z]\w*(://[^/\s]+)?", text):
        raise UsageError(
            f"{option} takes a launcher, such as ray or ray://HOST:PORT, not '{text}'."
        )
    return text


def _accelerator(option: str, text: str) -> str:
    """Read a type of accelerator as Ray names it; types joined by a plus are equal."""
    if not re.fullmatch(r"([A-Z][\w.-]*)(\+\1)*", text):
        raise UsageError(
            f"{option} takes types as Ray names them, such as V100 or V100,A100, not '{text}'."
        )
    return text


def _phase(_option: str, text: str) -> str:
    if text not in SELECTABLE:
        raise unknown("phase", text, SELECTABLE)
    return text


def _absolute(_option: str, text: str) -> Path:
    return Path(text).resolve()


def _batch_size(option: str, text: str) -> int | str:
    if text == MAX:
        return MAX
    size: int = whole(1, f", and {MAX}")(option, text)
    return size


# Modules that start a script's processes, as torchrun and accelerate launch do.
STARTERS = ("torch.distributed.run", "torch.distributed.launch", "accelerate.commands.launch")


@dataclass(frozen=True, kw_only=True, slots=True)
class Script:
    """A training script that is run as it is, once for each arm: the command ``script``."""

    command: tuple[str, ...]
    """The words that start it, without an arm's."""
    arms: tuple[tuple[str, str], ...]
    """The name of each arm, and the options that it adds to the command; the first is the
    reference."""
    inject: bool = False
    """Whether the arms' names are precisions that are entered from outside, instead of by
    options."""
    steps: int = option(
        "optimizer steps to time in each process (default: 50)", "N", whole(4), default=50
    )
    warmup: int = option(
        "optimizer steps to leave out before (default: 10)", "N", whole(2), default=10
    )
    explain: bool = option(
        "also say where each arm's steps spend time and memory, and why", default=False
    )
    allow_writes: bool = option(
        (
            "let it write its files outside {scratch}, which may overwrite yours or be resumed by "
            "the next arm"
        ),
        default=False,
    )

    @property
    def main(self) -> str:
        """The main module in the command.

        It is the script's absolute path, or the name after ``-m`` that is no starter.

        Raises:
            UsageError: the command has none.
        """
        for text, after in pairwise((*self.command, "")):
            if text in ("-m", "--module") and after not in ("", *STARTERS):
                return after
            if text.endswith(".py"):
                return str(Path(text).resolve())
        raise UsageError(
            f"'{' '.join(self.command)}' names no script: give one that ends in .py, or -m MODULE."
        )

    @property
    def name(self) -> str:
        """Its name in results."""
        return self.main.rpartition("/")[2]


# Among the batch sizes: the largest that fits.
MAX = "max"


@dataclass(frozen=True, kw_only=True, slots=True)
class Request:
    """A run's options, each checked by itself.

    None is the default, which may depend on the suite or the device. The command line and its help
    follow from the fields, in their order.
    """

    argv: tuple[str, ...] = ()
    """The words of the command line, which reports and advice repeat."""
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
        (
            f"of {', '.join(PRECISIONS)} (default: by device), with options as in "
            "amp-fp16:init_scale=1024,cache=off"
        ),
        "NAMES",
        listed(lambda _option, text: parse_precision(text).name, split),
        repeated="same",
    )
    batch_sizes: tuple[int, ...] | None = option(
        "such as 64,128,256, and max for the largest that fits (default: the suite's)",
        "SIZES",
        listed(_batch_size),
    )
    largest_batch: bool = False
    """Whether to search for the largest batch that fits and measure there, as well as at
    ``batch_sizes``."""
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
        (
            "compare with each of a suite's parameter's values, such as width=4096,4097; "
            "repeatable: all combinations"
        ),
        "NAME=V1,V2",
        assigned_values,
        default=(),
        repeatable=True,
    )
    techniques: tuple[str, ...] = option(
        (
            f"of {', '.join(TECHNIQUES)} (as in grad-accumulation=4), for all precisions alike: "
            "docs/techniques.md"
        ),
        "LIST",
        lambda _option, text: parse_techniques(text),
        default=(),
        repeated="same",
    )
    gpus: tuple[str, ...] | None = option(
        (
            "CUDA indices such as 0,1, all, or cpu; 0+1 and cpu+cpu train together (default: every "
            "GPU, else cpu)"
        ),
        "LIST",
        listed(_placement),
        group="where",
        in_scripts=True,
    )
    on: str | None = option(
        "run on a Ray cluster (docs/clusters.md)",
        "ray[://HOST:PORT]",
        _launcher,
        changes_nothing=True,
    )
    accelerators: tuple[str, ...] | None = option(
        "types on the cluster, as V100,A100; V100+V100 train together (default: one of each type)",
        "LIST",
        listed(_accelerator),
    )
    phases: tuple[str, ...] = option(
        (
            f"of {', '.join(SELECTABLE)} (default: {','.join(DEFAULT_PHASES)}; "
            "--quick: memory,speed; --rigorous: floor, too)"
        ),
        "LIST",
        listed(_phase),
        default=DEFAULT_PHASES,
        group="how",
        repeated="same",
    )
    epochs: int | None = option(
        "epochs to train (default: the suite's short form)",
        "N",
        whole(1),
        of_training=True,
        repeated="same",
    )
    seeds: tuple[int, ...] | None = option(
        "seeds to train with (default: the suite's, usually 0)",
        "LIST",
        listed(whole(0)),
        with_resume=True,
        repeated="same",
    )
    clip_grad: float | None = option(
        "clip gradients to this norm (default: the suite's)", "MAXNORM", norm, of_training=True
    )
    keep_checkpoints: bool = option(
        "keep the checkpoint of every epoch in the run's folder", default=False
    )
    start: Path | None = option(
        (
            "continue a training, in any precision, from a checkpoint that --keep-checkpoints "
            "kept in another run's folder"
        ),
        "FILE",
        _absolute,
        name="--from",
        of_training=True,
    )
    quick: bool = option(
        "a first answer in a minute: one process, fp32 and the precision that the device should "
        "gain most by, at one batch size; no training unless one of its options is given",
        default=False,
        repeated="never",
    )
    protocol: Protocol = Protocol()
    trial_timeout_s: float | None = option(
        "end a trial whose process says nothing for so long, such as 5m (default: ten times the "
        "longest silence that is expected, 10m at least; 30m while compiling, searching the "
        "largest batch or training on several devices)",
        "TIME",
        duration_s,
        name="--trial-timeout",
        with_resume=True,
        changes_nothing=True,
        in_scripts=True,
    )
    within_s: float | None = option(
        "end in this time, report included, such as 90s: speed first, then memory, then training; "
        "what is undecided then is named, and --resume goes on",
        "TIME",
        duration_s,
        name="--within",
        with_resume=True,
        changes_nothing=True,
        repeated="never",
    )
    data: str | None = option(
        "cifar10, digits, markov, synthetic, folder:PATH or text:FILE (default: the suite's)",
        "SOURCE",
        group="data",
    )
    data_dir: str = option(
        "for downloads and decoded images (default: data)",
        "DIR",
        default="data",
        changes_nothing=True,
    )
    script: Script | None = None
    """Of ``script`` alone, whose suite is the script's name."""
    out: Path | None = option(
        "a new folder (default: results/SUITE-DEVICE-TIME)",
        "DIR",
        path,
        group="results",
        changes_nothing=True,
        repeated="never",
        in_scripts=True,
    )
    resume: Path | None = option(
        "go on with this run; finished trials are kept, and --seeds may add to the run's own",
        "DIR",
        path,
        with_resume=True,
        changes_nothing=True,
        repeated="never",
        in_scripts=True,
    )
    dry_run: bool = option(
        "show the plan and stop",
        default=False,
        with_resume=True,
        changes_nothing=True,
        in_scripts=True,
    )
