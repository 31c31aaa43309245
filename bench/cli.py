"""The command line: words in, a frozen request out. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NoReturn, cast

from bench.spec import PRECISIONS, UsageError, nearest, parse_precision
from bench.trial import PHASES, DataSource, Phase, Placement, Protocol

COMMANDS = ("run", "report", "list")
QUICK = Protocol(replicates=1, time_budget_s=3.0)
RIGOROUS = Protocol(replicates=10)
USUAL: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase != "floor")
"""The phases that run unless ``--phases`` or ``--rigorous`` says otherwise."""

EXAMPLES = """
examples:
  run_bench.py --suite resnet50 --gpus 0,1        compare the precisions on each of two GPUs
  run_bench.py --suite mlp --gpus cpu             no GPU needed
  run_bench.py --suite my_model.py --quick        a model of your own (docs/adding-a-suite.md)
  run_bench.py --suite resnet20 --data folder:DIR real images: DIR/train/CLASS/*, DIR/test/CLASS/*
  run_bench.py --resume results/NAME              go on with a run that was stopped

other commands:
  run_bench.py list                               suites, their parameters, and precisions
  run_bench.py report RUN [RUN ...]               one report over runs, also of different machines
"""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What was typed, checked word by word; what needs the machine to be checked is checked later."""

    name: Literal["run", "report", "list"]
    argv: tuple[str, ...]
    suites: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    epochs: int | None = None
    seeds: tuple[int, ...] = (0,)
    data: str | None = None
    data_dir: str = "data"
    phases: tuple[Phase, ...] = USUAL
    parameters: tuple[tuple[str, str], ...] = ()
    protocol: Protocol = Protocol()
    exclusive: bool = False
    dry_run: bool = False
    out: Path | None = None
    resume: Path | None = None
    runs: tuple[Path, ...] = ()


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise UsageError(f"{message[0].upper()}{message[1:]}. See run_bench.py --help.")


def parse(argv: Sequence[str]) -> Command:
    """Parse a command line.

    Raises:
        UsageError: a word that means nothing; nothing has been touched yet.
    """
    words = list(argv)
    name = words.pop(0) if words and words[0] in COMMANDS else "run"
    if name == "list":
        _Parser(prog="run_bench.py list", description="List suites and precisions.").parse_args(words)
        return Command(name="list", argv=tuple(argv))
    if name == "report":
        return _parse_report(words, tuple(argv))
    if words and not words[0].startswith("-"):
        raise UsageError(
            f"There is no command '{words[0]}'.{nearest(words[0], COMMANDS)} Available: {', '.join(COMMANDS)}."
        )
    return _parse_run(words, tuple(argv))


def _parse_report(words: list[str], argv: tuple[str, ...]) -> Command:
    parser = _Parser(prog="run_bench.py report", description="Write the report of one run, or of several in one.")
    parser.add_argument("runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as results/NAME")
    parser.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: reports/NAME)")
    given = parser.parse_args(words)
    return Command(name="report", argv=argv, runs=tuple(given.runs), out=given.out)


def _parse_run(words: list[str], argv: tuple[str, ...]) -> Command:
    given = _run_parser().parse_args(words)
    if not given.suite and not given.resume:
        raise UsageError("--suite is missing: name one, such as --suite mlp (run_bench.py list shows all).")
    if not given.suite and (extra := _beyond_resume(given)):
        raise UsageError(
            f"--resume alone repeats the run's own options; to change {extra}, name --suite and all the rest."
        )
    if given.out and given.resume:
        raise UsageError("--out starts a run and --resume goes on with one: give one of the two.")
    protocol = RIGOROUS if given.rigorous else QUICK if given.quick else Protocol()
    protocol = Protocol(
        replicates=protocol.replicates,
        target_ci=protocol.target_ci if given.target_ci is None else _share(given.target_ci),
        time_budget_s=protocol.time_budget_s if given.time_budget is None else _seconds(given.time_budget),
    )
    brief = given.quick and given.epochs is None and given.seeds is None
    phases = ("memory", "speed") if brief else PHASES if given.rigorous else USUAL
    if given.data:
        DataSource.parse(given.data, given.data_dir)
    return Command(
        name="run",
        argv=argv,
        suites=_listed(given.suite, str, "--suite") or (),
        gpus=_listed(given.gpus, lambda word: Placement(name=word).name, "--gpus"),
        precisions=_listed(given.precisions, parse_precision, "--precisions"),
        batch_sizes=_listed(given.batch_sizes, lambda word: _whole(word, "--batch-sizes", 1), "--batch-sizes"),
        epochs=None if given.epochs is None else _whole(given.epochs, "--epochs", 1),
        seeds=_listed(given.seeds, lambda word: _whole(word, "--seeds", 0), "--seeds") or (0,),
        data=given.data,
        data_dir=given.data_dir,
        phases=cast("tuple[Phase, ...] | None", _listed(given.phases, _phase, "--phases")) or phases,
        parameters=tuple(_assignment(word) for word in given.set),
        protocol=protocol,
        exclusive=given.exclusive,
        dry_run=given.dry_run,
        out=given.out,
        resume=given.resume,
    )


def _beyond_resume(given: argparse.Namespace) -> str:
    """Name the options beside ``--resume`` that a bare one would have to ignore; empty where there are none."""
    plain = _run_parser()
    words = [name for name, value in vars(given).items() if value != plain.get_default(name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in words if name not in ("resume", "dry_run"))


def _run_parser() -> _Parser:
    parser = _Parser(
        prog="run_bench.py",
        description="Does mixed precision pay here: how much faster, how much less memory, at what cost in accuracy.",
        epilog=EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    what = parser.add_argument_group("what to compare")
    what.add_argument("--suite", metavar="NAMES", help="suites by name or .py file, with commas between")
    what.add_argument("--precisions", metavar="NAMES", help=f"of {', '.join(PRECISIONS)} (default: by device)")
    what.add_argument("--batch-sizes", metavar="SIZES", help="such as 64,128,256 (default: the suite's)")
    what.add_argument(
        "--set", metavar="NAME=VALUE", action="append", default=[], help="a suite's parameter; repeatable"
    )
    where = parser.add_argument_group("where")
    where.add_argument("--gpus", metavar="LIST", help="CUDA indices such as 0,1, or cpu (default: every GPU, else cpu)")
    where.add_argument("--exclusive", action="store_true", help="refuse to start when a GPU is in use by others")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--phases",
        metavar="LIST",
        help=f"of {', '.join(PHASES)} (default: all but floor; --quick: memory,speed; --rigorous: all)",
    )
    how.add_argument("--epochs", metavar="N", help="epochs to train (default: the suite's short form)")
    how.add_argument("--seeds", metavar="LIST", help="seeds to train with (default: 0)")
    depth = how.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_true", help="one process, 3 s an arm, no training unless --epochs or --seeds is given"
    )
    depth.add_argument(
        "--rigorous", action="store_true", help="ten processes instead of three, and fp32 timed against itself"
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
    result.add_argument("--resume", metavar="DIR", type=Path, help="go on with this run; finished trials are kept")
    result.add_argument("--dry-run", action="store_true", help="show the plan and stop")
    return parser


def _listed(text: str | None, convert: Callable[[str], Any], option: str) -> tuple[Any, ...] | None:
    """Split at commas, convert each word, and drop repetitions."""
    if text is None:
        return None
    words = [word.strip() for word in text.split(",")]
    if not all(words):
        raise UsageError(f"{option} has an empty word in '{text}': put one comma between two values.")
    return tuple(dict.fromkeys(convert(word) for word in words))


def _whole(word: str, option: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", word) or int(word) < least:
        raise UsageError(f"{option} takes whole numbers from {least} to 999999999, not '{word}'.")
    return int(word)


def _share(word: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", word)
    if match is None:
        raise UsageError(f"--target-ci takes a share such as 1% or 0.01, not '{word}'.")
    return float(match[1]) / (100 if match[2] else 1)


def _seconds(word: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|m|h|)", word)
    if match is None:
        raise UsageError(f"--time-budget takes a time such as 10s, 2m or 1h, not '{word}'.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _phase(word: str) -> str:
    if word not in PHASES:
        raise UsageError(f"There is no phase '{word}'.{nearest(word, PHASES)} Available: {', '.join(PHASES)}.")
    return word


def _assignment(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"--set takes NAME=VALUE, not '{word}'.")
    return name, value
