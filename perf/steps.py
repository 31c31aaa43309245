"""Steps beside the harness's, in fresh processes: with timm's models and, in the usual loop, with the harness's own."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace
from functools import partial

import torch
from torch import nn

from bench.launch.local import LocalLauncher
from bench.spec.suite import Suite
from bench.stats import process_interval
from perf import arms, outcome

TIMED = "perf.steps:over_harness"
MODELS = {"resnet50": "resnet50", "vit_b_16": "vit_base_patch16_224"}
"""Suites, each with timm's name for its model."""
BATCH = {"cpu": {"resnet50": 8, "vit_b_16": 2}, "cuda": {"resnet50": 256, "vit_b_16": 64}}
HARNESS, TIMM, USUAL = "harness", "timm", "the usual loop, same model,"


def timm_model(suite: Suite) -> nn.Module:
    """Return timm's counterpart of a suite's model, for images of 32 pixels with the suite's stem.

    Raises:
        ImportError: timm is not installed.
    """
    import timm

    from suites._cifar import cifar_stem

    torch.manual_seed(0)
    model: nn.Module = timm.create_model(MODELS[suite.name], num_classes=arms.classes(suite.data))
    return cifar_stem(model) if suite.data.input_shape[1] == 32 else model


def over_harness(asked: arms.Question, _send: object = None) -> dict[str, float]:
    """Return for each peer the log-ratio of its time for a step to the harness's, as this process finds it.

    All are timed in the same quads. Where timm is not installed, it is left out.
    """
    suite = arms.open_suite(asked.suite, **asked.parameters)
    what = (suite, asked.precision, torch.device(asked.device), asked.batch_size)
    builders: dict[str, Callable[[], arms.Arm]] = {HARNESS: partial(arms.harness, *what)}
    try:
        import timm  # noqa: F401
    except ImportError:
        pass
    else:
        builders[TIMM] = lambda: arms.by_hand(*what, timm_model(suite))
    builders[USUAL] = partial(arms.by_hand, *what)
    names = list(builders) if asked.own_first else list(builders)[::-1]
    return arms.log_ratios({name: builders[name]() for name in names}, HARNESS, asked.budget_s)


def steps(
    given: argparse.Namespace, launcher: LocalLauncher, precision: str, notes: list[str]
) -> list[outcome.Outcome]:
    """Compare steps of one precision with each peer's.

    Args:
        given: the script's options: the device, the number of processes, seconds an arm in all of them
            together, and whether to be quick, with the first model alone.
        launcher: what starts the processes.
        precision: of all arms.
        notes: takes what is left out.
    """
    kind, found = torch.device(given.device).type, []
    for name in list(MODELS)[: 1 if given.quick else None]:
        asked = arms.Question(
            suite=name,
            parameters={},
            precision=precision,
            device=given.device,
            batch_size=BATCH[kind][name],
            budget_s=given.budget / given.processes,
            own_first=True,
        )
        takes_turns = [replace(asked, own_first=number % 2 == 0) for number in range(given.processes)]
        logs = [launcher.call(TIMED, one) for one in takes_turns]
        label = f"step of {name}, batch {asked.batch_size}, {precision}:"
        if TIMM not in logs[0]:
            notes.append("timm is left out: it is not installed.")
        for peer in [peer for peer in (TIMM, USUAL) if peer in logs[0]]:
            ratio = process_interval([log[peer] for log in logs]).exp()
            found.append(
                outcome.Outcome(name=f"{label} {peer} ÷ harness", found=ratio, least=1.0, doubtful=True, unit="×")
            )
    return found
