"""The command line: words in, a frozen request out. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn

import bench
from bench.spec.errors import UsageError, nearest
from bench.spec.phases import LADDER, SELECTABLE, USUAL
from bench.spec.precisions import PRECISIONS, parse_precision, split
from bench.spec.techniques import TECHNIQUES, parse_techniques
from bench.spec.trial import DataSource, Placement, Protocol

# Words of the command line to values: numbers, times, shares and lists, each with its own error.

MAX = "max"
"""Among the batch sizes: the largest that fits."""


def listed(
    text: str | None,
    convert: Callable[[str], Any],
    option: str,
    split: Callable[[str], list[str]] = lambda text: text.split(","),
) -> tuple[Any, ...] | None:
    """Split at commas, convert each word, and drop repetitions."""
    if text is None:
        return None
    words = [word.strip() for word in split(text)]
    if not all(words):
        raise UsageError(f"{option} has an empty word in '{text}': put one comma between two values.")
    return tuple(dict.fromkeys(convert(word) for word in words))


def whole(word: str, option: str, least: int) -> int:
    """Read a whole number of ``least`` or more."""
    if not re.fullmatch(r"\d{1,9}", word) or int(word) < least:
        raise UsageError(f"{option} takes whole numbers from {least} to 999999999, not '{word}'.")
    return int(word)


def batch_size(word: str) -> int | str:
    """Read a batch size, or ``max``."""
    return MAX if word == MAX else whole(word, "--batch-sizes", 1)


def share(word: str) -> float:
    """Read a share such as 1% or 0.01."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", word)
    if match is None:
        raise UsageError(f"--target-ci takes a share such as 1% or 0.01, not '{word}'.")
    return float(match[1]) / (100 if match[2] else 1)


def percentage(word: str | None) -> float | None:
    """Read a percentage above 0 and up to 100."""
    if word is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)%?", word)
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(f"--target-accuracy takes a percentage above 0 and up to 100, such as 94%, not '{word}'.")
    return float(match[1])


def norm(word: str | None) -> float | None:
    """Read a norm above 0."""
    if word is None:
        return None
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", word) or float(word) == 0:
        raise UsageError(f"--clip-grad takes a norm above 0 such as 1.0, not '{word}'.")
    return float(word)


def seconds(word: str) -> float:
    """Read a time such as 10s, 2m or 1h, in seconds."""
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|m|h|)", word)
    if match is None:
        raise UsageError(f"--time-budget takes a time such as 10s, 2m or 1h, not '{word}'.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def phase(word: str) -> str:
    """Read a phase."""
    if word not in SELECTABLE:
        raise UsageError(f"There is no phase '{word}'.{nearest(word, SELECTABLE)} Available: {', '.join(SELECTABLE)}.")
    return word


def parameters(words: list[str], weights: str | None) -> tuple[tuple[str, str], ...]:
    """Return the suites' parameters: those of ``--set``, and ``--weights``, a parameter that has an option."""
    given = tuple(assignment(word) for word in words)
    if weights is None:
        return given
    if "weights" in dict(given):
        raise UsageError("--weights and --set weights are the same: give one of the two.")
    return (*given, ("weights", weights if weights in ("none", "imagenet") else str(Path(weights).resolve())))


def sweep(words: list[str], settings: list[str], sizes: bool) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Split each ``--sweep`` into a parameter's name and its values."""
    swept: dict[str, tuple[str, ...]] = {}
    for word in words:
        name, text = assignment(word, "--sweep", "NAME=V1,V2")
        if name in swept or name in dict(assignment(setting) for setting in settings):
            raise UsageError(f"{name} is set twice: give it one --sweep, and no --set.")
        if name == "batch_size" and sizes:
            raise UsageError("--sweep batch_size and --batch-sizes say two things: give one of the two.")
        swept[name] = listed(text, str, "--sweep") or ()
        if len(swept[name]) <= text.count(","):
            raise UsageError(f"--sweep {name} has a value twice in '{text}': name each once.")
    return tuple(swept.items())


def assignment(word: str, option: str = "--set", form: str = "NAME=VALUE") -> tuple[str, str]:
    """Split NAME=VALUE."""
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} takes {form}, not '{word}'.")
    return name, value


# The command line's options and their help, and nothing of what they mean.

