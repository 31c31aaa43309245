#!/usr/bin/env python3
"""The harness's training beside others': torchvision's loop, Lightning, accelerate, and timm's models.

    python perf/peers.py [--device cpu|cuda] [--data folder:PATH] [--samples N] [--only epochs,steps] [--quick]

1. An epoch of CIFAR-10 with resnet20 and resnet18: the harness's loop, and ImageFolder or CIFAR10, DataLoader with two
   workers and PIL transforms in the usual loop, in Lightning's Trainer and in accelerate's. The loops take turns there
   and back again; ratios are of times in the same round.
2. The pipelines alone, without a model, over the same images.
3. Steps of resnet50 and vit_b_16 on random batches on the device beside the usual loop, in quads: with timm's models,
   and with the harness's own, which tells what is the loop's and what the model's. All three are timed together, in
   six fresh processes, in every other of which the harness's is built last; intervals are over the processes. They come
   first, while this process has nothing on the device.

A ratio is the other's time over the harness's. Targets: 1, missed where the whole interval lies below it, and not shown
where the estimate alone does; and 1.3 over the torchvision loop for resnet20's epoch in amp-bf16. What is not installed
is left out, and so is a precision that a CPU emulates, unless ``--precisions`` names it.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
from collections.abc import Callable, Sequence
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as bench/launch/local.py does, before torch is imported

import torch

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

from bench.launch.local import LocalLauncher
from bench.measure.timing import palindrome
from bench.stats import quad_log_ratio
from perf import arms, loops, outcome, steps

LEAST_EPOCH = 1.3
DEFAULT = ("fp32", "amp-bf16")


def turns(timed: Sequence[Callable[[], float]], rounds: int) -> list[list[float]]:
    """Run each once to warm up, then in rounds there and back again.

    Returns:
        For each but the first the log-ratios of its time over the first's, one for each round.
    """
    chance = random.Random(0)
    for run in timed:
        run()
    logs: list[list[float]] = [[] for _ in timed[1:]]
    for _ in range(rounds):
        times: list[list[float]] = [[] for _ in timed]
        for index in palindrome(len(timed), chance):
            times[index].append(timed[index]())
        pairs = [(pair[0], pair[1]) for pair in times]
        for log, pair in zip(logs, pairs[1:], strict=True):
            log.append(quad_log_ratio(pair, pairs[0]))
    return logs


def epochs(given: argparse.Namespace, name: str, precision: str, notes: list[str]) -> list[outcome.Outcome]:
    """Compare epochs of one suite."""
    arms.set_switches(precision)  # for all loops alike
    device, suite = torch.device(given.device), arms.open_suite(name)
    source = loops.Source(given.folder, given.samples, suite.data)
    task = loops.Task(
        suite=suite,
        source=source,
        precision=precision,
        device=device,
        batch_size=given.batch,
        epochs=2 * given.rounds + 1,
    )
    built = [loops.harness(task)]
    names = []
    for peer, build in loops.LOOPS.items():
        if reason := loops.why_not(peer):
            notes.append(f"{peer} is left out: {reason}.")
            continue
        names.append(peer)
        built.append(build(task))
    found = []
    for peer, logs in zip(names, turns(built, given.rounds), strict=True):
        gain = peer == "torchvision" and name == "resnet20" and precision == "amp-bf16"
        least = LEAST_EPOCH if gain else 1.0
        label = f"epoch of {name}, {precision}: {peer} ÷ harness"
        found.append(outcome.Outcome(name=label, found=outcome.ratio(logs), least=least, doubtful=not gain, unit="×"))
    return found


def pipelines(given: argparse.Namespace) -> list[outcome.Outcome]:
    """Compare the pipelines alone."""
    device, suite = torch.device(given.device), arms.open_suite("resnet20")
    source = loops.Source(given.folder, given.samples, suite.data)
    batches, loader = source.batches(given.batch, device), source.loader(given.batch, device)
    seen: list[list[float]] = [[], []]

    def kept(run: Callable[[], float], times: list[float]) -> Callable[[], float]:
        def once() -> float:
            times.append(run())
            return times[-1]

        return once

    own = kept(loops.rate(lambda: batches.train(1), device), seen[0])
    usual = kept(loops.rate(lambda: iter(loader), device), seen[1])
    (logs,) = turns([own, usual], given.rounds)
    rates = [outcome.seconds([1 / time for time in times[1:]]) for times in seen]
    return [
        outcome.Outcome(name="batched augmentation alone", found=rates[0], unit="images/s"),
        outcome.Outcome(name="PIL pipeline alone, 2 workers", found=rates[1], unit="images/s"),
        outcome.Outcome(name="pipelines: PIL's time ÷ harness's", found=outcome.ratio(logs), unit="×"),
    ]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--data", help="folder:PATH with train/CLASS/* (default: random images in memory)")
    parser.add_argument("--samples", type=int, help="images of an epoch (default: 50,000 on a GPU, 1,280 on a CPU)")
    parser.add_argument("--batch", type=int, default=128, help="samples in a batch (default: 128)")
    parser.add_argument("--rounds", type=int, help="rounds of epochs, each there and back (default: 5; --quick: 2)")
    parser.add_argument("--processes", type=int, help="fresh processes for steps (default: 6; --quick: 2)")
    parser.add_argument(
        "--budget", type=float, help="seconds an arm for steps, in all its processes (default: 24; --quick: 4)"
    )
    parser.add_argument("--precisions", help="of fp32 and amp-bf16 (default: both)")
    parser.add_argument("--suites", default="resnet20,resnet18", help="for epochs (default: resnet20,resnet18)")
    parser.add_argument("--only", default="epochs,pipelines,steps", help="parts (default: epochs,pipelines,steps)")
    parser.add_argument(
        "--quick", action="store_true", help="resnet20 alone, few images, few rounds; steps of resnet50 alone"
    )
    given = parser.parse_args(words)
    if given.data and not given.data.startswith("folder:"):
        parser.error("--data must be folder:PATH")
    given.folder = Path(given.data.removeprefix("folder:")) if given.data else None
    if given.folder and not (given.folder / "train").is_dir():
        parser.error(f"there is no folder {given.folder / 'train'}")
    if unknown := set(given.only.split(",")) - {"epochs", "pipelines", "steps"}:
        parser.error(f"--only has no part {', '.join(sorted(unknown))}")
    on_gpu = given.device.startswith("cuda")
    given.samples = given.samples or (256 if given.quick else 50_000 if on_gpu else 1280)
    if given.samples < given.batch:
        parser.error("--samples must be at least --batch")
    given.rounds = given.rounds or (2 if given.quick else 5)
    if given.processes is None:
        given.processes = 2 if given.quick else 6
    if given.processes < 2:
        parser.error("--processes must be at least 2: one alone has no interval over processes")
    given.budget = given.budget or (4.0 if given.quick else 24.0)
    if given.quick:
        given.suites = "resnet20"
    return given


def main() -> int:
    given = parse()
    launcher, device = LocalLauncher(), torch.device(given.device)
    known = launcher.survey(("cpu" if device.type == "cpu" else str(device.index or 0),)).devices[0]
    outcomes: list[outcome.Outcome] = []
    notes: list[str] = []
    parts, precisions = given.only.split(","), []
    for precision in given.precisions.split(",") if given.precisions else DEFAULT:
        if why := None if given.precisions else arms.why_not(known, precision):
            notes.append(f"{precision} is left out: {why}.")
        else:
            precisions.append(precision)
    # Steps first: what this process itself trains would stay on the GPU, beside the processes that time them.
    for precision in precisions if "steps" in parts else ():
        outcomes += steps.steps(given, launcher, precision, notes)
    outcomes += pipelines(given) if "pipelines" in parts else []
    for precision in precisions if "epochs" in parts else ():
        for name in given.suites.split(","):
            outcomes += epochs(given, name, precision, notes)
    images = f"images of {given.folder}" if given.folder else "random images in memory"
    if {"epochs", "pipelines"} & set(parts):
        notes.append(f"{given.samples:,} {images} an epoch at batch {given.batch}, {given.rounds} rounds.")
    if "steps" in parts:
        notes.append(f"Steps in {given.processes} processes, {given.budget:g} s an arm in all.")
    return outcome.report("Beside others", outcomes, list(dict.fromkeys(notes)))


if __name__ == "__main__":
    sys.exit(main())
