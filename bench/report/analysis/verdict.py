"""The verdict: which precision to train with on each device, and its evidence, from measurements only."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from types import MappingProxyType
from typing import Any, NamedTuple

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

Row = Mapping[Hashable, Any]
"""A row of the summary."""
WORTHWHILE = 0.05
"""At equal speed, this share of memory saved is a reason to change precision."""
NOT_WORSE, NOT_SHOWN = "not worse", "not shown"
NO_ACCURACY = "no accuracy: regression"
WORDS = {"EQUIVALENT": NOT_WORSE, "NON-INFERIOR": NOT_WORSE, "WORSE": "worse", "diverged": "diverged"}
"""Words on accuracy, by the verdict on parity; others are not shown."""
BAD = ("WORSE", "diverged")
"""Parity verdicts that rule out a precision, whatever its speed."""
MEASURES = ["speed_status", "memory_status", "train_status"]
"""Columns of a precision's status; the first that is set counts."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Verdict:
    """An advice with its evidence, in three parts that a page may format differently."""

    subject: str
    advice: str
    """``use X``; ``fastest: X, accuracy not shown``, or ``NO_ACCURACY`` in its place; ``stay with fp32``; or why there
    is none."""
    evidence: str

    def __str__(self) -> str:
        return f"{self.subject}: {self.advice} — {self.evidence}."


@dataclass(frozen=True, kw_only=True, slots=True)
class Answer(Verdict):
    """The verdict on a suite on a device, with the figures that it rests on."""

    workload: str
    where: str
    label: str
    """The device's name in the shortest form that no other has."""
    architecture: str
    batch: int
    precision: str | None
    """The advised one; None if there is no advice."""
    arm: Row
    """Its row of the summary, for fp32 that of the best other precision; empty where there is no advice."""
    accuracy: str
    """``not worse``, ``worse``, ``diverged``, ``NO_ACCURACY`` or ``not shown``; empty for fp32 itself. Where no
    precision is advised, the words of ``trained``, each after its name."""
    trained: tuple[tuple[str, str], ...]
    """Where no precision is advised: each precision whose trainings show something, and what."""
    ties: tuple[str, ...]
    """Other precisions that are as fast."""
    training: Row
    """The row of the summary that ``accuracy`` is from, perhaps of another batch size; empty where none was trained."""
    rows: Sequence[Row]
    """All rows of the summary of the suite on the device."""


class _Choice(NamedTuple):
    """An advice before it is put into words."""

    advice: str
    evidence: str
    arm: Row = MappingProxyType({})
    """The row of the advised precision; where that is fp32, of the best other one."""
    stay: bool = False
    """Whether the advice is fp32."""
    ties: tuple[str, ...] = ()
    """Other precisions that are as fast."""


def answers(summary: pd.DataFrame) -> list[Answer]:
    """Return the answer for each suite on each device, in the order of the tables."""
    return [_Subject(rows).answer() for _, rows in summary.groupby(SUBJECT, sort=False)]


