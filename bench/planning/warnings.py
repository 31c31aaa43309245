"""Warnings that are shown before anything runs."""

from __future__ import annotations

from bench.planning.defaults import is_emulated
from bench.planning.plan import Plan
from bench.results.records import Environment
from bench.spec.ablation import TF32, named_mixed
from bench.spec.phases import LADDER, SELECTABLE
from bench.spec.precisions import BASELINE, parse_precision
from bench.spec.request import Request
from bench.spec.techniques import find, refusal


def mismatched(environment: Environment) -> list[str]:
    """Warn of nodes with different builds of torch, which change figures too."""
    if len({node.torch for node in environment.nodes}) < 2:
        return []
    builds = ", ".join(f"{node.torch} on {node.host} ({node.accelerator})" for node in environment.nodes)
    return [f"The nodes have different builds of torch: {builds}. Their figures differ by that, too."]


def emulated(environment: Environment, request: Request) -> list[str]:
    """Warn of precisions that a CPU only emulates."""
    alone = "" if "ladder" in request.phases else ", so that fp32 has nothing to be compared with"
    return [
        f"{device.name} has no fast bfloat16: in a training step's products it reaches {device.bf16_gflops:.1f} "
        f"GFLOP/s, and {device.fp32_gflops:.0f} in fp32. "
        + (
            f"{name} will be slow."
            if request.precisions
            else f"{name} is left out{alone}; --precisions fp32,{name} names it."
        )
        for device in environment.devices
        for name in request.precisions or ("amp-bf16",)
        if is_emulated(device, name)
    ]


def refused(plan: Plan, environment: Environment) -> list[str]:
    """Warn of trials that will be unsupported because of their techniques or their number of devices."""
    kinds = {device.placement: device.kind for device in environment.devices}
    phases: dict[tuple[str, str], dict[str, None]] = {}
    for trial in plan.trials:
        place = trial.cell.placement
        if why := refusal(trial.cell.techniques, kinds[place.name], trial.phase, len(place.members)):
            phases.setdefault((place.name, why), {})[trial.phase] = None
    return [f"On {place}, {', '.join(names)} will be unsupported: {why}." for (place, why), names in phases.items()]


def idle_techniques(request: Request) -> list[str]:
    """Warn of techniques that change nothing in a phase that was asked for."""
    idle = [name for name in request.techniques if find(name).input_pipeline]
    others = [phase for phase in SELECTABLE if phase in request.phases and phase != "train"]
    if not idle or not others:
        return []
    return [
        f"{' and '.join(idle)} {'changes' if len(idle) == 1 else 'change'} how batches reach the device in training; "
        f"{', '.join(others)}: measured on batches that are there already, so nothing changes."
    ]


def off_the_ladder(request: Request) -> list[str]:
    """Warn of tf32, which is no step of a ladder.

    Raises:
        UsageError: several mixed precisions are named.
    """
    if not request.precisions or not {*LADDER} & {*request.phases}:
        return []
    mixed = named_mixed(request.precisions)
    if all(parse_precision(name).base != TF32 for name in request.precisions):
        return []
    on = "no mixed precision is named, so it stays there" if mixed == BASELINE else f"goes on in {mixed}"
    return [f"The ladder has no rung of tf32: it starts at IEEE fp32, and {on}."]
