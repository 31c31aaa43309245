"""The command line: words in, a frozen request out. Imports nothing heavy, so that --help is instant."""

from __future__ import annotations

import argparse
import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, cast

from bench.nodes import Nodes, over_nodes, parse_nodes
from bench.option_values import (
    MAX,
    batch_size,
    listed,
    norm,
    parameters,
    percentage,
    phase,
    seconds,
    share,
    sweep,
    whole,
)
from bench.options import compare_parser, doctor_parser, list_parser, report_parser, run_parser
from bench.precision_names import parse_precision, split
from bench.spec import UsageError, nearest
from bench.technique_names import parse_techniques
from bench.trial import LADDER, PHASES, DataSource, Phase, Placement, Protocol

COMMANDS = ("run", "report", "compare", "list", "doctor")
QUICK = Protocol(replicates=1, time_budget_s=3.0)
RIGOROUS = Protocol(replicates=10)
USUAL: tuple[Phase, ...] = tuple(phase for phase in PHASES if phase not in ("floor", "numerics", "inference"))
"""The phases that run unless ``--phases`` or ``--rigorous`` says otherwise."""


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
    phases: tuple[Phase, ...] = USUAL
    largest_batch: bool = False
    """Whether ``--batch-sizes`` says max, beside the sizes that it names or alone."""
    parameters: tuple[tuple[str, str], ...] = ()
    sweep: tuple[tuple[str, tuple[str, ...]], ...] = ()
    protocol: Protocol = Protocol()
    exclusive: bool = False
    nodes: Nodes | None = None
    """Who else trains together with this machine, where ``--nnodes`` says so."""
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
    phases = cast("tuple[Phase, ...] | None", listed(given.phases, phase, "--phases")) or phases
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
    nodes = parse_nodes(
        nnodes=given.nnodes,
        node_rank=given.node_rank,
        endpoint=given.rdzv_endpoint,
        job=given.rdzv_id,
        backend=given.rdzv_backend,
        conf=given.rdzv_conf,
    )
    if given.data:  # a node that follows says itself that it has none
        elsewhere = given.on is not None or (nodes is not None and nodes.rank > 0)
        DataSource.parse(given.data, given.data_dir, elsewhere=elsewhere)
    return Command(
        name="run",
        argv=argv,
        suites=listed(given.suite, str, "--suite") or (),
        gpus=_placements(given.gpus, nodes, given.on),
        precisions=listed(given.precisions, parse_precision, "--precisions", split),
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
        nodes=nodes,
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


def _placements(text: str | None, nodes: Nodes | None = None, on: str | None = None) -> tuple[str, ...] | None:
    placements = listed(text, lambda word: Placement(name=word), "--gpus")
    if placements and any(placement.on_cluster for placement in placements):
        raise UsageError(
            f"--gpus takes GPU indices or cpu, not '{text}'; on a cluster: --on ray --accelerators {text}."
        )
    names = None if placements is None else tuple(placement.name for placement in placements)
    return over_nodes(names, nodes, on)


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
