"""The verdict: what to train with on each device, in a row and in a sentence, from measurements only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import pandas as pd

from bench.report.analysis.batches import best_speedups, reference_batch
from bench.report.analysis.bottleneck import reason
from bench.report.analysis.contrast import estimate
from bench.report.analysis.judge import MIN_SEEDS, judged_by
from bench.report.format import change, known, number, processes, ratio, records, written
from bench.report.reading.load import SUBJECT
from bench.results.records import MEASURED
from bench.spec.metrics import SPEED
from bench.spec.precisions import BASELINE, parse_precision

WORTHWHILE = 0.05
"""At equal speed, this share of memory saved is a reason to change precision."""
NOT_WORSE, NOT_SHOWN = "not worse", "not shown"
NO_ACCURACY = "no accuracy: regression"
BAD = ("WORSE", "diverged")
"""Parity verdicts that rule out a precision, whatever its speed."""
MEASURES = ["speed_status", "memory_status", "train_status"]
"""Columns of a precision's status; the first that is set counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer:
    """What to train a suite with on a device, at a glance."""

    workload: str
    where: str
    label: str
    """The device's name in the shortest form that no other has."""
    batch: int
    advice: str
    precision: str | None
    """What the advice names; None if there is no advice."""
    arm: Mapping[Hashable, Any]
    """Its row of the summary, for fp32 that of the best other precision; empty where there is no advice."""
    accuracy: str
    """``not worse``, ``worse``, ``diverged``, ``NO_ACCURACY`` or ``not shown``; empty for fp32 itself. Where no
    precision is advised, the words of ``trained``, each after its name."""
    trained: tuple[tuple[str, str], ...] = ()
    """Where no precision is advised: each precision whose trainings show something, and what."""
    ties: tuple[str, ...] = ()
    """Other precisions that are as fast."""
    training: Mapping[Hashable, Any] = field(default_factory=dict)
    """The row of the summary that ``accuracy`` is from, perhaps of another batch size; empty where none was trained."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Sentence:
    """One verdict in three parts, which a page may format differently."""

    subject: str
    advice: str
    """``use X``; ``fastest: X, accuracy not shown``, or ``NO_ACCURACY`` in its place; ``stay with fp32``; or why there
    is none."""
    evidence: str
    answer: Answer | None = None
    """The same at a glance; None of an ablation."""

    def __str__(self) -> str:
        return f"{self.subject}: {self.advice} — {self.evidence}."


@dataclass(frozen=True, kw_only=True, slots=True)
class _Choice:
    """An advice before it is put into words."""

    advice: str
    evidence: str
    arm: pd.Series | None = None
    """What to use; where that is fp32, the best of the others."""
    stay: bool = False
    """Whether the advice is fp32."""
    ties: tuple[str, ...] = ()
    """Other precisions that are as fast."""


def sentences(summary: pd.DataFrame) -> list[Sentence]:
    """Return the verdicts in the order of the tables."""
    return [_sentence(rows) for _, rows in summary.groupby(SUBJECT, sort=False)]


def _sentence(rows: pd.DataFrame) -> Sentence:
    batch = reference_batch(rows)
    cell = rows[rows["batch_size"] == batch]
    first = cell.iloc[0]
    arms = cell[cell["precision"] != BASELINE]
    compared, trained = arms[arms["speedup"].notna()], _trained(rows)
    if arms.empty:
        fp32_status = "" if first[MEASURES].isin(MEASURED).any() else _lost(cell).get(BASELINE, "")
        choice = _Choice(
            advice="no comparison",
            evidence=f"only fp32 was tried: {fp32_status}" if fp32_status else "only fp32 was measured",
        )
    elif compared.empty:
        choice = _without_speedup(rows, cell, arms)
    else:
        choice = _with_speedup(rows, compared, trained)
    evidence = choice.evidence
    if known(first["ieee"]) and not first["ieee"]:
        evidence += "; but what is called fp32 here was not computed in IEEE fp32, so this is no comparison with FP32"
    arm = choice.arm
    words = _accuracy_words(trained) if arm is None else ()
    if arm is None:
        accuracy = ", ".join(f"{name} {word}" for name, word in words)
    else:
        accuracy = "" if choice.stay else accuracy_word(trained, str(arm["precision"]))
    answer = Answer(
        workload=first["workload"],
        where=first["where"],
        label=first["label"],
        batch=batch,
        advice=choice.advice,
        precision=BASELINE if choice.stay else None if arm is None else str(arm["precision"]),
        arm={} if arm is None else arm.to_dict(),
        accuracy=accuracy,
        trained=words,
        ties=choice.ties,
        training={} if arm is None else trained.get(str(arm["precision"]), {}),
    )
    subject = f"{answer.workload} on {answer.where}, batch {batch}"
    return Sentence(subject=subject, advice=choice.advice, evidence=evidence, answer=answer)


def _accuracy_words(trained: Mapping[str, Mapping[Hashable, Any]]) -> tuple[tuple[str, str], ...]:
    """Return what is shown of the precisions' accuracy, without those of which nothing is."""
    words = [(name, accuracy_word(trained, name)) for name in trained if name != BASELINE]
    return tuple((name, word) for name, word in words if word not in (NOT_SHOWN, NO_ACCURACY))