EXAMPLES = """
examples:
  run_bench.py --suite resnet50 --gpus 0,1        compare the precisions on each of two GPUs
  run_bench.py --suite mlp --gpus cpu             no GPU needed
  run_bench.py --suite my_model.py --quick        a model of your own (docs/adding-a-suite.md)
  run_bench.py --suite resnet20 --data folder:DIR real images: DIR/train/CLASS/*, DIR/test/CLASS/*
  run_bench.py --resume results/NAME              go on with a run that was stopped

other commands:
  run_bench.py list [--gpus]                      suites, their parameters, and precisions; what is here to run on
  run_bench.py report RUN [RUN ...]               one report over runs, also of different machines
  run_bench.py compare OLD NEW                    two runs of the same questions: what became faster or slower
  run_bench.py doctor [--gpus cpu]                test the instrument itself on this machine
"""
GPUS_HELP = "CUDA indices such as 0,1, or cpu; 0+1 and cpu+cpu train together (default: every GPU, else cpu)"


class Parser(argparse.ArgumentParser):
    """argparse, with errors as this program tells them."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of printing the usage and leaving."""
        raise UsageError(f"{message[0].upper()}{message[1:]}. See run_bench.py --help.")


def list_parser() -> Parser:
    """Return the parser of ``list``."""
    parser = Parser(prog="run_bench.py list", description="List suites and precisions.")
    parser.add_argument("--gpus", action="store_true", help="list what is here to run on, and what it can do, instead")
    return parser


def compare_parser() -> Parser:
    """Return the parser of ``compare``."""
    parser = Parser(prog="run_bench.py compare", description="Hold a run against an earlier one of the same questions.")
    for name in ("old", "new"):
        parser.add_argument(name, type=Path, metavar=name.upper(), help=f"folder of the {name} run")
    return parser


def report_parser() -> Parser:
    """Return the parser of ``report``."""
    parser = Parser(prog="run_bench.py report", description="Write the report of one run, or of several in one.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as results/NAME")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: reports/NAME)")
    parser.add_argument("--published", action="store_true", help="set published figures of the same recipes beside")
    parser.add_argument("--layers", action="store_true", help="draw the gradients' magnitudes layer by layer, too")
    parser.add_argument(
        "--figures",
        choices=("overview", "all", "none"),
        default="overview",
        help="overview (default): of many devices one figure a recipe; all: every device's own; none",
    )
    return parser


def doctor_parser() -> Parser:
    """Return the parser of ``doctor``."""
    parser = Parser(prog="run_bench.py doctor", description="Test the instrument itself on this machine.")
    parser.add_argument("--gpus", metavar="LIST", help=GPUS_HELP)
    parser.add_argument("--out", type=Path, metavar="DIR", help="keep the table there, as doctor.md and doctor.json")
    return parser


def run_parser() -> Parser:
    """Return the parser of a run, which is what is done without the name of a command."""
    parser = Parser(
        prog="run_bench.py",
        description="Does mixed precision pay here: how much faster, how much less memory, at what cost in accuracy.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--version", action="version", version=f"ampmeter {bench.__version__}", help="show it and stop")
    what = parser.add_argument_group("what to compare")
    what.add_argument("--suite", metavar="NAMES", help="suites by name or .py file, with commas between")
    what.add_argument(
        "--precisions",
        metavar="NAMES",
        help=f"of {', '.join(PRECISIONS)} (default: by device), with options as in amp-fp16:init_scale=1024,cache=off",
    )
    what.add_argument(
        "--batch-sizes",
        metavar="SIZES",
        help="such as 64,128,256, and max for the largest that fits (default: the suite's)",
    )
    what.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="a suite's parameter; repeatable"
    )
    what.add_argument(
        "--sweep",
        metavar="NAME=V1,V2",
        action="append",
        default=[],
        help="compare with each of a suite's parameter's values, such as width=4096,4097; repeatable: all combinations",
    )
    what.add_argument(
        "--weights",
        metavar="PATH",
        help="initial weights: a state dict's path, imagenet or none (default: the suite's)",
    )
    what.add_argument(
        "--techniques",
        metavar="LIST",
        help=f"of {', '.join(TECHNIQUES)} (as in grad-accumulation=4), for all precisions alike: docs/techniques.md",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--gpus", metavar="LIST", help=GPUS_HELP)
    where.add_argument("--on", metavar="ray[://HOST:PORT]", help="run on a Ray cluster (docs/clusters.md)")
    where.add_argument(
        "--accelerators",
        metavar="LIST",
        help="types on the cluster, as V100,A100; V100+V100 train together (default: one of each type)",
    )
    where.add_argument("--sync-bn", action="store_true", help="batch norm over all devices that train together")
    where.add_argument("--exclusive", action="store_true", help="refuse to start when a GPU is in use by others")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--phases",
        metavar="LIST",
        help=f"of {', '.join(SELECTABLE)} (default: memory,speed,energy,train; --quick: memory,speed; "
        "--rigorous: floor, too)",
    )
    how.add_argument(
        "--ladder",
        action="store_true",
        help="climb from fp32 over AMP, set-to-none, non-blocking and the prefetcher to what --techniques names, "
        "with a real loader, each on top of the one before that works; --precisions fp32 leaves AMP out",
    )
    how.add_argument("--epochs", metavar="N", help="epochs to train (default: the suite's short form)")
    how.add_argument("--seeds", metavar="LIST", help="seeds to train with (default: 0)")
    how.add_argument("--target-accuracy", metavar="PCT", help="tell how long training took to this test accuracy")
    how.add_argument("--clip-grad", metavar="MAXNORM", help="clip gradients to this norm when training")
    depth = how.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_true", help="one process, 3 s an arm, no training unless one of its options is given"
    )
    depth.add_argument(
        "--rigorous",
        action="store_true",
        help="ten processes instead of three, and fp32 timed against itself where speed is timed",
    )
    how.add_argument("--target-ci", metavar="SHARE", help="stop at this half-width of the 95%% interval (default: 1%%)")
    how.add_argument(
        "--time-budget", metavar="TIME", help="most time to spend timing one arm in one process (default: 10s)"
    )
    data = parser.add_argument_group("data")
    data.add_argument("--data", metavar="SOURCE", help="cifar10, synthetic or folder:PATH (default: the suite's)")
    data.add_argument(
        "--data-dir", metavar="DIR", default="data", help="for downloads and decoded images (default: data)"
    )
    result = parser.add_argument_group("results")
    result.add_argument("--out", metavar="DIR", type=Path, help="a new folder (default: results/SUITE-DEVICE-TIME)")
    result.add_argument(
        "--resume",
        metavar="DIR",
        type=Path,
        help="go on with this run; finished trials are kept, and --seeds may add to the run's own",
    )
    result.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    return parser


