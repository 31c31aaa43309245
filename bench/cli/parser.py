"""The command line: words in, checked options out. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NoReturn

import bench
from bench.spec.errors import UsageError, nearest
from bench.spec.phases import EXPLAIN, LADDER, SELECTABLE, USUAL
from bench.spec.precisions import BASELINE, PRECISIONS, parse_precision, split
from bench.spec.techniques import TECHNIQUES, parse_techniques
from bench.spec.trial import EVERY_GPU, DataSource, Placement, Protocol, Request

QUICK = Protocol(replicates=1, most_replicates=1, time_budget_s=3.0, fewest_rounds=5)
RIGOROUS = Protocol(replicates=10, most_replicates=20, target_ci=0.005, time_budget_s=200.0)
MAX = "max"
"""Among the batch sizes: the largest that fits."""
TRY = "--try"
NUMBER = r"(\d+(?:\.\d*)?|\.\d+)"
EXAMPLES = """
examples:
  run_bench.py --suite resnet50 --gpus 0,1        compare the precisions on each of two GPUs (all: of all)
  run_bench.py --suite mlp --gpus cpu             no GPU needed
  run_bench.py --suite my_model.py --quick        a model of your own (docs/adding-a-suite.md)
  run_bench.py --suite resnet20 --data folder:DIR real images: DIR/train/CLASS/*, DIR/test/CLASS/*
  run_bench.py --suite gpt --data text:FILE       a transformer on the bytes of a text of your own
  run_bench.py --resume results/NAME              go on with a run that was stopped

other commands:
  run_bench.py explain --suite NAMES              why mixed precision pays here, or does not; also: explain RUN
  run_bench.py list [--gpus]                      suites, their parameters, and precisions; what is here to run on
  run_bench.py report RUN [RUN ...]               one report over runs, also of different machines
  run_bench.py compare OLD NEW                    runs of the same questions: what improved, what regressed
  run_bench.py doctor [--gpus cpu]                test the instrument itself on this machine
"""
EXPLAIN_EXAMPLES = """
examples:
  run_bench.py explain --suite resnet50 --gpus 0   measure, then say why each precision gains, or does not
  run_bench.py explain --suite mlp --quick         the same in one process
  run_bench.py explain results/NAME                say it again of a run that was explained
"""
PAGE = ("published", "layers", "figures")
"""Options that say what is on the page of a report."""
RESUMABLE = ("resume", "dry_run", "seeds", "trial_timeout")
"""Options that may be given with a bare ``--resume``."""
EXPORTS = ("github-action-benchmark", "openmetrics", "mllog")
"""Formats of other tools, the functions of ``bench.report.exports.formats``."""
GPUS_HELP = "CUDA indices such as 0,1, all, or cpu; 0+1 and cpu+cpu train together (default: every GPU, else cpu)"


def parse(argv: Sequence[str]) -> Any:
    """Parse a command line.

    Returns:
        A ``Request`` for a run; for the other commands an ``argparse.Namespace`` with their name as ``command``.

    Raises:
        UsageError: a word is invalid; nothing has been written yet.
    """
    if not argv or argv[0].startswith("-"):
        return parse_run(argv)
    name, words = argv[0], argv[1:]
    parsers = _command_parsers()
    if name not in ("run", *parsers):
        raise UsageError(
            f"There is no command '{name}'.{nearest(name, parsers)} Available: {', '.join(parsers)}; a run needs "
            "none, as in run_bench.py --suite mlp."
        )
    if name == "run":
        return parse_run(words)
    if name == "explain":
        first = next((word for word in words if word != TRY), "-")
        if first.startswith("-"):
            return _parse_explained_run(words)
        if TRY in words:
            raise UsageError(
                f"{TRY} goes on with a run, by --resume: run_bench.py explain --resume {shlex.quote(first)} {TRY}."
            )
    options = parsers[name].parse_args(words, argparse.Namespace(command=name))
    changed = [one for one in PAGE if getattr(options, one, None) != parsers[name].get_default(one)]
    if name == "report" and (options.json or options.export) and changed:
        prints = "--json" if options.json else "--export"
        raise UsageError(f"{prints} writes no page: leave out {', '.join(map(_option, changed))}.")
    if name == "report" and options.anonymise and not (options.out or options.json or options.export):
        raise UsageError("--anonymise needs --out DIR: without it the report's folder is named after the runs.")
    return options


def _parse_explained_run(argv: Sequence[str]) -> Request:
    """Parse ``explain`` with the options of a run: the phases are others, and the explain phase is among them.

    The request has the words of a run with these phases, so that whatever repeats a run repeats it.

    Raises:
        UsageError: an option is invalid, or the precisions leave nothing to explain.
    """
    options = run_parser(explained=True).parse_args(argv)
    if (named := options.precisions) and (BASELINE not in named or len(named) == 1):
        others = [name for name in named if name != BASELINE] or ["amp-bf16"]
        raise UsageError(
            f"explain compares {BASELINE} with another precision, and --precisions names only {', '.join(named)}: "
            f"name both, as in --precisions {','.join((BASELINE, *others))}."
        )
    words = [word for word in argv if word != TRY]
    if options.suite:
        phases = dict.fromkeys((*(options.phases or EXPLAIN), "explain"))
        words += ["--phases", ",".join(phases)]
    return replace(parse_run(words), tries=options.tries)


def parse_ladder(request: Request, precision: str, techniques: Sequence[str], out: Path) -> Request:
    """Return the request for a ladder from fp32 to a precision and to more techniques than a request has.

    Its words are those of that request, with others for these and for the folder.

    Raises:
        UsageError: it cannot be climbed with the other options of that request.
    """
    more = {
        "--phases": "memory",
        "--precisions": f"{BASELINE},{precision}",
        "--techniques": ",".join(dict.fromkeys((*request.techniques, *techniques))),
        "--out": str(out),
    }
    replaced = Parser(add_help=False)
    for name in (*more, "--resume"):
        replaced.add_argument(name)
    _, words = replaced.parse_known_args(request.argv)
    ladder = parse_run([*words, "--ladder", *(word for pair in more.items() for word in pair)])
    return replace(ladder, suites=request.suites)


class Parser(argparse.ArgumentParser):
    """An ArgumentParser whose errors are UsageErrors."""

    def error(self, message: str) -> NoReturn:
        """Raise a UsageError instead of printing the usage and exiting."""
        raise UsageError(f"{message[0].upper()}{message[1:]}. See run_bench.py --help.")


def _command_parsers() -> dict[str, Parser]:
    """Return the parsers of all commands but a run, by their names."""
    report = Parser(prog="run_bench.py report", description="Write the report of one run, or of several in one.")
    report.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run, such as results/NAME, or of runs"
    )
    where = report.add_mutually_exclusive_group()
    where.add_argument("--out", type=Path, metavar="DIR", help="where to write it (default: reports/NAME)")
    where.add_argument("--json", action="store_true", help="print its figures and the raw samples instead, as JSON")
    where.add_argument("--export", choices=EXPORTS, help="print its figures instead, in the format of another tool")
    report.add_argument("--published", action="store_true", help="set published figures of the same recipes beside")
    report.add_argument("--layers", action="store_true", help="draw the gradients' magnitudes layer by layer, too")
    report.add_argument(
        "--anonymise",
        action="store_true",
        help="leave out host names, user names, paths, UUIDs and names of processes, so that it can be shared",
    )
    report.add_argument(
        "--figures",
        choices=("overview", "all", "none"),
        default="overview",
        help="overview (default): of many devices one figure a recipe; all: every device's own; none",
    )
    compare = Parser(
        prog="run_bench.py compare",
        description="Compare runs with earlier ones of the same questions. "
        "Exit codes: 0 done; 1 --fail-over found a regression; 2 it cannot be done.",
    )
    for name in ("old", "new"):
        compare.add_argument(name, type=Path, metavar=name.upper(), help=f"folder of the {name} run, or of {name} runs")
    compare.add_argument(
        "--fail-over",
        metavar="SHARE",
        type=_over,
        help="exit with 1 where a step's time, memory or energy is shown to have grown by more, such as 3%%; also "
        "where accuracy is shown to be lost, or something no longer runs",
    )
    form = compare.add_mutually_exclusive_group()
    form.add_argument("--json", action="store_true", help="print it as JSON")
    form.add_argument("--markdown", action="store_true", help="print it as markdown")
    form.add_argument("--html", action="store_true", help="print it as a page")
    explain = Parser(
        prog="run_bench.py explain",
        description="Say why each precision of runs gains, or does not. With the options of a run, measure it first: "
        "run_bench.py explain --help.",
    )
    explain.add_argument(
        "runs", nargs="+", type=Path, metavar="RUN", help="folder of a run with the phase explain, or of such runs"
    )
    listing = Parser(prog="run_bench.py list", description="List suites and precisions.")
    listing.add_argument("--gpus", action="store_true", help="list what is here to run on, and what it can do, instead")
    listing.add_argument("--json", action="store_true", help="as JSON")
    doctor = Parser(prog="run_bench.py doctor", description="Test the instrument itself on this machine.")
    doctor.add_argument("--gpus", metavar="LIST", type=_placements, help=GPUS_HELP)
    doctor.add_argument("--out", type=Path, metavar="DIR", help="keep the table there, as doctor.md and doctor.json")
    return {"report": report, "compare": compare, "explain": explain, "list": listing, "doctor": doctor}


def run_parser(*, recorded: bool = False, explained: bool = False) -> Parser:
    """Return the parser of a run, the command without a name.

    Args:
        recorded: for words without those that start no run.
        explained: with the help of ``explain``.
    """
    usual = ",".join(EXPLAIN) if explained else f"{','.join(USUAL)}; --quick: memory,speed"
    asks = "Does mixed precision pay here: how much faster, how much less memory, at what cost in accuracy."
    parser = Parser(
        prog="run_bench.py explain" if explained else "run_bench.py",
        description="Why does mixed precision pay here, or not: measures it, then prints where a step's time goes in "
        "each precision, and what holds it back."
        if explained
        else asks,
        epilog=EXPLAIN_EXAMPLES if explained else EXAMPLES,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        add_help=not recorded,
    )
    if not recorded:
        version = f"ampmeter {bench.__version__}"
        parser.add_argument("--version", action="version", version=version, help="show it and stop")
    what = parser.add_argument_group("what to compare")
    what.add_argument("--suite", metavar="NAMES", type=_suites, help="suites by name or .py file, with commas between")
    what.add_argument(
        "--precisions",
        metavar="NAMES",
        type=_precisions,
        help=f"of {', '.join(PRECISIONS)} (default: by device), with options as in amp-fp16:init_scale=1024,cache=off",
    )
    what.add_argument(
        "--batch-sizes",
        metavar="SIZES",
        type=_batch_sizes,
        help="such as 64,128,256, and max for the largest that fits (default: the suite's)",
    )
    what.add_argument(
        "--set",
        metavar="NAME=VALUE",
        type=_assignment,
        action="append",
        default=[],
        help="a suite's parameter; repeatable",
    )
    what.add_argument(
        "--sweep",
        metavar="NAME=V1,V2",
        type=_sweep,
        action="append",
        default=[],
        help="compare with each of a suite's parameter's values, such as width=4096,4097; repeatable: all combinations",
    )
    what.add_argument(
        "--weights",
        metavar="PATH",
        type=_weights,
        help="initial weights: a state dict's path, imagenet or none (default: the suite's)",
    )
    what.add_argument(
        "--techniques",
        metavar="LIST",
        type=parse_techniques,
        help=f"of {', '.join(TECHNIQUES)} (as in grad-accumulation=4), for all precisions alike: docs/techniques.md",
    )
    where = parser.add_argument_group("where")
    where.add_argument("--gpus", metavar="LIST", type=_placements, help=GPUS_HELP)
    where.add_argument(
        "--on", metavar="ray[://HOST:PORT]", type=_cluster, help="run on a Ray cluster (docs/clusters.md)"
    )
    where.add_argument(
        "--accelerators",
        metavar="LIST",
        type=_accelerators,
        help="types on the cluster, as V100,A100; V100+V100 train together (default: one of each type)",
    )
    where.add_argument("--sync-bn", action="store_true", help="batch norm over all devices that train together")
    where.add_argument("--exclusive", action="store_true", help="refuse to start when a GPU is in use by others")
    how = parser.add_argument_group("how")
    how.add_argument(
        "--phases",
        metavar="LIST",
        type=_phase_names,
        help=f"of {', '.join(SELECTABLE)} (default: {usual}; --rigorous: floor, too)",
    )
    how.add_argument(
        "--ladder",
        action="store_true",
        help="climb from fp32 over AMP, set-to-none, non-blocking and the prefetcher to what --techniques names, "
        "with a real loader, each on top of the one before that works; --precisions fp32 leaves AMP out",
    )
    if explained:
        how.add_argument(
            TRY,
            dest="tries",
            action="store_true",
            help="then climb a ladder to the techniques that the reasons point at, to measure what they bring",
        )
    how.add_argument("--epochs", metavar="N", type=_epochs, help="epochs to train (default: the suite's short form)")
    how.add_argument(
        "--seeds", metavar="LIST", type=_seeds, help="seeds to train with (default: the suite's, usually 0)"
    )
    how.add_argument(
        "--target-accuracy", metavar="PCT", type=_percentage, help="tell how long training took to this test accuracy"
    )
    how.add_argument("--clip-grad", metavar="MAXNORM", type=_norm, help="clip gradients to this norm when training")
    depth = how.add_mutually_exclusive_group()
    depth.add_argument(
        "--quick", action="store_true", help="one process, 3 s an arm, no training unless one of its options is given"
    )
    depth.add_argument(
        "--rigorous",
        action="store_true",
        help="ten processes at least, up to ±0.5 %% (--target-ci), and fp32 timed against itself where speed is timed",
    )
    how.add_argument(
        "--target-ci",
        metavar="SHARE",
        type=_share,
        help="go on to this half-width of the 95%% interval, such as 1%% (default: until it is decided what is faster)",
    )
    how.add_argument(
        "--time-budget",
        metavar="TIME",
        type=_duration_s,
        help="most time to spend timing an arm in one comparison, all processes together (default: 30s)",
    )
    how.add_argument(
        "--trial-timeout",
        metavar="TIME",
        type=_timeout_s,
        help="end a trial whose process says nothing for so long, such as 5m (default: ten times the longest silence "
        "that is expected, 10m at least; 30m while compiling, searching the largest batch or training on several "
        "devices)",
    )
    data = parser.add_argument_group("data")
    data.add_argument(
        "--data",
        metavar="SOURCE",
        help="cifar10, digits, markov, synthetic, folder:PATH or text:FILE (default: the suite's)",
    )
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


def parse_run(argv: Sequence[str], *, recorded: bool = False) -> Request:
    """Parse the options of a run, and check them against each other.

    Args:
        argv: the options.
        recorded: whether they are those of a run that was started with them.

    Raises:
        UsageError: an option is invalid, or contradicts another one.
    """
    parser = run_parser(recorded=recorded)
    options = parser.parse_args(argv)
    if not options.suite and not options.resume:
        raise UsageError("--suite is missing: name one, such as --suite mlp (run_bench.py list shows all).")
    others = [name for name, value in vars(options).items() if value != parser.get_default(name)]
    if not options.suite and (extra := [name for name in others if name not in RESUMABLE]):
        raise UsageError(
            "--resume repeats the run's own options, to which --seeds may add and --trial-timeout is free; to change "
            f"{', '.join(map(_option, extra))}, start a new run."
        )
    if options.out and options.resume:
        raise UsageError("--out starts a run and --resume continues one: give one of the two.")
    if options.accelerators is not None and options.on is None:
        raise UsageError("--accelerators is for a cluster: add --on ray, or name GPUs of this machine with --gpus.")
    if options.gpus is not None and options.on is not None:
        raise UsageError("--gpus names GPUs of this machine; with --on ray name types: --accelerators V100,V100+V100.")
    if options.data:
        DataSource.parse(options.data, options.data_dir, elsewhere=options.on is not None)
    sizes, depth = options.batch_sizes, RIGOROUS if options.rigorous else QUICK if options.quick else Protocol()
    technique_words = [*(options.techniques or ()), *(("sync-bn",) if options.sync_bn else ())]
    return Request(
        argv=tuple(argv),
        suites=options.suite or (),
        parameters=_parameters(options),
        sweep=_sweeps(options),
        precisions=options.precisions,
        batch_sizes=None if sizes is None else tuple(size for size in sizes if size != MAX),
        largest_batch=MAX in (sizes or ()),
        techniques=parse_techniques(",".join(technique_words)) if technique_words else (),
        gpus=options.gpus,
        on=options.on,
        accelerators=options.accelerators,
        exclusive=options.exclusive,
        phases=_phases(options),
        protocol=replace(
            depth,
            target_ci=depth.target_ci if options.target_ci is None else options.target_ci,
            time_budget_s=depth.time_budget_s if options.time_budget is None else options.time_budget,
        ),
        epochs=options.epochs,
        seeds=options.seeds,
        target_accuracy_pct=options.target_accuracy,
        clip_grad=options.clip_grad,
        trial_timeout_s=options.trial_timeout,
        data=options.data,
        data_dir=options.data_dir,
        out=options.out,
        resume=options.resume,
        dry_run=options.dry_run,
    )


def _option(name: str) -> str:
    return f"--{name.replace('_', '-')}"


def _phases(options: argparse.Namespace) -> tuple[str, ...]:
    """Return the phases of a run: those of ``--phases`` or of its depth, and those that other options add."""
    training = (options.epochs, options.seeds, options.target_accuracy, options.clip_grad)
    short = options.quick and all(value is None for value in training)
    phases: tuple[str, ...] = options.phases or (("memory", "speed") if short else USUAL)
    if options.rigorous and "speed" in phases:
        phases = tuple(dict.fromkeys((*phases, "floor")))
    if options.ladder:
        phases = (*(phases if options.phases else ()), *LADDER)
    idle = [name for name in ("epochs", "target_accuracy", "clip_grad") if getattr(options, name) is not None]
    idle += ["seeds"] if options.suite and len(options.seeds or ()) > 1 else []  # one serves other phases
    if idle and "train" not in phases:
        why = "a ladder trains with --phases train only" if options.ladder else "--phases leaves train out"
        raise UsageError(f"{', '.join(map(_option, idle))} is for training, and {why}.")
    return phases


def _parameters(options: argparse.Namespace) -> tuple[tuple[str, str], ...]:
    """Return the suites' parameters: those of ``--set``, and ``--weights``, a parameter with an option of its own."""
    if options.weights is None:
        return tuple(options.set)
    if "weights" in dict(options.set):
        raise UsageError("--weights and --set weights are the same: give one of the two.")
    return (*options.set, ("weights", options.weights))


def _sweeps(options: argparse.Namespace) -> tuple[tuple[str, tuple[str, ...]], ...]:
    """Return the swept parameters, each of which may be set once."""
    names = [name for name, _ in options.sweep]
    if twice := [name for name in names if names.count(name) > 1 or name in dict(options.set)]:
        raise UsageError(f"{twice[0]} is set twice: give it one --sweep, and no --set.")
    if "batch_size" in names and options.batch_sizes is not None:
        raise UsageError("--sweep batch_size and --batch-sizes say two things: give one of the two.")
    return tuple(options.sweep)


# Converters of options: from a word to a value, or a UsageError that names the option.


def _list_of(
    option: str,
    convert: Callable[[str], Any] = str,
    split: Callable[[str], list[str]] = lambda text: text.split(","),
) -> Callable[[str], tuple[Any, ...]]:
    """Return a converter that splits at commas, converts each word, and drops repetitions."""

    def read(text: str) -> tuple[Any, ...]:
        words = [word.strip() for word in split(text)]
        if not all(words):
            raise UsageError(f"{option} has an empty word in '{text}': put one comma between two values.")
        return tuple(dict.fromkeys(convert(word) for word in words))

    return read


def _whole(option: str, least: int, also: str = "") -> Callable[[str], int]:
    def read(word: str) -> int:
        if not re.fullmatch(r"\d{1,9}", word) or int(word) < least:
            raise UsageError(f"{option} takes whole numbers from {least} to 999999999{also}, not '{word}'.")
        return int(word)

    return read


def _matching(option: str, pattern: str, allowed: str, convert: Callable[[re.Match[str]], Any]) -> Callable[[str], Any]:
    """Return a converter of words that match; ``convert`` may still refuse one by returning None."""

    def read(word: str) -> Any:
        match = re.fullmatch(pattern, word)
        value = None if match is None else convert(match)
        if value is None:
            raise UsageError(f"{option} takes {allowed}, not '{word}'.")
        return value

    return read


def _phase(word: str) -> str:
    if word in SELECTABLE:
        return word
    raise UsageError(f"There is no phase '{word}'.{nearest(word, SELECTABLE)} Available: {', '.join(SELECTABLE)}.")


def _accelerator(word: str) -> str:
    """Read a type of accelerator as Ray names it; types joined by a plus are equal."""
    if len({*word.split("+")}) == 1 and re.fullmatch(r"[A-Z][\w.+-]*", word) and Placement(name=word).on_cluster:
        return word
    raise UsageError(f"--accelerators takes types as Ray names them, such as V100 or V100,A100, not '{word}'.")


def _placements(text: str) -> tuple[str, ...]:
    """Read placements on this machine, by their names."""
    words = _list_of("--gpus")(text)
    if any(Placement(name=word).on_cluster for word in words if word != EVERY_GPU):
        raise UsageError(
            f"--gpus takes GPU indices or cpu, not '{text}'; on a cluster: --on ray --accelerators {text}."
        )
    if any(Placement(name=word).nodes > 1 for word in words if word != EVERY_GPU):
        raise UsageError(f"--gpus takes GPUs of this machine, not '{text}'; of several: --on ray (docs/clusters.md).")
    return words


def _weights(word: str) -> str:
    """Read the source of initial weights; a path becomes absolute."""
    return word if word in ("none", "imagenet") else str(Path(word).resolve())


def _assignment(word: str, option: str = "--set", form: str = "NAME=VALUE") -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"{option} takes {form}, not '{word}'.")
    return name, value


def _sweep(word: str) -> tuple[str, tuple[str, ...]]:
    name, text = _assignment(word, "--sweep", "NAME=V1,V2")
    values = _list_of("--sweep")(text)
    if len(values) <= text.count(","):
        raise UsageError(f"--sweep {name} has a value twice in '{text}': name each once.")
    return name, values


_suites = _list_of("--suite")
_precisions = _list_of("--precisions", lambda word: parse_precision(word).name, split)
_batch_sizes = _list_of(
    "--batch-sizes", lambda word: MAX if word == MAX else _whole("--batch-sizes", 1, f", and {MAX}")(word)
)
_phase_names = _list_of("--phases", _phase)
_accelerators = _list_of("--accelerators", _accelerator)
_epochs = _whole("--epochs", 1)
_seeds = _list_of("--seeds", _whole("--seeds", 0))
_cluster = _matching("--on", r"ray(://[^/\s]+:\d+)?", "ray or ray://HOST:PORT", lambda match: match[0])
_share = _matching(
    "--target-ci",
    NUMBER + "(%?)",
    "a share such as 1% or 0.01, above 0 and below 100%",
    lambda match: share if 0 < (share := float(match[1]) / (100 if match[2] else 1)) < 1 else None,
)
_over = _matching(
    "--fail-over",
    NUMBER + "(%?)",
    "a share such as 3% or 0.03, and with % where it is 1 or more",
    lambda match: float(match[1]) / 100 if match[2] else float(match[1]) if float(match[1]) < 1 else None,
)
_percentage = _matching(
    "--target-accuracy",
    NUMBER + "%?",
    "a percentage above 0 and up to 100, such as 94%",
    lambda match: float(match[1]) if 0 < float(match[1]) <= 100 else None,
)
_norm = _matching("--clip-grad", NUMBER, "a norm above 0 such as 1.0", lambda match: float(match[1]) or None)


def _duration(option: str) -> Callable[[str], float]:
    """Return a converter of times to seconds."""
    units = {"": 1, "s": 1, "m": 60, "h": 3600}
    return _matching(
        option,
        NUMBER + "(s|m|h|)",
        "a time such as 10s, 2m or 1h",
        lambda match: float(match[1]) * units[match[2]],
    )


_duration_s = _duration("--time-budget")
_timeout_s = _duration("--trial-timeout")