def accuracy_word(trained: Mapping[str, Mapping[Hashable, Any]], precision: str) -> str:
    """Return what the trainings show of a precision's accuracy beside fp32's."""
    training = trained.get(precision, {})
    words = {"EQUIVALENT": NOT_WORSE, "NON-INFERIOR": NOT_WORSE, "WORSE": "worse", "diverged": "diverged"}
    return words.get(str(training.get("parity")), NO_ACCURACY if training.get("regression") else NOT_SHOWN)


def _use(
    trained: Mapping[str, Mapping[Hashable, Any]], arm: pd.Series, evidence: str, kind: str = "fastest"
) -> _Choice:
    """Advise a precision: to use it where its accuracy is shown, else as the ``kind`` of arm that it is."""
    name = str(arm["precision"])
    word = accuracy_word(trained, name)
    open_ = f"{kind}: {name}, {word if word == NO_ACCURACY else 'accuracy not shown'}"
    return _Choice(advice=f"use {name}" if word == NOT_WORSE else open_, evidence=evidence, arm=arm)


def _with_speedup(rows: pd.DataFrame, compared: pd.DataFrame, trained: Mapping[str, Mapping[Hashable, Any]]) -> _Choice:
    if BASELINE in trained and trained[BASELINE]["train_status"] == "nonfinite":
        best = _first(compared, "speedup", largest=True)
        evidence = f"training diverged in fp32 itself: {best['precision']} is {_evidence(rows, best)}"
        return _Choice(advice="no verdict", evidence=evidence)
    ruled_out = {name for name, row in trained.items() if row["parity"] in BAD}
    sound = compared[~compared["precision"].isin(ruled_out)]
    faster = sound[sound["verdict"] == "FASTER"]
    lighter = sound[(sound["verdict"] == "SAME") & (sound["memory_change"] <= -WORTHWHILE)]
    if len(faster):
        fastest = _first(faster, "speedup", largest=True)
        tied = faster[[_tied(arm, fastest) for _, arm in faster.iterrows()]]
        best = _preferred(tied, trained)
        others = tuple(str(name) for name in tied["precision"] if name != best["precision"])
        ties = f"; {' and '.join(others)} {'tie' if len(others) > 1 else 'ties'} with it" if others else ""
        return replace(_use(trained, best, _evidence(rows, best) + ties + _elsewhere(rows, best)), ties=others)
    if len(lighter):
        best = _first(lighter, "memory_change", largest=False)
        why = f"for its memory: {_evidence(rows, best)}"
        return _use(trained, best, why + _elsewhere(rows, best), "lightest")
    if not len(sound):
        best = _first(compared, "speedup", largest=True)
        evidence = f"its training rules out {best['precision']}, which is {_evidence(rows, best)}"
        return _Choice(advice="stay with fp32", evidence=evidence, arm=best, stay=True)
    best = _first(sound, "speedup", largest=True)
    undecided = (sound["verdict"] == "INCONCLUSIVE").any()
    why = "no gain is shown, measure longer to decide" if undecided else "nothing gains"
    evidence = f"{why}: {best['precision']} is {_evidence(rows, best)}"
    because = reason(best, _baseline(rows, best))
    evidence += (f"; the reason: {because}" if because else "") + _elsewhere(rows, best)
    return _Choice(advice="stay with fp32", evidence=evidence, arm=best, stay=True)


def _tied(arm: pd.Series, fastest: pd.Series) -> bool:
    """Say whether an arm is not shown to be slower than the fastest: by their ratio in the processes that timed both.

    Where fewer than two processes timed both, it is by whether their intervals over fp32 overlap.
    """
    if arm["precision"] == fastest["precision"]:
        return True
    ahead = estimate(SPEED, fastest[SPEED.arm], arm[SPEED.arm])
    if ahead is None or not ahead.is_paired or ahead.change.low is None:
        return bool(arm["high"] >= fastest["low"])
    return ahead.change.low <= 0