COMMANDS = ("run", "report", "compare", "list", "doctor")
QUICK = Protocol(replicates=1, time_budget_s=3.0)
RIGOROUS = Protocol(replicates=10)


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What was typed, checked word by word; what needs the machine to be checked is checked later."""

    name: Literal["run", "report", "compare", "list", "doctor"]
    argv: tuple[str, ...]
    suites: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    techniques: tuple[str, ...] = ()
    epochs: int | None = None
    target_accuracy_pct: float | None = None
    clip_grad: float | None = None
    seeds: tuple[int, ...] = (0,)
    data: str | None = None
    data_dir: str = "data"
    phases: tuple[str, ...] = USUAL
    largest_batch: bool = False
    """Whether ``--batch-sizes`` says max, beside the sizes that it names or alone."""
    parameters: tuple[tuple[str, str], ...] = ()
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    protocol: Protocol = Protocol()
    exclusive: bool = False
    on: str | None = None
    accelerators: tuple[str, ...] | None = None
    dry_run: bool = False
    out: Path | None = None
    resume: Path | None = None
    runs: tuple[Path, ...] = ()
    published: bool = False
    layers: bool = False
    figures: Literal["overview", "all", "none"] = "overview"
    devices: bool = False
    """Whether ``list`` is to show what there is to run on."""


def parse(argv: Sequence[str]) -> Command:
    """Parse a command line.

    Raises:
        UsageError: a word that means nothing; nothing has been touched yet.
    """
    words = list(argv)
    name = words.pop(0) if words and words[0] in COMMANDS else "run"
    if name == "list":
        return Command(name="list", argv=tuple(argv), devices=list_parser().parse_args(words).gpus)
    if name == "compare":
        given = compare_parser().parse_args(words)
        return Command(name="compare", argv=tuple(argv), runs=(given.old, given.new))
    if name == "report":
        return _parse_report(words, tuple(argv))
    if name == "doctor":
        return _parse_doctor(words, tuple(argv))
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"There is no command '{words[0]}'.{nearest(words[0], COMMANDS)} Available: {', '.join(COMMANDS)}."
        )
    return _parse_run(words, tuple(argv))


def _parse_report(words: list[str], argv: tuple[str, ...]) -> Command:
    given = report_parser().parse_args(words)
    return Command(
        name="report",
        argv=argv,
        runs=tuple(given.runs),
        out=given.out,
        published=given.published,
        layers=given.layers,
        figures=given.figures,
    )


def _parse_doctor(words: list[str], argv: tuple[str, ...]) -> Command:
    given = doctor_parser().parse_args(words)
    return Command(name="doctor", argv=argv, gpus=_placements(given.gpus), out=given.out)


def _parse_run(words: list[str], argv: tuple[str, ...]) -> Command:
    given = run_parser().parse_args(words)
    if not given.suite and not given.resume:
        raise UsageError("--suite is missing: name one, such as --suite mlp (run_bench.py list shows all).")
    if not given.suite and (extra := _beyond_resume(given)):
        raise UsageError(
            f"--resume repeats the run's own options, to which --seeds may add; to change {extra}, start a new run."
        )
    if given.out and given.resume:
        raise UsageError("--out starts a run and --resume goes on with one: give one of the two.")
    protocol = RIGOROUS if given.rigorous else QUICK if given.quick else Protocol()
    protocol = Protocol(
        replicates=protocol.replicates,
        target_ci=protocol.target_ci if given.target_ci is None else share(given.target_ci),
        time_budget_s=protocol.time_budget_s if given.time_budget is None else seconds(given.time_budget),
    )
    training = (given.epochs, given.seeds, given.target_accuracy, given.clip_grad)
    brief = given.quick and all(option is None for option in training)
    phases = ("memory", "speed") if brief else (*USUAL, "floor") if given.rigorous else USUAL
    phases = listed(given.phases, phase, "--phases") or phases
    if given.rigorous and "speed" in phases:
        phases = tuple(dict.fromkeys((*phases, "floor")))
    if given.ladder:
        phases = (*(phases if given.phases else ()), *LADDER)
    idle = [name for name in ("epochs", "target_accuracy", "clip_grad") if getattr(given, name) is not None]
    idle += ["seeds"] if given.suite and "," in (given.seeds or "") else []  # one is other phases' too
    if idle and "train" not in phases:
        said = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        why = "a ladder trains with --phases train only" if given.ladder else "--phases leaves train out"
        raise UsageError(f"{said} is for training, and {why}.")
    sizes = listed(given.batch_sizes, batch_size, "--batch-sizes")
    swept = sweep(given.sweep, given.set, sizes is not None)
    if given.data:
        DataSource.parse(given.data, given.data_dir, elsewhere=given.on is not None)
    return Command(
        name="run",
        argv=argv,
        suites=listed(given.suite, str, "--suite") or (),
        gpus=_placements(given.gpus),
        precisions=listed(given.precisions, lambda word: parse_precision(word).name, "--precisions", split),
        batch_sizes=None if sizes is None else tuple(size for size in sizes if size != MAX),
        largest_batch=MAX in (sizes or ()),
        techniques=_techniques(given.techniques, sync_bn=given.sync_bn),
        epochs=None if given.epochs is None else whole(given.epochs, "--epochs", 1),
        target_accuracy_pct=percentage(given.target_accuracy),
        clip_grad=norm(given.clip_grad),
        seeds=listed(given.seeds, lambda word: whole(word, "--seeds", 0), "--seeds") or ((0,) if given.suite else ()),
        data=given.data,
        data_dir=given.data_dir,
        phases=phases,
        parameters=parameters(given.set, given.weights),
        sweep=swept,
        protocol=protocol,
        exclusive=given.exclusive,
        on=_cluster(given.on, given.gpus, given.accelerators),
        accelerators=listed(given.accelerators, _accelerator, "--accelerators"),
        dry_run=given.dry_run,
        out=given.out,
        resume=given.resume,
    )


def _techniques(text: str | None, *, sync_bn: bool) -> tuple[str, ...]:
    words = [*([text] if text else []), *(["sync-bn"] if sync_bn else [])]
    return parse_techniques(",".join(words)) if words or text == "" else ()


def _beyond_resume(given: argparse.Namespace) -> str:
    """Name the options beside ``--resume`` that a bare one would have to ignore; empty where there are none."""
    plain = run_parser()
    words = [name for name, value in vars(given).items() if value != plain.get_default(name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in words if name not in ("resume", "dry_run", "seeds"))


def _placements(text: str | None) -> tuple[str, ...] | None:
    placements = listed(text, lambda word: Placement(name=word), "--gpus")
    if placements and any(placement.on_cluster for placement in placements):
        raise UsageError(
            f"--gpus takes GPU indices or cpu, not '{text}'; on a cluster: --on ray --accelerators {text}."
        )
    return None if placements is None else tuple(placement.name for placement in placements)


def _cluster(on: str | None, gpus: str | None, accelerators: str | None) -> str | None:
    if on is None:
        if accelerators is not None:
            raise UsageError("--accelerators is for a cluster: add --on ray, or name GPUs of this machine with --gpus.")
        return None
    if not re.fullmatch(r"ray(://[^/\s]+:\d+)?", on):
        raise UsageError(f"--on takes ray or ray://HOST:PORT, not '{on}'.")
    if gpus is not None:
        raise UsageError("--gpus names GPUs of this machine; with --on ray name types: --accelerators V100,V100+V100.")
    return on


def _accelerator(word: str) -> str:
    if not re.fullmatch(r"[A-Z][\w.+-]*", word) or not Placement(name=word).on_cluster or len({*word.split("+")}) > 1:
        raise UsageError(f"--accelerators takes types as Ray names them, such as V100 or V100,A100, not '{word}'.")
    return word