class _Subject:
    """A suite on a device: its rows of the summary, and the batch size that it is judged at."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = records(rows)
        self.batch = reference_batch(rows)
        self.cell = [row for row in self.rows if row["batch_size"] == self.batch]
        self.trained = {
            str(row["precision"]): row
            for row in sorted(self.rows, key=itemgetter("batch_size"))
            if known(row["train_status"])
        }
        """Each precision's training, at the largest batch size that it trained with."""
        self.lost = {
            str(row["precision"]): words[0]
            for row in self.cell
            if (words := [str(row[name]) for name in MEASURES if known(row[name])]) and words[0] not in MEASURED
        }
        """The status of each precision that was not measured."""
        self.at_best = best_speedups(rows)

    def answer(self) -> Answer:
        """Return the answer."""
        first, choice = self.cell[0], self._choose()
        evidence, arm = choice.evidence, choice.arm
        if known(first["ieee"]) and not first["ieee"]:
            evidence += (
                "; but what is called fp32 here was not computed in IEEE fp32, so this is no comparison with FP32"
            )
        words = {name: self._accuracy_word(name) for name in self.trained if name != BASELINE}
        trained = (
            () if arm else tuple((name, word) for name, word in words.items() if word not in (NOT_SHOWN, NO_ACCURACY))
        )
        return Answer(
            subject=f"{first['workload']} on {first['where']}, batch {self.batch}",
            advice=choice.advice,
            evidence=evidence,
            workload=str(first["workload"]),
            where=str(first["where"]),
            label=str(first["label"]),
            architecture=str(first["architecture"]),
            batch=self.batch,
            precision=BASELINE if choice.stay else str(arm["precision"]) if arm else None,
            arm=arm,
            accuracy=self._accuracy_word(str(arm["precision"]))
            if arm and not choice.stay
            else ", ".join(f"{name} {word}" for name, word in trained),
            trained=trained,
            ties=choice.ties,
            training=self.trained.get(str(arm["precision"]), {}) if arm else {},
            rows=self.rows,
        )

    def _choose(self) -> _Choice:
        arms = [row for row in self.cell if row["precision"] != BASELINE]
        if compared := [arm for arm in arms if known(arm["speedup"])]:
            return self._with_speedup(compared)
        if arms:
            return self._without_speedup(arms)
        measured = any(self.cell[0][name] in MEASURED for name in MEASURES)
        status = "" if measured else self.lost.get(BASELINE, "")
        return _Choice("no comparison", f"only fp32 was tried: {status}" if status else "only fp32 was measured")

    def _with_speedup(self, compared: Sequence[Row]) -> _Choice:
        best = max(compared, key=itemgetter("speedup"))
        if BASELINE in self.trained and self.trained[BASELINE]["train_status"] == "nonfinite":
            evidence = f"training diverged in fp32 itself: {best['precision']} is {self._evidence(best)}"
            return _Choice("no verdict", evidence)
        ruled_out = {name for name, row in self.trained.items() if row["parity"] in BAD}
        sound = [arm for arm in compared if arm["precision"] not in ruled_out]
        if not sound:
            evidence = f"its training rules out {best['precision']}, which is {self._evidence(best)}"
            return _Choice("stay with fp32", evidence, best, stay=True)
        if faster := [arm for arm in sound if arm["verdict"] == "FASTER"]:
            fastest = max(faster, key=itemgetter("speedup"))
            tied = [arm for arm in faster if _tied(arm, fastest)]
            best = max(tied, key=self._preference)
            others = tuple(str(arm["precision"]) for arm in tied if arm is not best)
            ties = f"; {' and '.join(others)} {'tie' if len(others) > 1 else 'ties'} with it" if others else ""
            evidence = self._evidence(best) + ties + self._elsewhere(best)
            return self._advise(best, "fastest", evidence)._replace(ties=others)
        if lighter := [arm for arm in sound if arm["verdict"] == "SAME" and arm["memory_change"] <= -WORTHWHILE]:
            best = min(lighter, key=itemgetter("memory_change"))
            return self._advise(best, "lightest", f"for its memory: {self._evidence(best)}{self._elsewhere(best)}")
        best = max(sound, key=itemgetter("speedup"))
        undecided = any(arm["verdict"] == "INCONCLUSIVE" for arm in sound)
        why = "no gain is shown, measure longer to decide" if undecided else "nothing gains"
        because = reason(best, next((row for row in self.cell if row["precision"] == BASELINE), None))
        because = f"; the reason: {because}" if because else ""
        evidence = f"{why}: {best['precision']} is {self._evidence(best)}{because}{self._elsewhere(best)}"
        return _Choice("stay with fp32", evidence, best, stay=True)

    def _without_speedup(self, arms: Sequence[Row]) -> _Choice:
        timed = [arm for arm in arms if known(arm["samples_per_s"])]
        if timed and self.lost.get(BASELINE) == "oom":
            best = max(timed, key=itemgetter("samples_per_s"))
            pace = f"{best['precision']} trains {number(best['samples_per_s'])} samples/s"
            return self._advise(best, "fastest", f"fp32 does not fit (oom), so there is no speedup to state; {pace}")
        looked = [name for name in ("numerics", "inference") if any(known(row[f"{name}_status"]) for row in self.cell)]
        if looked and not any(known(row[name]) for row in self.cell for name in MEASURES):
            outcomes = [f"{name}: {self._outcomes(name)}" for name in looked]
            advice = f"no verdict, only {' and '.join(looked)} were looked at"
            return _Choice(advice, f"{'. '.join(outcomes)}. The tables have the results")
        words = ", ".join(f"{name} {word}" for name, word in self.lost.items())
        why = f"no speedup was measured ({words})" if words else "no speedup was measured"
        parts = [f"{arm['precision']}: {self._changes(arm, _epoch(arm))}" for arm in arms]
        return _Choice("no verdict on speed", "; ".join([why, *parts]))

    def _advise(self, arm: Row, gain: str, evidence: str) -> _Choice:
        """Advise a precision: to use it where its accuracy is shown, else as the ``gain``, such as the fastest."""
        name = str(arm["precision"])
        word = self._accuracy_word(name)
        doubt = word if word == NO_ACCURACY else "accuracy not shown"
        return _Choice(f"use {name}" if word == NOT_WORSE else f"{gain}: {name}, {doubt}", evidence, arm)

    def _preference(self, arm: Row) -> tuple[bool, bool, float]:
        """Order precisions that are as fast: accuracy that is shown, then no loss scaling, then the faster."""
        name = str(arm["precision"])
        return self._accuracy_word(name) == NOT_WORSE, not parse_precision(name).loss_scaling, arm["speedup"]

    def _accuracy_word(self, precision: str) -> str:
        """Return the result of comparing the trainings of a precision with fp32's."""
        training = self.trained.get(precision, {})
        return WORDS.get(str(training.get("parity")), NO_ACCURACY if training.get("regression") else NOT_SHOWN)

    def _outcomes(self, phase: str) -> str:
        """List the precisions by their status in a phase that has no verdict."""
        names: dict[str, list[str]] = {}
        for row in self.cell:
            if known(status := row[f"{phase}_status"]):
                names.setdefault("measured" if status == "ok" else str(status), []).append(str(row["precision"]))
        return "; ".join(f"{status} in {', '.join(some)}" for status, some in names.items())

    def _evidence(self, arm: Row) -> str:
        """Write an arm's speedup with its interval and caveats, that at the best batch sizes, and other changes."""
        speedup, _, interval = ratio(arm["speedup"], arm["low"], arm["high"]).partition(" ")
        marks = marked(arm["verdict"], arm["measured_in"], arm["speed_status"])
        text = f"{speedup}× as fast as fp32 {interval or '(no interval)'} ({marks})"
        best, at_best = self.at_best.get(str(arm["precision"])), ""
        if best is not None and not best.fp32 == best.own == arm["batch_size"]:
            center, brackets, rest = str(best).partition(" ")
            sizes = f"fp32 {best.fp32}, {arm['precision']} {best.own}"
            at_best = f"{center}×{brackets}{rest} with each at its best batch ({sizes})"
        return ", ".join(filter(None, [text, self._changes(arm, at_best)]))

    def _changes(self, arm: Row, first: str) -> str:
        """Write an arm's changes in memory, energy and accuracy, after another one."""
        return ", ".join(filter(None, [first, _memory(arm), _less_or_more(arm["energy_change"], "energy a step"),
                                       self._accuracy(arm)]))  # fmt: skip

    def _accuracy(self, arm: Row) -> str:
        row = self.trained.get(str(arm["precision"]))
        if row is None:
            return "accuracy not measured"
        at = "" if row["batch_size"] == arm["batch_size"] else f" (trained at batch {row['batch_size']:.0f})"
        fp32 = f"fp32 diverged in {counted(row['fp32_diverged'], 'seed')}" if row["fp32_diverged"] else ""
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
        over = f"{counted(row['delta_seeds'], 'seed')} of {counted(row['epochs'], 'epoch')}"
        delta = written(quality, [row[name] for name in quality.changes], quality.unit, "90 %: ")
        return f"{quality.label} {delta} over {over} ({judgement}){at}"

    def _elsewhere(self, best: Row) -> str:
        """Name the batch sizes at which the arm has another speed verdict, each with its speedup."""
        sizes: dict[str, list[str]] = {}
        for row in self.rows:
            if row["precision"] == best["precision"] and known(row["verdict"]) and row["verdict"] != best["verdict"]:
                speedup = ratio(row["speedup"], row["low"], row["high"])
                sizes.setdefault(row["verdict"], []).append(f"{row['batch_size']:.0f} ({speedup}×)")
        verdicts = [f"{verdict} at batch {', '.join(some)}" for verdict, some in sizes.items()]
        return f"; it is {' and '.join(verdicts)}" if verdicts else ""


