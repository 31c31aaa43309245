"""The answer to a whole report in two sentences, computed from the answers for each suite and device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from bench.report.analysis.judge import judged_by
from bench.report.analysis.verdict import NO_ACCURACY, NOT_WORSE, Answer
from bench.report.format import change, known, number, signed, times
from bench.spec.precisions import BASELINE, find_precision

APART = 1.2
"""Devices whose gains differ by more than this factor are named apart."""
MOST_GROUPS = 3
NAMED = 4
"""More devices than this are counted, not named."""


@dataclass(frozen=True, slots=True)
class Part:
    """A piece of a sentence."""

    text: str
    strong: bool = False


def lead(answers: Sequence[Answer]) -> list[list[Part]]:
    """Return the sentences: how much faster on which devices, at what memory and accuracy, and what training showed."""
    gains = [one for one in answers if one.precision not in (None, BASELINE)]
    if not answers:
        return []
    return [_speed(answers, gains), *([_cost(gains)] if gains else []), *_trained(answers)]


def text(sentence: Sequence[Part]) -> str:
    """Return a sentence without its emphasis."""
    return "".join(part.text for part in sentence)


def _speed(answers: Sequence[Answer], gains: list[Answer]) -> list[Part]:
    timed = [one for one in gains if known(one.arm["speedup"])]
    only = len(answers) == 1
    clauses: list[list[Part]] = []
    for where, group in _groups(timed):
        ends = sorted(float(one.arm["speedup"]) for one in group)
        size = times(ends[0], group[0].arm["low"], group[0].arm["high"]) if len(group) == 1 else span(ends[0], ends[-1])
        on = f" on {listed(where)}" + (f" for {group[0].workload} at batch {group[0].batch}" if only else "")
        if clauses:
            clauses.append([Part(size, strong=True), Part(on)])
        else:
            clauses.append([Part(_subject(timed) + " "), Part(size, strong=True), Part(f" as fast as fp32{on}")])
    for one in gains:
        if not known(one.arm["speedup"]):
            clauses.append([Part(f"only {one.precision} fits on {one.label} for {one.workload}")])
    stays = [one for one in answers if one.precision == BASELINE]
    rival = _rival(stays[0]) if stays and only else ""
    clauses += [[Part("stay with fp32", strong=True), Part(f" {place}{rival}")] for place in _places(stays, answers)]
    unknown = [one for one in answers if one.precision is None]
    clauses += [[Part(f"{unknown[0].advice} {place}")] for place in _places(unknown, answers)]
    parts: list[Part] = []
    for clause in clauses:
        parts += [*([Part("; ")] if parts else []), *clause]
    first = parts[0].text
    if first.split()[0] not in _names(gains):
        first = first[:1].upper() + first[1:]
    return [Part(first, parts[0].strong), *parts[1:], Part(".")]


def _rival(stay: Answer) -> str:
    """Say what the best other precision does."""
    arm = stay.arm
    size = times(arm["speedup"], arm["low"], arm["high"])
    if arm["verdict"] == "INCONCLUSIVE" and known(arm["low"]) and arm["low"] < 1 < arm["high"]:
        ends = f"{number(arm['low'], 3)} and {number(arm['high'], 3)}"
        return f": {arm['precision']} is not shown to be faster, but between {ends} times as fast"
    return f": {arm['precision']} is {size}" + ("" if size.endswith("slower") else " as fast")


def _names(answers: Sequence[Answer]) -> set[str]:
    return {str(one.precision) for one in answers}


def _subject(gains: Sequence[Answer]) -> str:
    """Name what is advised: a precision, or what all have in common."""
    names = _names(gains)
    if len(names) == 1:
        return f"{names.pop()} is"
    kinds = [find_precision(name) for name in names]
    mixed = all(kind is not None and (kind.autocast or kind.weights or kind.conversion) for kind in kinds)
    return "mixed precision is" if mixed else "the advised precision is"


def _groups(timed: Sequence[Answer]) -> list[tuple[list[str], list[Answer]]]:
    """Group devices of like gains, the largest first; ever wider groups, until they are few enough for a sentence."""
    by_device: dict[str, list[Answer]] = {}
    for one in timed:
        by_device.setdefault(one.label, []).append(one)
    mean = {
        where: math.exp(sum(math.log(one.arm["speedup"]) for one in own) / len(own)) for where, own in by_device.items()
    }
    ordered = sorted(by_device, key=lambda where: -mean[where])
    apart, groups = APART, [ordered]
    while True:
        groups = []
        for where in ordered:
            if groups and mean[groups[-1][-1]] <= apart * mean[where]:
                groups[-1].append(where)
            else:
                groups.append([where])
        if len(groups) <= MOST_GROUPS:
            return [(group, [one for where in group for one in by_device[where]]) for group in groups]
        apart *= APART


def _places(chosen: Sequence[Answer], answers: Sequence[Answer]) -> list[str]:
    """Say where an advice holds: devices on which it holds for every suite, else suite by suite."""
    if not chosen:
        return []
    own, every = (Counter(one.label for one in some) for some in (chosen, answers))
    whole = [label for label in own if own[label] == every[label]]
    places = [f"on {listed(whole)}"] if whole else []
    rest: dict[str, list[str]] = {}
    for one in chosen:
        if one.label not in whole:
            rest.setdefault(one.workload, []).append(one.label)
    return places + [f"for {workload} on {listed(devices)}" for workload, devices in rest.items()]


def _cost(gains: Sequence[Answer]) -> list[Part]:
    clauses = []
    changes = sorted(float(one.arm["memory_change"]) for one in gains if known(one.arm["memory_change"]))
    if changes:
        clauses.append(f"it takes {_memory(changes[0], changes[-1])}")
    clauses.append(_accuracy(gains))
    both = [one for one in gains if one.ties]
    pairs = {frozenset({str(one.precision), *one.ties}) for one in both}
    if len(pairs) == 1:
        names = sorted(pairs.pop())
        everywhere = "" if len(both) == len(gains) == 1 else f" in {counted(len(both), len(gains))}"
        clauses.append(f"{listed(names)} tie{everywhere}")
    sentence = "; ".join(clauses)
    return [Part(sentence[:1].upper() + sentence[1:] + ".")]


def _memory(least: float, most: float) -> str:
    """Write how much memory is saved, from the largest saving to the smallest."""
    ends = [change(abs(end)).removeprefix("+").removesuffix(" %") for end in (most, least)]
    if most <= 0:
        return f"{ends[0]} % less memory" if ends[0] == ends[1] else f"{ends[0]}–{ends[1]} % less memory"
    if least >= 0:
        return f"{ends[0]} % more memory" if ends[0] == ends[1] else f"{ends[1]}–{ends[0]} % more memory"
    return f"between {ends[0]} % more and {ends[1]} % less memory"


def _trained(answers: Sequence[Answer]) -> list[list[Part]]:
    """Say what the trainings of the only recipe and device show where nothing was timed; of several the grid does."""
    found = [f"{name} {word if word == 'diverged' else f'is {word}'}" for one in answers for name, word in one.trained]
    return [[Part(f"Trained beside {BASELINE}, {listed(found)}.")]] if found and len(answers) == 1 else []


def _accuracy(gains: Sequence[Answer]) -> str:
    compared = [one for one in gains if one.training and judged_by(one.training)]
    shown = [one for one in gains if one.accuracy == NOT_WORSE]
    if len(gains) == 1:
        training = gains[0].training
        quality = judged_by(training) if training else None
        if quality is None:
            return NO_ACCURACY if gains[0].accuracy == NO_ACCURACY else "its accuracy was not compared"
        seeds = training["delta_seeds"]
        size = f"{signed(training[quality.change], quality.decimals)} {quality.unit}"
        over = f"{size} over {seeds:.0f} seed{'s' * (seeds != 1)}"
        return f"its {quality.label} is {'not worse' if shown else 'not shown to be the same'} ({over})"
    if not compared:
        return "accuracy was not compared"
    open_, alone = len(compared) - len(shown), sum(bool(one.training) for one in gains) - len(compared)
    untrained = sum(not one.training for one in gains)
    parts = [f"accuracy is shown not worse in {counted(len(shown), len(gains))}"]
    parts += [f"undecided in {open_}"] if open_ else []
    parts += [f"not compared in {alone}"] if alone else []
    parts += [f"not trained in {untrained}"] if untrained else []
    return ", ".join(parts)


def counted(some: int, every: int) -> str:
    """Write a count of cases, a case being a suite on a device: 8 of 15 cases."""
    return f"all {every} cases" if some == every else f"{some} of {every} cases"


def span(low: float, high: float) -> str:
    """Write a range of speedups: 2.6–3.7×; one figure where both ends read the same."""
    digits = 2 if high >= 1.5 else 3
    ends = [number(low, digits), number(high, digits)]
    return f"{ends[0]}×" if ends[0] == ends[1] else f"{ends[0]}–{ends[1]}×"


def listed(names: Sequence[str]) -> str:
    """List names in a sentence; of many some, and how many more."""
    names = list(dict.fromkeys(names))
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