def _preferred(tied: pd.DataFrame, trained: Mapping[str, Mapping[Hashable, Any]]) -> pd.Series:
    """Choose among precisions that are as fast: accuracy that is shown, then no loss scaling, then the faster."""
    ranked = tied.assign(
        shown=[accuracy_word(trained, name) == NOT_WORSE for name in tied["precision"]],
        plain=[not parse_precision(name).loss_scaling for name in tied["precision"]],
    )
    return ranked.sort_values(["shown", "plain", "speedup"], ascending=False, kind="stable").iloc[0]


def _without_speedup(rows: pd.DataFrame, cell: pd.DataFrame, arms: pd.DataFrame) -> _Choice:
    """Return the choice where no arm has a speedup."""
    timed = arms[arms["step_ms"].notna()]
    if len(timed) and _lost(cell).get(BASELINE) == "oom":
        best = _first(timed, "samples_per_s", largest=True)
        pace = f"{best['precision']} trains {number(best['samples_per_s'])} samples/s"
        return _use(_trained(rows), best, f"fp32 does not fit (oom), so there is no speedup to state; {pace}")
    observed_phases = [phase for phase in ("numerics", "inference") if cell[f"{phase}_status"].notna().any()]
    if observed_phases and not cell[["speed_status", "memory_status", "train_status"]].notna().any(axis=None):
        advice = f"no verdict, only {' and '.join(observed_phases)} were looked at"
        return _Choice(advice=advice, evidence=_outcomes(cell, observed_phases))
    words = [f"{name} {word}" for name, word in _lost(cell).items()]
    why = f"no speedup was measured ({', '.join(words)})" if words else "no speedup was measured"
    parts = [f"{row['precision']}: {_epoch(row)}{_besides(rows, row)}" for _, row in arms.iterrows()]
    return _Choice(advice="no verdict on speed", evidence="; ".join([why, *parts]))


def _epoch(arm: pd.Series) -> str:
    if not known(arm["epoch_speedup"]):
        return ""
    return f"epochs {ratio(arm['epoch_speedup'], arm['epoch_low'], arm['epoch_high'])}× as fast as fp32's, "


def _lost(cell: pd.DataFrame) -> dict[str, str]:
    """Return the status of each precision that was not measured, by name."""
    statuses = {}
    for row in records(cell):
        words = [str(row[name]) for name in MEASURES if known(row[name])]
        if words and words[0] not in MEASURED:
            statuses[str(row["precision"])] = words[0]
    return statuses


def _outcomes(cell: pd.DataFrame, phases: list[str]) -> str:
    """List each precision's status in phases that have no verdict."""
    outcomes = []
    for phase in phases:
        groups = cell.groupby(cell[f"{phase}_status"].replace("ok", "measured"), sort=False)["precision"]
        outcomes.append(f"{phase}: " + "; ".join(f"{status} in {', '.join(names)}" for status, names in groups))
    return f"{'. '.join(outcomes)}. The tables have the results"


def _baseline(rows: pd.DataFrame, arm: pd.Series) -> pd.Series | None:
    baselines = rows[(rows["precision"] == BASELINE) & (rows["batch_size"] == arm["batch_size"])]
    return None if baselines.empty else baselines.iloc[0]


def _first(arms: pd.DataFrame, by: str, *, largest: bool) -> pd.Series:
    return arms.sort_values(by, ascending=not largest, kind="stable").iloc[0]


def _evidence(rows: pd.DataFrame, arm: pd.Series) -> str:
    speedup, _, interval = ratio(arm["speedup"], arm["low"], arm["high"]).partition(" ")
    speed = f"{speedup}× as fast as fp32 {interval or '(no interval)'}"
    marks = marked(arm["verdict"], arm["measured_in"], arm["speed_status"])
    besides = ", ".join(text for text in (_at_best(rows, arm), _besides(rows, arm)) if text)
    return f"{speed} ({marks})" + (f", {besides}" if besides else "")


def marked(verdict: str, measured_in: str, status: str) -> str:
    """Write a verdict with its caveats: one process only, arms timed in separate processes, or too wide an interval."""
    marks = [verdict]
    marks += [measured_in] if measured_in == processes(1) or measured_in.endswith(" apart") else []
    marks += [status] if status == "unconverged" else []
    return ", ".join(marks)


