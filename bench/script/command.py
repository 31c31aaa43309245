"""The command ``script``: its options, and the request that they make."""

from __future__ import annotations

import argparse
import shlex
from dataclasses import fields
from functools import partial

from bench.cli.commands import Command
from bench.cli.parser import add_option, make_request, run_options
from bench.spec.errors import UsageError
from bench.spec.options import assignment, listed
from bench.spec.phases import PHASES
from bench.spec.precisions import BASELINE
from bench.spec.request import Request, Script

EXAMPLES = """
examples:
  run_bench.py script --arm a=--dtype=float32 --arm b=--dtype=bfloat16 -- train.py ITS OPTIONS
  run_bench.py script --inject fp32,amp-bf16 -- torchrun --nproc_per_node 2 train.py ITS OPTIONS
In the options {scratch} stands for a fresh folder, and {seed} for a number, in each process
(docs/scripts.md).
"""
# The arm of ``--inject`` that enters nothing: on a GPU cuDNN may use TF32 in it, as torch's
# defaults are.
UNCHANGED = "as-is"
# What can be entered from outside a script.
INJECTED = (UNCHANGED, "fp32", "tf32", "amp-bf16", "amp-fp16")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arms, and those options of a run that a script's has, too."""
    parser.usage = (
        "run_bench.py script [options] (--arm NAME=OPTIONS ... | --inject PRECISIONS) -- COMMAND"
    )
    parser.description = (
        "Measure a training script as it is, once for each arm, in fresh processes that take turns."
    )
    parser.epilog = EXAMPLES
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.argument_default = argparse.SUPPRESS
    arms = parser.add_mutually_exclusive_group(required=True)
    arms.add_argument(
        "--arm",
        action="append",
        metavar="NAME=OPTIONS",
        type=partial(assignment, "--arm"),
        help=(
            "an arm, and the options that it adds to the command; repeatable, the first is the "
            "reference"
        ),
    )
    arms.add_argument(
        "--inject",
        metavar="PRECISIONS",
        type=partial(listed(_injected), "--inject"),
        help=(
            f"for a script without a flag: enter {', '.join(INJECTED)} from outside; the "
            f"reference is {BASELINE}, or {UNCHANGED} where that is not named"
        ),
    )
    for field in fields(Script):
        if "option" in field.metadata:
            add_option(parser, field.name, field.metadata["option"])
    depth = parser.add_mutually_exclusive_group()
    depth.add_argument("--quick", action="store_true", help="one round of processes")
    depth.add_argument(
        "--rigorous", action="store_true", help="ten rounds at least, up to ±0.5 %% (--target-ci)"
    )
    for name, option in run_options().items():
        if option.in_scripts:
            add_option(parser, name, option)


def _injected(option: str, text: str) -> str:
    if text in INJECTED:
        return text
    raise UsageError(f"{option} takes {', '.join(INJECTED)}, not '{text}'.")


def _injected_arms(names: tuple[str, ...]) -> list[tuple[str, str]]:
    """Return the arms of ``--inject``, the reference first; they add no options to the command."""
    reference = BASELINE if BASELINE in names else UNCHANGED
    return [(name, "") for name in dict.fromkeys((reference, *names))]


def make_script_request(options: argparse.Namespace) -> Request:
    """Return the request that measures a script.

    Raises:
        UsageError: there are not two arms and a command, or an arm's name or options cannot be
            used.
    """
    given = vars(options)
    inject = "inject" in given
    arms = _injected_arms(given["inject"]) if inject else given["arm"]
    names = [name for name, _ in arms]
    if len(set(names)) < max(2, len(names)):
        more = "two names or more in --inject" if inject else "--arm NAME=OPTIONS twice or more"
        raise UsageError(f"script compares arms: give {more}, each with a name of its own.")
    for name, words in arms:
        if "/" in name:
            raise UsageError(
                f"The arm '{name}' is a name in results and files: give it one without a slash."
            )
        try:
            shlex.split(words)
        except ValueError as error:
            raise UsageError(f"The options of the arm '{name}' cannot be read: {error}.") from error
    if BASELINE in names[1:]:
        raise UsageError(
            f"The first arm is the reference: put {BASELINE} first, or give it another name."
        )
    if not options.words:
        raise UsageError(
            "The command is missing: put it after two dashes, as in -- train.py --epochs 1."
        )
    if any("cpu+" in name for name in given.get("gpus") or ()):
        raise UsageError("A script starts its processes itself, as with torchrun: name --gpus cpu.")
    own = {field.name: given[field.name] for field in fields(Script) if field.name in given}
    script = Script(**own | {"command": options.words, "arms": tuple(arms), "inject": inject})
    if script.explain and "explain" not in PHASES:
        raise UsageError("--explain needs bench/phases/explain/, which is not here.")
    phases = ("memory", "speed", "explain") if script.explain else ("memory", "speed")
    measured = {"suites": (script.name,), "phases": phases, "script": script}
    return make_request(options.argv, given | measured)


COMMAND = Command(
    name="script",
    synopsis="script --arm A=OPTIONS --arm B=OPTIONS -- train.py",
    help="a training script of your own, as it is",
    add_arguments=add_arguments,
    run=make_script_request,
    takes_words=True,
)
