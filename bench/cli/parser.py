"""The command line: words in, checked options out.

Imports nothing heavy, so that --help is instant.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn

import bench
from bench.cli.commands import Command, optional_commands
from bench.spec.errors import UsageError, nearest
from bench.spec.options import Option
from bench.spec.phases import DEFAULT_PHASES, PHASES
from bench.spec.protocol import Protocol
from bench.spec.request import MAX, Request

QUICK = Protocol(
    replicates=1,
    most_replicates=1,
    time_budget_s=3.0,
    fewest_rounds=5,
)
RIGOROUS = Protocol(
    replicates=10,
    most_replicates=20,
    target_ci=0.005,
    time_budget_s=200.0,
)
PROTOCOL_FIELDS = {field.name for field in fields(Protocol)}
REQUEST_FIELDS = {field.name for field in fields(Request)}
EXAMPLES = """
examples:
  run_bench.py --suite resnet50 --gpus 0,1        compare precisions on each of two GPUs
  run_bench.py --suite mlp --gpus cpu             no GPU needed
  run_bench.py --suite my_model.py --quick        a model of your own (docs/adding-a-suite.md)
  run_bench.py --suite resnet20 --data folder:DIR real images: DIR/train/CLASS/*, DIR/test/CLASS/*
  run_bench.py --suite timm:vit_tiny_patch16_224  a model of timm, or torchvision:NAME, hf:NAME
  run_bench.py --suite gpt --data text:FILE       a transformer on the bytes of a text of your own
  run_bench.py --resume results/NAME              go on with a run that was stopped

other commands:
  run_bench.py list [--gpus]                      suites and precisions; the devices here
  run_bench.py report RUN [RUN ...]               one report over runs, also of different machines
"""
# Users of torchrun and accelerate name their script first.
SCRIPT_HINT = (
    " A training script and its options come after --, as in script --inject fp32,amp-bf16 -- "
    "train.py."
)
# Options that are no field of a request, but change several or one of a suite, after the field that
# they follow in the help.
SHORTHANDS = {
    "sweep": {
        "weights": Option(
            "initial weights: a state dict's path, imagenet, pretrained or none (default: the "
            "suite's)",
            "PATH",
        )
    },
    "phases": {
        name: Option(phase.help, repeated="same") for name, phase in PHASES.items() if phase.help
    },
    "quick": {
        "rigorous": Option(
            "ten processes at least, up to ±0.5 %% (--target-ci), and fp32 timed against itself "
            "where speed is timed"
        ),
    },
}


def parse(argv: Sequence[str]) -> Any:
    """Parse a command line.

    Returns:
        A ``Request`` for a run; for the other commands an ``argparse.Namespace`` with their name as
        ``command``.

    Raises:
        UsageError: a word is invalid; nothing has been written yet.
    """
    if not argv or argv[0].startswith("-"):  # a run is the command without a name
        return parse_run(argv)
    name, *options = argv
    optional = optional_commands()
    parsers = command_parsers(optional)
    if name not in parsers:
        hint = SCRIPT_HINT if name.endswith(".py") else nearest(name, parsers)
        raise UsageError(
            f"There is no command '{name}'.{hint} Available: {', '.join(parsers)}; a run needs "
            "none, as in run_bench.py --suite mlp."
        )
    own_words = []
    if name in optional:
        command = optional[name]
        request = command.start(options)
        if request is not None:
            return request
        if command.takes_words and "--" in options:
            mark = options.index("--")
            own_words = options[mark + 1 :]
            options = options[:mark]
    given = argparse.Namespace(command=name, argv=tuple(argv), words=tuple(own_words))
    return parsers[name].parse_args(options, given)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UsageErrors, and whose options are typed whole."""

    def __init__(self, **options: Any) -> None:
        # An abbreviation may mean another option once there are more of them.
        super().__init__(allow_abbrev=False, **options)

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of printing the usage and exiting."""
        hint = ""
        if message.startswith("unrecognized"):
            _, _, words = message.partition(": ")
            hint = nearest(words.partition(" ")[0], self._option_string_actions)
            if ".py" in words:
                hint = SCRIPT_HINT
        raise UsageError(f"{message[0].upper()}{message[1:]}.{hint} See {self.prog} --help.")


def command_parsers(found: Mapping[str, Command]) -> dict[str, Parser]:
    """Return the parsers of ``report``, ``list`` and the commands that were found, by name."""
    report = Parser(
        prog="run_bench.py report", description="Write the report of one run, or of several in one."
    )
    runs = "folder of a run, such as results/NAME, or of runs"
    report.add_argument(
        "runs",
        nargs="+",
        type=Path,
        metavar="RUN",
        help=runs,
    )
    where = report.add_mutually_exclusive_group()
    where.add_argument(
        "--out",
        type=Path,
        metavar="DIR",
        help="where to write it (default: reports/NAME)",
    )
    where.add_argument(
        "--json",
        action="store_true",
        help="print its figures and the raw samples instead, as JSON",
    )
    report.add_argument(
        "--published",
        action="store_true",
        help="show figures from the literature, too, in a table",
    )
    report.add_argument(
        "--figures",
        choices=("overview", "all", "none"),
        default="overview",
        help=(
            "overview (default): of many devices one figure a recipe; all: every device's own; none"
        ),
    )
    listing = Parser(prog="run_bench.py list", description="List suites and precisions.")
    listing.add_argument(
        "pattern",
        nargs="?",
        help="list the models of a library instead, as in 'timm:resnet*', 'torchvision:*', 'hf:*'",
    )
    listing.add_argument(
        "--gpus",
        action="store_true",
        help="list what is here to run on, and what it can do, instead",
    )
    listing.add_argument("--json", action="store_true", help="as JSON")
    parsers = {"report": report, "list": listing}
    for name, command in found.items():
        description = f"{command.help[0].upper()}{command.help[1:]}."
        parsers[name] = Parser(prog=f"run_bench.py {name}", description=description)
        command.add_arguments(parsers[name])
    return parsers


def run_options() -> dict[str, Option]:
    """Return the options of a run in the order of the help, by the field that each sets.

    A shorthand stands there by its own name.
    """
    options = {}
    for each in fields(Request):
        parts: Sequence[Any] = [each]
        if each.name == "protocol":  # its fields are options of the same command line
            parts = fields(Protocol)
        for part in parts:
            if "option" in part.metadata:
                options[part.name] = part.metadata["option"]
        options |= SHORTHANDS.get(each.name, {})
    return options


def option_name(field: str, option: Option) -> str:
    """Return an option as it is typed."""
    return option.name or f"--{field.replace('_', '-')}"


def add_option(group: Any, field: str, option: Option) -> None:
    """Add an option to a parser or to a group of it."""
    name = option_name(field, option)
    takes = {}
    action = "store_true"
    if option.metavar:
        action = "append" if option.repeatable else "store"
        takes = {"metavar": option.metavar, "type": partial(option.read, name)}
    group.add_argument(name, dest=field, help=option.help, action=action, **takes)


def run_parser() -> Parser:
    """Return the parser of a run, the command without a name.

    Options that are not given are not in its result.
    """
    commands = ""
    for command in optional_commands().values():
        commands += f"  run_bench.py {command.synopsis:<33}  {command.help}\n"
    parser = Parser(
        prog="run_bench.py",
        description=(
            "Does mixed precision pay here: how much faster, how much less memory, at what cost "
            "in accuracy."
        ),
        epilog=EXAMPLES + commands,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        argument_default=argparse.SUPPRESS,
    )
    version = f"ampmeter {bench.__version__}"
    parser.add_argument("--version", action="version", version=version, help="show it and stop")
    group: Any = parser
    for field, option in run_options().items():
        if option.group:
            group = parser.add_argument_group(option.group)
        if field == "quick":
            depth = group.add_mutually_exclusive_group()
        add_option(depth if field in ("quick", "rigorous") else group, field, option)
    return parser


def parse_run(argv: Sequence[str], phases: Sequence[str] = ()) -> Request:
    """Parse the options of a run and check them against each other.

    Args:
        argv: the command line, which may begin with the name of a command that has these options.
        phases: what that command measures unless ``--phases`` is given; the last of them is always
        measured.

    Raises:
        UsageError: an option is invalid, or contradicts another one.
    """
    words = list(argv)
    if words and not words[0].startswith("-"):
        del words[0]
    given = vars(run_parser().parse_args(words))
    if "suites" not in given:
        _check_resumed(given)
    elif phases:
        asked = given.get("phases", phases)
        given["phases"] = tuple(dict.fromkeys((*asked, phases[-1])))
    _check_place(given)
    sizes = given.get("batch_sizes", ())
    if MAX in sizes:  # no size yet: it is searched for
        given["batch_sizes"] = tuple(size for size in sizes if size != MAX)
        given["largest_batch"] = True
    given["phases"] = _phases(given)
    given["parameters"] = _parameters(given)
    given["sweep"] = tuple(given.get("sweep", ()))
    return make_request(argv, given)


def _check_resumed(given: Mapping[str, Any]) -> None:
    """Refuse options without a suite that are not those of ``--resume``."""
    if "resume" not in given:
        raise UsageError(
            "--suite is missing: name one, such as --suite mlp (run_bench.py list shows all)."
        )
    # Options that change the question would leave a run with rows of two.
    others = []
    for name, option in run_options().items():
        if name in given and not option.with_resume:
            others.append(option_name(name, option))
    if others:
        raise UsageError(
            "--resume repeats the run's own options, to which --seeds may add; --trial-timeout "
            f"and --within are free; to change {', '.join(others)}, start a new run."
        )


def _check_place(given: Mapping[str, Any]) -> None:
    """Refuse what is for this machine together with what is for a cluster."""
    if "on" not in given:
        if "accelerators" in given:
            raise UsageError(
                "--accelerators is for a cluster: add --on ray, or name GPUs of this machine with "
                "--gpus."
            )
        return
    if "gpus" in given:
        raise UsageError(
            "--gpus names GPUs of this machine; with --on ray name types: --accelerators "
            "V100,V100+V100."
        )
    if "keep_checkpoints" in given or "start" in given:
        raise UsageError(
            "A cluster's nodes keep no checkpoints: leave out --keep-checkpoints and --from, or "
            "--on."
        )


def make_request(argv: Sequence[str], given: dict[str, Any]) -> Request:
    """Return the request for options of a run, with the protocol of its depth."""
    if "out" in given and "resume" in given:
        raise UsageError("--out starts a run and --resume continues one: give one of the two.")
    depth = Protocol()
    if "rigorous" in given:
        depth = RIGOROUS
    elif "quick" in given:
        depth = QUICK
    # Other names, such as ``quick``, are no field of either.
    of_protocol = {name: given[name] for name in PROTOCOL_FIELDS & given.keys()}
    of_request = {name: given[name] for name in REQUEST_FIELDS & given.keys()}
    of_request["argv"] = tuple(argv)
    of_request["protocol"] = replace(depth, **of_protocol)
    return Request(**of_request)


def _phases(given: dict[str, Any]) -> tuple[str, ...]:
    """Return the phases of a run: those named, or of its depth, and those that options add.

    Raises:
        UsageError: an option is for training, and no phase trains.
    """
    options = run_options()
    of_training = []
    for name in given:
        if name in options and options[name].of_training:
            of_training.append(name)
    added = [name for name, phase in PHASES.items() if phase.help and name in given]
    phases: tuple[str, ...] = DEFAULT_PHASES
    if "phases" in given:
        phases = given["phases"]
    elif added:  # such as --ladder: it is measured alone
        phases = ()
    elif "quick" in given and "seeds" not in given and not of_training:
        phases = ("memory", "speed")
    if "rigorous" in given and "speed" in phases:
        added.append("floor")
    phases = tuple(dict.fromkeys((*phases, *added)))
    # An option of training that no phase uses would be ignored in silence.
    if any(PHASES[name].uses_epochs for name in phases):
        return phases
    has_seeds = any(PHASES[name].key == "seed" for name in phases)
    if len(given.get("seeds", ())) > 1 and not has_seeds:
        of_training.append("seeds")  # a single one serves other phases, too
    if of_training:
        names = ", ".join(option_name(name, options[name]) for name in of_training)
        raise UsageError(f"{names} is for training: add train to --phases.")
    return phases


def _parameters(given: dict[str, Any]) -> tuple[tuple[str, str], ...]:
    """Return the suites' parameters: those of ``--set``, and ``--weights`` with an absolute path.

    Raises:
        UsageError: one has two values, or is swept, too.
    """
    parameters = [*given.get("parameters", ())]
    sweep = given.get("sweep", ())
    if "weights" in given:
        weights = given["weights"]
        if weights not in ("none", "imagenet", "pretrained"):
            # --resume may be typed in another folder, where a relative path names another file.
            weights = str(Path(weights).resolve())
        parameters.append(("weights", weights))
    named = [name for name, _ in (*parameters, *sweep)]
    if "batch_sizes" in given and "batch_size" in dict(sweep):
        named.append("batch_size")
    for name in named:
        if named.count(name) > 1:
            raise UsageError(f"{name} is set twice: give one of --set, --sweep and its own option.")
    return tuple(parameters)
