"""Steps beside the harness's, in fresh processes: with timm's models and, in the usual loop, with the harness's own."""

from __future__ import annotations

import argparse
import importlib.util
from collections.abc import Callable

import torch
from torch import nn

from bench.launch.local import LocalLauncher
from bench.spec.suite import Suite
from perf import arms, outcome

TIMED = "perf.steps:over_harness"
MODELS = {"resnet50": "resnet50", "vit_b_16": "vit_base_patch16_224"}
"""Suites, each with timm's name for its model."""
BATCH = {"cpu": {"resnet50": 8, "vit_b_16": 2}, "cuda": {"resnet50": 256, "vit_b_16": 64}}
TIMM, USUAL = "timm", "the usual loop, same model,"


def timm_model(suite: Suite) -> nn.Module:
    """Return timm's counterpart of a suite's model, with the suite's stem where images are 32 pixels wide."""
    import timm

    from suites._cifar import cifar_stem

    torch.manual_seed(0)
    model: nn.Module = timm.create_model(MODELS[suite.name], num_classes=suite.data.classes)
    return cifar_stem(model) if suite.data.input_shape[1] == 32 else model


def over_harness(comparison: arms.Comparison, _send: object = None) -> dict[str, float]:
    """Return the log-ratio of each peer's step time to the harness's, as this process measures it.

    All are timed in the same rounds. Where timm is not installed, it is left out.
    """
    arguments = comparison.arguments()
    builders: dict[str, Callable[[], arms.TorchRunner | arms.HandRunner]] = {
        arms.HARNESS: lambda: arms.harness(*arguments)
    }
    if importlib.util.find_spec("timm"):
        builders[TIMM] = lambda: arms.by_hand(*arguments, model=timm_model(arguments[0]))
    builders[USUAL] = lambda: arms.by_hand(*arguments)
    return arms.log_ratios(comparison, builders, arms.HARNESS)


def steps(
    options: argparse.Namespace, launcher: LocalLauncher, precision: str, notes: list[str]
) -> list[outcome.Outcome]:
    """Compare steps of one precision with each peer's.

    Args:
        options: the script's: the device, the number of processes, seconds an arm in all of them together, and
            whether to be quick, with the first model alone.
        launcher: starts the processes.
        precision: of all arms.
        notes: takes what is left out.
    """
    outcomes = []
    for suite, batch_size in list(BATCH[torch.device(options.device).type].items())[: 1 if options.quick else None]:
        comparison = arms.Comparison(
            suite=suite,
            parameters={},
            precision=precision,
            device=options.device,
            batch_size=batch_size,
            budget_s=options.budget / options.processes,
        )
        ratios = arms.over_processes(launcher, TIMED, comparison, options.processes)
        if TIMM not in ratios:
            notes.append("timm is left out: it is not installed.")
        for peer in (TIMM, USUAL):
            if peer in ratios:
                name = f"step of {suite}, batch {batch_size}, {precision}: {peer} ÷ harness"
                outcomes.append(
                    outcome.Outcome(name=name, interval=ratios[peer], least=1.0, by_interval=True, unit="×")
                )
    return outcomes
