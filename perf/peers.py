#!/usr/bin/env python3
"""Compare the harness's training with other loops, and with models of timm and transformers.

    python perf/peers.py [--device cpu|cuda] [--data folder:PATH] [--only epochs|steps]

1. An epoch of CIFAR-10 with resnet20 and resnet18: the harness's loop against ImageFolder or
   CIFAR10 with a DataLoader of two workers and PIL transforms, in the usual loop and in Lightning's
   Trainer. The loops take turns in palindromes; ratios are of times in the same round.
2. Steps of resnet50, vit_b_16 and gpt (tiny, and gpt2) on random batches on the device, against the
   usual loop in ABBA rounds: with timm's models, for gpt with the GPT2LMHeadModel of transformers,
   and with the harness's models, which separates the loop's cost from the model's (except gpt2,
   whose steps are too long to show it). Attention is torch's scaled_dot_product_attention in all of
   them. Six fresh processes each time all arms together; every other process builds the harness's
   arm last. Intervals are over the processes. Steps come first, while this process has nothing on
   the device.

A ratio is the other's time over the harness's. Targets: 1, missed if the whole interval lies below
it and not shown if only the estimate does; and 1.3 over the torchvision loop for resnet20's epoch
in amp-bf16. The script leaves out packages that are not installed, and precisions that a CPU
emulates unless ``--precisions`` names them.
"""

from __future__ import annotations

import argparse
import math
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

# As bench/launch/local.py does, before torch is imported.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.launch.local import LocalLauncher
from bench.measure.rounds import palindrome
from bench.spec.precisions import parse_precision
from bench.training import amp
from perf import arms, loops, outcome, steps

LEAST_EPOCH = 1.3


def turns(timed: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Call each function, which returns a time, once to warm up, then in rounds of palindromes.

    Returns:
        For each function but the first the log-ratios of its time over the first's, one for each
        round.
    """
    rng = random.Random(0)
    for run in timed:
        run()
    logs: list[list[float]] = [[] for _ in timed]
    for _ in range(rounds):
        times: list[list[float]] = [[] for _ in timed]
        for index in palindrome(len(timed), rng):
            times[index].append(timed[index]())
        for log, two in zip(logs, times, strict=True):
            # Both have the same mean position in the round, so a linear drift cancels.
            log.append(math.log(math.prod(two) / math.prod(times[0])) / 2)
    return logs[1:]


def epochs(
    options: argparse.Namespace, name: str, precision: str, notes: list[str]
) -> list[outcome.Outcome]:
    """Compare epochs of one suite."""
    # For all loops alike: torch's own default is TF32 in convolutions.
    amp.apply(parse_precision(precision))
    device, suite = torch.device(options.device), arms.open_suite(name)
    source = loops.Source(options.folder, options.samples, suite.data)
    task = loops.Task(
        suite=suite,
        source=source,
        precision=precision,
        device=device,
        batch_size=options.batch,
        epochs=2 * options.rounds + 1,
    )
    epochs_of = {"harness": loops.harness(task)}
    for peer, build in loops.LOOPS.items():
        if reason := loops.why_not(peer):
            notes.append(f"{peer} is left out: {reason}.")
        else:
            epochs_of[peer] = build(task)
    outcomes = []
    _, *peers = epochs_of
    logs_of_peers = turns(list(epochs_of.values()), options.rounds)
    for peer, logs in zip(peers, logs_of_peers, strict=True):
        gain = peer == "torchvision" and name == "resnet20" and precision == "amp-bf16"
        outcomes.append(
            outcome.Outcome(
                name=f"epoch of {name}, {precision}: {peer} ÷ harness",
                interval=outcome.ratio(logs),
                least=LEAST_EPOCH if gain else 1.0,
                by_interval=not gain,
                unit="×",
            )
        )
    return outcomes


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument(
        "--data", help="folder:PATH with train/CLASS/* (default: random images in memory)"
    )
    parser.add_argument(
        "--samples", type=int, help="images in an epoch (default: 50,000 on a GPU, 1,280 on a CPU)"
    )
    parser.add_argument("--batch", type=int, default=128, help="samples in a batch (default: 128)")
    parser.add_argument(
        "--rounds", type=int, default=5, help="rounds of epochs, each a palindrome (default: 5)"
    )
    parser.add_argument(
        "--processes", type=int, default=6, help="fresh processes for steps (default: 6)"
    )
    parser.add_argument(
        "--budget",
        type=float,
        default=24.0,
        help="seconds an arm for steps, in all its processes (default: 24)",
    )
    parser.add_argument("--precisions", help="of fp32 and amp-bf16 (default: both)")
    parser.add_argument(
        "--suites", default="resnet20,resnet18", help="for epochs (default: resnet20,resnet18)"
    )
    models = ",".join(steps.MODELS)
    parser.add_argument("--models", default=models, help=f"for steps (default: {models})")
    parser.add_argument(
        "--only", choices=("epochs", "steps"), help="one of the parts (default: both)"
    )
    options = parser.parse_args(words)
    if options.data and not options.data.startswith("folder:"):
        parser.error("--data must be folder:PATH")
    options.folder = Path(options.data.removeprefix("folder:")) if options.data else None
    if options.folder and not (options.folder / "train").is_dir():
        parser.error(f"there is no folder {options.folder / 'train'}")
    options.samples = options.samples or (50_000 if options.device.startswith("cuda") else 1280)
    return options


def main() -> int:
    options, notes = parse(), list[str]()
    launcher, outcomes = LocalLauncher(), list[outcome.Outcome]()
    precisions = arms.choose_precisions(
        options.precisions, arms.survey(launcher, options.device), notes
    )
    # Steps first: models that this process trains would stay on the GPU while other processes time
    # steps.
    if options.only != "epochs":
        for precision in precisions:
            outcomes += steps.steps(options, launcher, precision, notes)
        notes.append(f"Steps in {options.processes} processes, {options.budget:g} s an arm in all.")
    if options.only != "steps":
        for precision in precisions:
            for name in options.suites.split(","):
                outcomes += epochs(options, name, precision, notes)
        images = f"images of {options.folder}" if options.folder else "random images in memory"
        notes.append(
            f"{options.samples:,} {images} an epoch at batch {options.batch}, {options.rounds} "
            "rounds."
        )
    return outcome.report("Compared with others", outcomes, notes)


if __name__ == "__main__":
    sys.exit(main())