def _tied(arm: Row, fastest: Row) -> bool:
    """Say whether an arm is not shown to be slower than the fastest: by their ratio in the processes that timed both.

    Where fewer than two processes timed both, it is by whether their intervals over fp32 overlap.
    """
    if arm is fastest:
        return True
    ahead = estimate(SPEED, fastest[SPEED.arm], arm[SPEED.arm])
    if ahead is None or not ahead.is_paired or ahead.change.low is None:
        return bool(arm["high"] >= fastest["low"])
    return ahead.change.low <= 0


def marked(verdict: str, measured_in: str, status: str) -> str:
    """Write a verdict with its caveats: one process only, arms timed in separate processes, or too wide an interval."""
    marks = [verdict]
    marks += [measured_in] if measured_in == processes(1) or measured_in.endswith(" apart") else []
    marks += [status] if status == "unconverged" else []
    return ", ".join(marks)


def _epoch(arm: Row) -> str:
    if not known(arm["epoch_speedup"]):
        return ""
    return f"epochs {ratio(arm['epoch_speedup'], arm['epoch_low'], arm['epoch_high'])}× as fast as fp32's"


def _less_or_more(share: float, what: str) -> str:
    """Write a change as 40 % less of something; empty where it is unknown."""
    return f"{change(abs(share)).removeprefix('+')} {'less' if share < 0 else 'more'} {what}" if known(share) else ""


def _memory(arm: Row) -> str:
    if text := _less_or_more(arm["memory_change"], "peak memory"):
        return (
            f"{text} ({processes(1)} each)" if arm["device_kind"] == "cpu" else text
        )  # a GPU's allocator repeats itself
    word = arm["memory_status"]
    if known(word) and word not in MEASURED:
        return f"memory {word}"
    return "peak memory not told apart" if known(arm["memory_bytes"]) else "memory saved unknown"


def counted(count: float, what: str) -> str:
    """Write a number of things: 1 seed or 5 seeds."""
    return f"{count:.0f} {what}{'s' * (count != 1)}"
