"""The answer to a whole report in two sentences, computed from the answers for each suite and device."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from typing import NamedTuple

from bench.report.analysis.judge import judged_by
from bench.report.analysis.verdict import NO_ACCURACY, NOT_WORSE, Answer, counted
from bench.report.format import change, known, number, signed, times
from bench.spec.precisions import BASELINE, find_precision

APART = 1.2
"""Devices whose gains differ by more than this factor are named apart."""
MOST_GROUPS = 3
NAMED = 4
"""More devices than this are counted, not named."""
STRONG = "\0"
"""Stands before and after an emphasised piece; no name has it, for control characters are escaped when it is read."""


class Part(NamedTuple):
    """A piece of a sentence."""

    text: str
    strong: bool = False


def lead(answers: Sequence[Answer]) -> list[list[Part]]:
    """Return the sentences: how much faster on which devices, at what memory and accuracy, and what trainings show."""
    gains = [answer for answer in answers if answer.precision not in (None, BASELINE)]
    sentences = [_speed(answers, gains), _cost(gains), _trained(answers)]
    pieces = [enumerate(sentence.split(STRONG)) for sentence in sentences if sentence]
    return [[Part(text, place % 2 == 1) for place, text in sentence if text] for sentence in pieces]


def text(sentence: Sequence[Part]) -> str:
    """Return a sentence without its emphasis."""
    return "".join(part.text for part in sentence)


def _speed(answers: Sequence[Answer], gains: list[Answer]) -> str:
    timed = [answer for answer in gains if known(answer.arm["speedup"])]
    only = answers[0] if len(answers) == 1 else None
    clauses: list[str] = []
    for labels, group in _groups(timed):
        ends = sorted(float(answer.arm["speedup"]) for answer in group)
        arm = group[0].arm
        size = times(arm["speedup"], arm["low"], arm["high"]) if len(group) == 1 else span(ends[0], ends[-1])
        fast = " as fast as fp32" if not clauses else ""
        on = f"on {listed(labels)}" + (f" for {only.workload} at batch {only.batch}" if only else "")
        clauses.append(f"{'' if clauses else _subject(timed)}{STRONG}{size}{STRONG}{fast} {on}")
    clauses += [
        f"only {answer.precision} fits on {answer.label} for {answer.workload}"
        for answer in gains
        if not known(answer.arm["speedup"])
    ]
    stays = [answer for answer in answers if answer.precision == BASELINE]
    rival = _rival(only) if only and stays else ""
    clauses += [f"{STRONG}stay with fp32{STRONG} {place}{rival}" for place in _places(stays, answers)]
    unknown = [answer for answer in answers if answer.precision is None]
    clauses += [f"{unknown[0].advice} {place}" for place in _places(unknown, answers)]
    sentence = "; ".join(clauses)
    if not clauses or sentence.split()[0] in {answer.precision for answer in gains}:
        return f"{sentence}." if clauses else ""
    at = len(sentence) - len(sentence.lstrip(STRONG))
    return f"{sentence[:at]}{sentence[at].upper()}{sentence[at + 1 :]}."


def _rival(stay: Answer) -> str:
    """Describe the best other precision where fp32 is advised."""
    arm = stay.arm
    size = times(arm["speedup"], arm["low"], arm["high"])
    if arm["verdict"] == "INCONCLUSIVE" and known(arm["low"]) and arm["low"] < 1 < arm["high"]:
        ends = f"{number(arm['low'], 3)} and {number(arm['high'], 3)}"
        return f": {arm['precision']} is not shown to be faster, but between {ends} times as fast"
    return f": {arm['precision']} is {size}" + ("" if size.endswith("slower") else " as fast")


def _subject(timed: Sequence[Answer]) -> str:
    """Name the advised precision, or a group that all advised ones belong to."""
    names = {str(answer.precision) for answer in timed}
    if len(names) == 1:
        return f"{names.pop()} is "
    kinds = [find_precision(name) for name in names]
    mixed = all(kind is not None and (kind.autocast or kind.weights or kind.conversion) for kind in kinds)
    return "mixed precision is " if mixed else "the advised precision is "


def _groups(timed: Sequence[Answer]) -> list[tuple[list[str], list[Answer]]]:
    """Group devices of like gains, the largest first; ever wider groups, until they are few enough for a sentence."""
    by_device: dict[str, list[Answer]] = {}
    for answer in timed:
        by_device.setdefault(answer.label, []).append(answer)
    mean = {
        label: math.exp(sum(math.log(answer.arm["speedup"]) for answer in some) / len(some))
        for label, some in by_device.items()
    }
    apart = APART
    while True:
        groups: list[list[str]] = []
        for label in sorted(by_device, key=lambda label: -mean[label]):
            if groups and mean[groups[-1][-1]] <= apart * mean[label]:
                groups[-1].append(label)
            else:
                groups.append([label])
        if len(groups) <= MOST_GROUPS:
            return [(labels, [answer for label in labels for answer in by_device[label]]) for labels in groups]
        apart *= APART


def _places(chosen: Sequence[Answer], answers: Sequence[Answer]) -> list[str]:
    """Return the devices on which an advice holds for every suite, then those of each other suite."""
    counts, every = (Counter(answer.label for answer in some) for some in (chosen, answers))
    whole = [label for label in counts if counts[label] == every[label]]
    rest: dict[str, list[str]] = {}
    for answer in chosen:
        if answer.label not in whole:
            rest.setdefault(answer.workload, []).append(answer.label)
    places = [f"for {workload} on {listed(labels)}" for workload, labels in rest.items()]
    return [f"on {listed(whole)}", *places] if whole else places


def _cost(gains: Sequence[Answer]) -> str:
    if not gains:
        return ""
    changes = sorted(float(answer.arm["memory_change"]) for answer in gains if known(answer.arm["memory_change"]))
    clauses = [f"it takes {_memory(changes[0], changes[-1])}"] if changes else []
    clauses.append(_accuracy(gains))
    tied = [answer for answer in gains if answer.ties]
    pairs = {frozenset({str(answer.precision), *answer.ties}) for answer in tied}
    if len(pairs) == 1:
        everywhere = "" if len(tied) == len(gains) == 1 else f" in {cases(len(tied), len(gains))}"
        clauses.append(f"{listed(sorted(pairs.pop()))} tie{everywhere}")
    sentence = "; ".join(clauses)
    return f"{sentence[0].upper()}{sentence[1:]}."


def _memory(least: float, most: float) -> str:
    """Write how much memory is saved, from the largest saving to the smallest."""
    low, high = (change(abs(end)).removeprefix("+").removesuffix(" %") for end in (least, most))
    if least < 0 < most:
        return f"between {high} % more and {low} % less memory"
    ends, word = ((high, low), "less") if most <= 0 else ((low, high), "more")
    return f"{'–'.join(dict.fromkeys(ends))} % {word} memory"


def _trained(answers: Sequence[Answer]) -> str:
    """Return what the trainings of the only recipe and device show; empty where something was timed, or of several."""
    results = [
        f"{name} {word if word == 'diverged' else f'is {word}'}" for answer in answers for name, word in answer.trained
    ]
    return f"Compared with {BASELINE} after training, {listed(results)}." if results and len(answers) == 1 else ""


def _accuracy(gains: Sequence[Answer]) -> str:
    compared = [answer for answer in gains if answer.training and judged_by(answer.training)]
    shown = [answer for answer in gains if answer.accuracy == NOT_WORSE]
    if len(gains) == 1:
        training = gains[0].training
        quality = judged_by(training) if training else None
        if quality is None:
            return NO_ACCURACY if gains[0].accuracy == NO_ACCURACY else "its accuracy was not compared"
        size = f"{signed(training[quality.change], quality.decimals)} {quality.unit}"
        over = f"{size} over {counted(training['delta_seeds'], 'seed')}"
        return f"its {quality.label} is {'not worse' if shown else 'not shown to be the same'} ({over})"
    if not compared:
        return "accuracy was not compared"
    untrained = sum(not answer.training for answer in gains)
    others = {
        "undecided": len(compared) - len(shown),
        "not compared": len(gains) - untrained - len(compared),
        "not trained": untrained,
    }
    parts = [f"{word} in {count}" for word, count in others.items() if count]
    return ", ".join([f"accuracy is shown not worse in {cases(len(shown), len(gains))}", *parts])


def cases(some: int, every: int) -> str:
    """Write a count of cases, a case being a suite on a device: 8 of 15 cases."""
    return f"all {every} cases" if some == every else f"{some} of {every} cases"


def span(low: float, high: float) -> str:
    """Write a range of speedups: 2.6–3.7×; one figure where both ends read the same."""
    digits = 2 if high >= 1.5 else 3
    return "–".join(dict.fromkeys(number(end, digits) for end in (low, high))) + "×"


def listed(names: Sequence[str]) -> str:
    """List names in a sentence; of many some, and how many more."""
    names = list(dict.fromkeys(names))
    if len(names) > NAMED:
        names = [*names[: NAMED - 1], f"{len(names) - NAMED + 1} more"]
    return " and ".join(filter(None, [", ".join(names[:-1]), names[-1]]))