def _at_best(rows: pd.DataFrame, arm: pd.Series) -> str:
    """Write the speedup with fp32 and the arm each at its best batch size; empty if this is the best for both."""
    best = best_speedups(rows).get(str(arm["precision"]))
    if best is None or best.fp32 == best.own == arm["batch_size"]:
        return ""
    sizes = f"fp32 {best.fp32}, {arm['precision']} {best.own}"
    center, brackets, rest = str(best).partition(" ")
    return f"{center}×{brackets}{rest} with each at its best batch ({sizes})"


def _besides(rows: pd.DataFrame, arm: pd.Series) -> str:
    """Write an arm's changes in memory, energy and accuracy."""
    return ", ".join(text for text in (_memory(arm), _energy(arm), _accuracy(rows, arm)) if text)


def _energy(arm: pd.Series) -> str:
    share = arm["energy_change"]
    if not known(share):
        return ""
    size = change(abs(share)).removeprefix("+")
    return f"{size} less energy a step" if share < 0 else f"{size} more energy a step"


def _memory(arm: pd.Series) -> str:
    share = arm["memory_change"]
    if known(share):
        size = change(abs(share)).removeprefix("+")
        once = f" ({processes(1)} each)" if arm["device_kind"] == "cpu" else ""  # a GPU's allocator repeats itself
        return f"{size} {'less' if share < 0 else 'more'} peak memory{once}"
    word = arm["memory_status"]
    if known(word) and word not in MEASURED:
        return f"memory {word}"
    return "peak memory not told apart" if known(arm["memory_bytes"]) else "memory saved unknown"


def _accuracy(rows: pd.DataFrame, arm: pd.Series) -> str:
    row = _trained(rows).get(str(arm["precision"]))
    if row is None:
        return "accuracy not measured"
    at = "" if row["batch_size"] == arm["batch_size"] else f" (trained at batch {row['batch_size']:.0f})"
    fp32 = f"fp32 diverged in {_counted(row['fp32_diverged'], 'seed')}" if row["fp32_diverged"] else ""
    if row["train_status"] not in MEASURED:
        return f"training {row['train_status']}{at}" + (f", and {fp32}" if fp32 else "")
    quality = judged_by(row)
    if quality is None:
        outcome = NO_ACCURACY if row["regression"] else "accuracy not measured"
        outcome = f"test loss {number(row['test_loss'])}{at}" if known(row["test_loss"]) else outcome
        return f"{outcome} ({fp32})" if fp32 else outcome
    judgement = {
        "insufficient seeds": f"insufficient seeds for a parity verdict, which needs {MIN_SEEDS}",
        "EQUIVALENT": f"EQUIVALENT within ±{quality.margin} {quality.unit}",
        "diverged": f"{row['diverged']:.0f} of its trainings diverged",
    }.get(row["parity"], f"{row['parity']} at a margin of {quality.margin} {quality.unit}")
    judgement += f"; {fp32}" if fp32 else ""
    over = f"{_counted(row['delta_seeds'], 'seed')} of {_counted(row['epochs'], 'epoch')}"
    delta = written(quality, [row[name] for name in quality.changes], quality.unit, "90 %: ")
    return f"{quality.label} {delta} over {over} ({judgement}){at}"


def _counted(count: float, what: str) -> str:
    return f"{count:.0f} {what}" if count == 1 else f"{count:.0f} {what}s"


def _trained(rows: pd.DataFrame) -> dict[str, dict[Hashable, Any]]:
    """Return each precision's training, at the largest batch size that it trained with."""
    trained = rows[rows["train_status"].notna()].sort_values("batch_size", kind="stable")
    return {str(row["precision"]): row for row in records(trained)}


def _elsewhere(rows: pd.DataFrame, best: pd.Series) -> str:
    """Name the batch sizes at which the arm has another speed verdict, each with its speedup."""
    same = rows[(rows["precision"] == best["precision"]) & rows["verdict"].notna()]
    verdicts = []
    for verdict, group in same[same["verdict"] != best["verdict"]].groupby("verdict", sort=False):
        sizes = [
            f"{row['batch_size']:.0f} ({ratio(row['speedup'], row['low'], row['high'])}×)" for row in records(group)
        ]
        verdicts.append(f"{verdict} at batch {', '.join(sizes)}")
    return f"; it is {' and '.join(verdicts)}" if verdicts else ""
