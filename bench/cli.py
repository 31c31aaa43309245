"""The command line: words in, a frozen request out. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, cast

from bench.options import doctor_parser, list_parser, report_parser, run_parser
from bench.precision_names import parse_precision, split
from bench.spec import UsageError, nearest
from bench.trial import PHASES, DataSource, Phase, Placement, Protocol

COMMANDS = ("run", "report", "list", "doctor")
QUICK = Protocol(replicates=1, time_budget_s=3.0)
RIGOROUS = Protocol(replicates=10)
USUAL: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase not in ("floor", "numerics", "inference"))
"""The phases that run unless ``--phases`` or ``--rigorous`` says otherwise."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Command:
    """What was typed, checked word by word; what needs the machine to be checked is checked later."""

    name: Literal["run", "report", "list", "doctor"]
    argv: tuple[str, ...]
    suites: tuple[str, ...] = ()
    gpus: tuple[str, ...] | None = None
    precisions: tuple[str, ...] | None = None
    batch_sizes: tuple[int, ...] | None = None
    epochs: int | None = None
    target_accuracy_pct: float | None = None
    clip_grad: float | None = None
    seeds: tuple[int, ...] = (0,)
    data: str | None = None
    data_dir: str = "data"
    phases: tuple[Phase, ...] = USUAL
    parameters: tuple[tuple[str, str], ...] = ()
    protocol: Protocol = Protocol()
    exclusive: bool = False
    on: str | None = None
    accelerators: tuple[str, ...] | None = None
    dry_run: bool = False
    out: Path | None = None
    resume: Path | None = None
    runs: tuple[Path, ...] = ()
    published: bool = False


def parse(argv: Sequence[str]) -> Command:
    """Parse a command line.

    Raises:
        UsageError: a word that means nothing; nothing has been touched yet.
    """
    words = list(argv)
    name = words.pop(0) if words and words[0] in COMMANDS else "run"
    if name == "list":
        list_parser().parse_args(words)
        return Command(name="list", argv=tuple(argv))
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
    return Command(name="report", argv=argv, runs=tuple(given.runs), out=given.out, published=given.published)


def _parse_doctor(words: list[str], argv: tuple[str, ...]) -> Command:
    given = doctor_parser().parse_args(words)
    return Command(name="doctor", argv=argv, gpus=_placements(given.gpus), out=given.out)


def _parse_run(words: list[str], argv: tuple[str, ...]) -> Command:
    given = run_parser().parse_args(words)
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
    training = (given.epochs, given.seeds, given.target_accuracy, given.clip_grad)
    brief = given.quick and all(option is None for option in training)
    phases = ("memory", "speed") if brief else (*USUAL, "floor") if given.rigorous else USUAL
    phases = cast("tuple[Phase, ...] | None", _listed(given.phases, _phase, "--phases")) or phases
    idle = [name for name in ("epochs", "target_accuracy", "clip_grad") if getattr(given, name) is not None]
    if idle and "train" not in phases:
        said = ", ".join(f"--{name.replace('_', '-')}" for name in idle)
        raise UsageError(f"{said} is for training, and --phases leaves train out.")
    if given.data:
        DataSource.parse(given.data, given.data_dir, elsewhere=given.on is not None)
    return Command(
        name="run",
        argv=argv,
        suites=_listed(given.suite, str, "--suite") or (),
        gpus=_placements(given.gpus),
        precisions=_listed(given.precisions, parse_precision, "--precisions", split),
        batch_sizes=_listed(given.batch_sizes, lambda word: _whole(word, "--batch-sizes", 1), "--batch-sizes"),
        epochs=None if given.epochs is None else _whole(given.epochs, "--epochs", 1),
        target_accuracy_pct=_percentage(given.target_accuracy),
        clip_grad=_norm(given.clip_grad),
        seeds=_listed(given.seeds, lambda word: _whole(word, "--seeds", 0), "--seeds") or (0,),
        data=given.data,
        data_dir=given.data_dir,
        phases=phases,
        parameters=_parameters(given.set, given.weights),
        protocol=protocol,
        exclusive=given.exclusive,
        on=_cluster(given.on, given.gpus, given.accelerators),
        accelerators=_listed(given.accelerators, _accelerator, "--accelerators"),
        dry_run=given.dry_run,
        out=given.out,
        resume=given.resume,
    )


def _beyond_resume(given: argparse.Namespace) -> str:
    """Name the options beside ``--resume`` that a bare one would have to ignore; empty where there are none."""
    plain = run_parser()
    words = [name for name, value in vars(given).items() if value != plain.get_default(name)]
    return ", ".join(f"--{name.replace('_', '-')}" for name in words if name not in ("resume", "dry_run"))


def _placements(text: str | None) -> tuple[str, ...] | None:
    placements = _listed(text, lambda word: Placement(name=word), "--gpus")
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
        raise UsageError("--gpus names GPUs of this machine; with --on ray name types, as in --accelerators V100,A100.")
    return on


def _accelerator(word: str) -> str:
    if not re.fullmatch(r"[A-Z][\w.+-]*", word) or not Placement(name=word).on_cluster or len({*word.split("+")}) > 1:
        raise UsageError(f"--accelerators takes types as Ray names them, such as V100 or V100,A100, not '{word}'.")
    return word


def _listed(
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


def _whole(word: str, option: str, least: int) -> int:
    if not re.fullmatch(r"\d{1,9}", word) or int(word) < least:
        raise UsageError(f"{option} takes whole numbers from {least} to 999999999, not '{word}'.")
    return int(word)


def _share(word: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(%?)", word)
    if match is None:
        raise UsageError(f"--target-ci takes a share such as 1% or 0.01, not '{word}'.")
    return float(match[1]) / (100 if match[2] else 1)


def _percentage(word: str | None) -> float | None:
    if word is None:
        return None
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)%?", word)
    if match is None or not 0 < float(match[1]) <= 100:
        raise UsageError(f"--target-accuracy takes a percentage above 0 and up to 100, such as 94%, not '{word}'.")
    return float(match[1])


def _norm(word: str | None) -> float | None:
    if word is None:
        return None
    if not re.fullmatch(r"\d+(\.\d*)?|\.\d+", word) or float(word) == 0:
        raise UsageError(f"--clip-grad takes a norm above 0 such as 1.0, not '{word}'.")
    return float(word)


def _seconds(word: str) -> float:
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)(s|m|h|)", word)
    if match is None:
        raise UsageError(f"--time-budget takes a time such as 10s, 2m or 1h, not '{word}'.")
    return float(match[1]) * {"": 1, "s": 1, "m": 60, "h": 3600}[match[2]]


def _phase(word: str) -> str:
    if word not in PHASES:
        raise UsageError(f"There is no phase '{word}'.{nearest(word, PHASES)} Available: {', '.join(PHASES)}.")
    return word


def _parameters(words: list[str], weights: str | None) -> tuple[tuple[str, str], ...]:
    """Return the suites' parameters: those of ``--set``, and ``--weights``, a parameter that has an option."""
    given = tuple(_assignment(word) for word in words)
    if weights is None:
        return given
    if "weights" in dict(given):
        raise UsageError("--weights and --set weights are the same: give one of the two.")
    return (*given, ("weights", weights if weights in ("none", "imagenet") else str(Path(weights).resolve())))


def _assignment(word: str) -> tuple[str, str]:
    name, equals, value = word.partition("=")
    if not equals or not name:
        raise UsageError(f"--set takes NAME=VALUE, not '{word}'.")
    return name, value
