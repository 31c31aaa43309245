"""The answer: which precision to train with on each device, its evidence, and all of them in two sentences.

The page, the markdown and the terminal write one object by templates; none computes a word of its own.
"""

from __future__ import annotations

import itertools
import math
from collections import Counter
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter
from typing import Any, NamedTuple

import pandas as pd

from bench.report.analysis.alone import IN_TURNS, TOLERANCE
from bench.report.analysis.contrast import estimate
from bench.report.analysis.doubts import DOUBTS, OTHER_TYPES, PARTIAL, Doubt, doubted, marked_verdict
from bench.report.analysis.judge import MIN_SEEDS, judged_by
from bench.report.analysis.summary import MEASURES, best_rows, over, reference_batch
from bench.report.format import (
    MIB,
    UNKNOWN,
    at_batch,
    capital,
    change,
    counted,
    enumerated,
    known,
    number,
    processes,
    ratio,
    records,
    signed,
    times,
    written,
)
from bench.report.format import spread as half_width
from bench.report.reading.load import SUBJECT
from bench.results.records import MEASURED
from bench.spec.metrics import SPEED
from bench.spec.precisions import BASELINE, find_precision

Row = Mapping[Hashable, Any]
"""A row of the summary."""
WORTHWHILE = 0.05
"""At equal speed, this share of memory saved is a reason to change precision."""
NOT_WORSE, NOT_SHOWN, NOT_TRAINED = "not worse", "not shown", "not trained"
NO_ACCURACY = "no accuracy: regression"
WORDS = {"EQUIVALENT": NOT_WORSE, "NON-INFERIOR": NOT_WORSE, "WORSE": "worse", "diverged": "diverged"}
"""Words on accuracy, by the verdict on parity; others are not shown."""
STALLED = "does not learn"
STANDING = {
    **{NOT_WORSE: "good", "worse": "bad", "diverged": "bad"},
    **dict.fromkeys(("not compared", "too few seeds", "undecided"), "open"),
    **dict.fromkeys((UNKNOWN, NOT_TRAINED, NO_ACCURACY), ""),
}
"""Whether a word on accuracy supports the advice. The status of a training that failed is bad."""
LITTLE_GAIN = 1.1
"""Ratio of two precisions' rates of large matrix products below which the device has no gain to give."""
LAUNCH_BOUND = 0.8
"""Host time over GPU time from which launching kernels is what limits."""
LITTLE_OF_CEILING = 25.0
"""Share of the ceiling, in per cent, below which arithmetic is not what limits."""


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
    """The verdict on a suite on a device, with the figures that it rests on.

    Its properties are the cells of its line in the grid; an empty one has nothing to say.
    """

    workload: str
    where: str
    label: str
    """The device's name in the shortest form that no other has."""
    architecture: str
    batch: int
    batch_text: str
    precision: str | None
    """The advised one; None if there is no advice."""
    arm: Row
    """Its row of the summary, for fp32 that of the best other precision; empty where there is no advice."""
    accuracy: str
    """``not worse``, ``worse``, ``diverged``, ``NO_ACCURACY`` or ``not shown``. Where none but fp32 is advised, the
    words of ``trained``, each after its name."""
    trained: tuple[tuple[str, str], ...]
    """Where none but fp32 is advised: each precision whose trainings show something, and what."""
    ties: tuple[str, ...]
    """Other precisions that are as fast."""
    training: Row
    """The row of the summary that ``accuracy`` is from, perhaps of another batch size; empty where none was trained."""
    rows: Sequence[Row]
    """All rows of the summary of the suite on the device."""

    @property
    def stalled(self) -> list[Verdict]:
        """A verdict on each precision that does not learn, where fp32 does."""
        return [
            Verdict(
                subject=f"{row['workload']} on {row['where']}{at_batch(row)}",
                advice=f"{row['precision']} {STALLED}",
                evidence=row["stalled"],
            )
            for row in self.rows
            if known(row["stalled"])
        ]

    @property
    def doubts(self) -> list[str]:
        """The names of the doubts about the figures that it rests on."""
        return [doubt.name for doubt in self._doubted]

    @property
    def doubt_marks(self) -> str:
        """The marks of its doubts."""
        return "".join(doubt.mark for doubt in self._doubted)

    @property
    def _doubted(self) -> list[Doubt]:
        return doubted([self.arm, self.training] if self.arm else self.rows)

    @property
    def paying(self) -> list[int]:
        """The batch sizes next to each other, its own among them, at all of which the advised precision is FASTER.

        Where fp32 is advised they are the largest sizes at which the best other precision is.
        """
        arms = [row for row in self._compared if row["precision"] == self.arm["precision"]] if self.arm else []
        runs = [
            [int(row["batch_size"]) for row in group]
            for is_faster, group in itertools.groupby(arms, lambda row: bool(row["verdict"] == "FASTER"))
            if is_faster
        ]
        if self.stays:
            return runs[-1] if runs and runs[-1][-1] == arms[-1]["batch_size"] else []
        return next((sizes for sizes in runs if self.batch in sizes), [])

    @property
    def pays_from(self) -> int | None:
        """The smallest of the batch sizes at which it pays; None where it pays at none."""
        return self.paying[0] if self.paying and self.batch_text != UNKNOWN else None

    @property
    def pays(self) -> str:
        """From which batch size on the precision pays, in words; empty where it pays at none."""
        if self.pays_from is None:
            return ""
        sizes = sorted({int(row["batch_size"]) for row in self._compared})
        first, last = self.paying[0], self.paying[-1]
        if len(sizes) == 1:
            return f"at batch {first}, the only one measured"
        to = f" to {last}" if last < sizes[-1] else ""
        return f"from batch {first}{to}" + (", the smallest measured" if first == sizes[0] else "")

    @property
    def _compared(self) -> list[Row]:
        return [row for row in self.rows if known(row["verdict"]) and row["precision"] != BASELINE]

    @property
    def stays(self) -> bool:
        """Whether the advice is fp32."""
        return self.precision == BASELINE

    @property
    def is_timed(self) -> bool:
        """Whether a gain over fp32 is known of the precision that is advised instead of it."""
        return bool(self.arm) and not self.stays and known(self.arm["speedup"])

    @property
    def use(self) -> str:
        """The advised precision, or why there is none."""
        return self.precision or self.advice

    @property
    def faster(self) -> str:
        """The speedup; where fp32 is advised, that of the best other precision after its name, or its interval."""
        size = times(self.arm["speedup"], self.arm["low"], self.arm["high"]) if self.arm else UNKNOWN
        if self.stays and _is_open(self.arm):
            size = f"{number(self.arm['low'], 2)} to {number(self.arm['high'], 2)}×"
        return f"{self.arm['precision']}: {size}" if self.stays else size

    @property
    def spread(self) -> str:
        """Half the width of the speedup's interval; empty where there is none, and for fp32."""
        has_interval = self.is_timed and known(self.arm["low"])
        return half_width(self.arm["low"], self.arm["high"]) if has_interval else ""

    @property
    def memory(self) -> str:
        """The change in peak memory from fp32."""
        return change(self.arm["memory_change"]) if self.arm and not self.stays else UNKNOWN

    @property
    def peak(self) -> str:
        """The peak memory; empty where it is not known, and for fp32."""
        return _mib(self.arm) if self.arm and not self.stays and known(self.arm["memory_bytes"]) else ""

    @property
    def energy(self) -> str:
        """The change in energy of a step from fp32."""
        return change(self.arm["energy_change"]) if self.arm and not self.stays else UNKNOWN

    @property
    def epoch(self) -> str:
        """The time of an epoch at the batch size in fp32 and in the advised precision: 329 → 297 s."""
        if self.stays or not self.arm or not known(self.arm["time_per_epoch_s"]):
            return UNKNOWN
        alike = [row for row in self.rows if row["batch_size"] == self.batch]
        fp32 = [row["time_per_epoch_s"] for row in alike if row["precision"] == BASELINE]
        ends = [number(seconds, 3) for seconds in (*fp32, self.arm["time_per_epoch_s"]) if known(seconds)]
        return f"{' → '.join(ends)} s"

    @property
    def accuracy_in_short(self) -> str:
        """A word on accuracy, or the status of a training that failed: a key of ``STANDING``, but for a status."""
        training = self.training
        if self.trained or self.accuracy in WORDS.values():
            return self.accuracy
        if self.stays or not self.arm:
            return UNKNOWN
        if not training or training["train_status"] not in MEASURED:
            return str(training["train_status"]) if training else NOT_TRAINED
        if self.accuracy == NO_ACCURACY or not judged_by(training):
            return NO_ACCURACY if self.accuracy == NO_ACCURACY else "not compared"
        return "too few seeds" if training["parity"] == "insufficient seeds" else "undecided"

    @property
    def points(self) -> str:
        """The difference in accuracy, or in the loss of tokens; the accuracy itself where there is none."""
        training = self.training
        failed = not training or training["train_status"] not in MEASURED
        if self.stays or failed or self.accuracy == NO_ACCURACY:
            return ""
        quality = judged_by(training)
        if quality is None:
            is_here = known(training["accuracy_pct"]) and training["batch_size"] == self.batch
            return f"{training['accuracy_pct']:.2f} %" if is_here else ""
        parts = [f"{signed(training[quality.change], quality.decimals)} {quality.short}"]
        few = self.accuracy_in_short == "too few seeds"
        parts += [counted(training["delta_seeds"], "seed")] if few else []
        parts += [f"batch {training['batch_size']:.0f}"] if training["batch_size"] != self.batch else []
        return ", ".join(parts)

    @property
    def standing(self) -> str:
        """``good``, ``bad``, ``open`` or empty: whether accuracy supports the advice."""
        words = [word for _, word in self.trained] or [self.accuracy_in_short]
        standings = [STANDING.get(word, "bad") for word in words]
        return "bad" if "bad" in standings else standings[0]


def _is_open(arm: Row) -> bool:
    """Say whether an arm may be faster or slower than fp32."""
    return arm["verdict"] == "INCONCLUSIVE" and known(arm["low"]) and bool(arm["low"] < 1 < arm["high"])


def answers(summary: pd.DataFrame) -> list[Answer]:
    """Return the answer for each suite on each device, in the order of the tables; a search for modules has its own."""
    subjects = [rows for _, rows in summary.groupby(SUBJECT, sort=False)]
    statuses = [[*rows.filter(like="_status").dropna(axis="columns", how="all")] for rows in subjects]
    return [_Subject(rows).answer() for rows, of in zip(subjects, statuses, strict=True) if of != ["layers_status"]]


class _Subject:
    """A suite on a device: its rows of the summary, and the batch size that it is judged at."""

    def __init__(self, rows: pd.DataFrame) -> None:
        self.rows = records(rows)
        self.batch = reference_batch(rows)
        self.cell = [row for row in self.rows if row["batch_size"] == self.batch]
        self.trained = {
            str(row["precision"]): row
            for row in sorted(self.rows, key=lambda row: (row["batch_size"] == self.batch, row["batch_size"]))
            if known(row["train_status"])
        }
        """Each precision's training at that batch size, or else at the largest that it trained with."""
        self.lost = {
            str(row["precision"]): words[0]
            for row in self.cell
            if (words := [str(row[name]) for name in MEASURES if known(row[name])]) and words[0] not in MEASURED
        }
        """The status of each precision that was not measured."""
        self.best = {str(row["precision"]): row for row in records(best_rows(rows))}
        """Each precision's row at its own best batch size."""

    def answer(self) -> Answer:
        """Return the answer."""
        arms = [row for row in self.cell if row["precision"] != BASELINE]
        if compared := [arm for arm in arms if known(arm["speedup"])]:
            return self._with_speedup(compared)
        if arms:
            return self._without_speedup(arms)
        measured = any(self.cell[0][name] in MEASURED for name in MEASURES)
        status = "" if measured else self.lost.get(BASELINE, "")
        return self._answer("no comparison", f"only fp32 was tried: {status}" if status else "only fp32 was measured")

    def _answer(self, advice: str, evidence: str, arm: Row | None = None, ties: Sequence[str] = ()) -> Answer:
        """Return an answer; ``arm`` is the row of the advised precision, where that is fp32 of the best other one."""
        first, name = self.cell[0], str(arm["precision"]) if arm else ""
        stays = advice == "stay with fp32"
        is_partial = DOUBTS[PARTIAL] in doubted(self.rows)
        if known(first["fp32_strayed"]):
            evidence += f"; but what is called fp32 here {first['fp32_strayed']}, so this is no comparison with FP32"
        words = {name: self._accuracy_word(name) for name in self.trained if name != BASELINE and (stays or not arm)}
        trained = tuple((name, word) for name, word in words.items() if word not in (NOT_SHOWN, NO_ACCURACY))
        in_words = ", ".join(f"{name} {word}" for name, word in trained)
        return Answer(
            subject=f"{first['workload']} on {first['where']}{at_batch(first)}",
            advice=f"{advice} so far" if is_partial else advice,
            evidence=evidence,
            workload=str(first["workload"]),
            where=str(first["where"]),
            label=str(first["label"]),
            architecture=str(first["architecture"]),
            batch=self.batch,
            batch_text=at_batch(first, "") or UNKNOWN,
            precision=BASELINE if stays else name or None,
            arm=arm or {},
            accuracy=self._accuracy_word(name) if name and not stays else in_words,
            trained=trained,
            ties=tuple(ties),
            training=self.trained.get(name, {}),
            rows=self.rows,
        )

    def _with_speedup(self, compared: Sequence[Row]) -> Answer:
        best = max(compared, key=itemgetter("speedup"))
        if BASELINE in self.trained and self.trained[BASELINE]["train_status"] == "nonfinite":
            evidence = f"training diverged in fp32 itself: {best['precision']} is {self._evidence(best)}"
            return self._answer("no verdict", evidence)
        ruled_out = ("worse", "diverged", STALLED)
        sound = [arm for arm in compared if self._accuracy_word(str(arm["precision"])) not in ruled_out]
        if not sound:
            evidence = f"its training rules out {best['precision']}, which is {self._evidence(best)}"
            return self._answer("stay with fp32", evidence, best)
        if faster := [arm for arm in sound if arm["verdict"] == "FASTER"]:
            fastest = max(faster, key=itemgetter("speedup"))
            tied = [arm for arm in faster if _tied(arm, fastest)]
            best = max(tied, key=self._preference)
            others = [str(arm["precision"]) for arm in tied if arm is not best]
            ties = f"; {' and '.join(others)} {'tie' if len(others) > 1 else 'ties'} with it" if others else ""
            return self._advise(best, "fastest", self._evidence(best) + ties + self._elsewhere(best), others)
        if lighter := [arm for arm in sound if arm["verdict"] == "SAME" and arm["memory_change"] <= -WORTHWHILE]:
            best = min(lighter, key=itemgetter("memory_change"))
            return self._advise(best, "lightest", f"for its memory: {self._evidence(best)}{self._elsewhere(best)}")
        best = max(sound, key=itemgetter("speedup"))
        undecided = any(arm["verdict"] == "INCONCLUSIVE" for arm in sound)
        why = "no gain is shown, measure longer to decide" if undecided else "nothing gains"
        because = reason(best, next((row for row in self.cell if row["precision"] == BASELINE), None))
        because = f"; the reason: {because}" if because and best["verdict"] != "INCONCLUSIVE" else ""
        evidence = f"{why}: {best['precision']} is {self._evidence(best)}{because}{self._elsewhere(best)}"
        return self._answer("stay with fp32", evidence, best)

    def _without_speedup(self, arms: Sequence[Row]) -> Answer:
        timed = [arm for arm in arms if known(arm["samples_per_s"])]
        if timed and self.lost.get(BASELINE) == "oom":
            best = max(timed, key=itemgetter("samples_per_s"))
            pace = f"{best['precision']} trains {number(best['samples_per_s'])} samples/s"
            return self._advise(best, "fastest", f"fp32 does not fit (oom), so there is no speedup to state; {pace}")
        stalled = [f"{arm['precision']} {STALLED}" for arm in arms if known(arm["stalled"])]
        looked = [name for name in ("numerics", "inference") if any(known(row[f"{name}_status"]) for row in self.cell)]
        if looked and not any(known(row[name]) for row in self.cell for name in MEASURES):
            advice = f"no verdict, only {' and '.join(looked)} measured"
            return self._answer(
                ", ".join(stalled) or advice, ". ".join(f"{name}: {self._outcomes(name)}" for name in looked)
            )
        words = ", ".join(f"{name} {word}" for name, word in self.lost.items())
        why = f"no speedup was measured ({words})" if words else "no speedup was measured"
        parts = [f"{arm['precision']}: {self._changes(arm, _epoch(arm))}" for arm in arms]
        return self._answer(", ".join(stalled) or "no verdict on speed", "; ".join([why, *parts]))

    def _advise(self, arm: Row, gain: str, evidence: str, ties: Sequence[str] = ()) -> Answer:
        """Advise a precision: to use it where its accuracy is shown, else as the ``gain``, such as the fastest."""
        name = str(arm["precision"])
        word = self._accuracy_word(name)
        doubt = word if word == NO_ACCURACY else "accuracy not shown"
        return self._answer(f"use {name}" if word == NOT_WORSE else f"{gain}: {name}, {doubt}", evidence, arm, ties)

    def _preference(self, arm: Row) -> tuple[bool, bool, float]:
        """Order precisions that are as fast: accuracy that is shown, then no loss scaling, then the faster."""
        name = str(arm["precision"])
        precision = find_precision(name)  # None of a script's arm
        return self._accuracy_word(name) == NOT_WORSE, not (precision and precision.loss_scaling), arm["speedup"]

    def _accuracy_word(self, precision: str) -> str:
        """Return the result of comparing the trainings of a precision with fp32's."""
        if any(row["precision"] == precision and known(row["stalled"]) for row in self.rows):
            return STALLED
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
        marks = marked(marked_verdict(arm), arm["measured_in"], arm["speed_status"])
        text = f"{speedup}× as fast as fp32 {interval or '(no interval)'} ({marks})"
        turns = [arm[name] for name in IN_TURNS]
        alone = f"each alone (in turns {ratio(*turns)}×)" if known(turns[0]) else ""
        return ", ".join(filter(None, [text, alone, self._changes(arm, self._at_best(arm))]))

    def _at_best(self, arm: Row) -> str:
        """Write a precision's speedup with fp32 and itself each at its best batch; empty where that is the arm's."""
        best, fp32 = self.best.get(str(arm["precision"])), self.best.get(BASELINE)
        if best is None or fp32 is None or fp32["batch_size"] == best["batch_size"] == arm["batch_size"]:
            return ""
        center, brackets, rest = ratio(*over(best, fp32).ends).partition(" ")
        sizes = f"fp32 {fp32['batch_size']:.0f}, {arm['precision']} {best['batch_size']:.0f}"
        return f"{center}×{brackets}{rest} with each at its best batch ({sizes})"

    def _changes(self, arm: Row, first: str) -> str:
        """Write an arm's changes in memory, energy and accuracy, after another one."""
        energy = _less_or_more(arm["energy_change"], "energy a step")
        return ", ".join(filter(None, [first, _memory(arm), energy, self._accuracy(arm)]))

    def _accuracy(self, arm: Row) -> str:
        row = self.trained.get(str(arm["precision"]))
        if row is None:
            return "accuracy not measured"
        at = "" if row["batch_size"] == arm["batch_size"] else f" (trained at batch {row['batch_size']:.0f})"
        notes = [f"fp32 diverged in {counted(row['fp32_diverged'], 'seed')}"] if row["fp32_diverged"] else []
        quality = judged_by(row)
        if row["train_status"] not in MEASURED:
            return ", and ".join([f"training {row['train_status']}{at}", *notes])
        if quality is None:
            outcome = NO_ACCURACY if row["regression"] else "accuracy not measured"
            outcome = f"test loss {number(row['test_loss'])}{at}" if known(row["test_loss"]) else outcome
            return f"{outcome} ({notes[0]})" if notes else outcome
        judgement = {
            "insufficient seeds": f"insufficient seeds for a parity verdict, which needs {MIN_SEEDS}",
            "EQUIVALENT": f"EQUIVALENT within ±{f'{quality.margin:g} {quality.unit}'.rstrip()}",
            "diverged": f"{row['diverged']:.0f} of its trainings diverged",
        }.get(row["parity"], f"{row['parity']} at a margin of {quality.margin} {quality.unit}")
        over = f"{counted(row['delta_seeds'], 'seed')} of {counted(row['epochs'], 'epoch')}"
        delta = written(quality, [row[name] for name in quality.changes], quality.unit, "90 %: ")
        return f"{quality.label} {delta} over {over} ({'; '.join([judgement, *notes])}){at}"

    def _elsewhere(self, best: Row) -> str:
        """Name the batch sizes at which the arm has another speed verdict, each with its speedup."""
        sizes: dict[str, list[str]] = {}
        for row in self.rows:
            if row["precision"] == best["precision"] and known(row["verdict"]) and row["verdict"] != best["verdict"]:
                speedup = ratio(row["speedup"], row["low"], row["high"])
                sizes.setdefault(row["verdict"], []).append(f"{row['batch_size']:.0f} ({speedup}×)")
        verdicts = [f"{verdict} at batch {', '.join(some)}" for verdict, some in sizes.items()]
        return f"; it is {' and '.join(verdicts)}" if verdicts else ""


def reason(arm: Row, baseline: Row | None) -> str:
    """Say why an arm gains nothing over its cell's fp32; empty where no measured figure shows a cause."""
    precision = find_precision(arm["precision"])
    if precision and known(arm["compute_dtypes"]) and (missed := precision.missed(arm["compute_dtypes"])):
        return missed
    if baseline is None:
        return ""
    if known(baseline["fp32_strayed"]):
        return f"fp32 itself {baseline['fp32_strayed']}"
    host, gain, reached = arm["host_ratio"], arm["peak_tflops"] / baseline["peak_tflops"], baseline["pct_of_peak"]
    causes = {
        f"launching kernels limits it, not arithmetic (the host takes {number(host, 2)} of the GPU's time; try larger "
        "batches)": host >= LAUNCH_BOUND,
        f"large matrix products run at {ratio(gain)}× fp32's rate here, so the device has no gain to give": (
            gain < LITTLE_GAIN
        ),
        f"fp32 reaches {number(reached, 2)} % of this device's rate of large matrix products, so memory traffic or "
        "overhead limits it, not arithmetic": reached < LITTLE_OF_CEILING,
    }
    return next((sentence for sentence, applies in causes.items() if applies), "")


def _tied(arm: Row, fastest: Row) -> bool:
    """Say whether an arm is not shown to be slower than the fastest: by their ratio in the processes that timed both.

    Where fewer than two processes timed both, it is by whether their intervals over fp32 overlap; of a speedup alone,
    by what one window tells.
    """
    if arm is fastest:
        return True
    if known(fastest["turns_speedup"]):
        return bool(math.log(fastest["speedup"] / arm["speedup"]) <= TOLERANCE)
    ahead = estimate(SPEED, fastest[SPEED.arm], arm[SPEED.arm])
    if ahead is None or ahead.pairing not in ("rounds", "processes", "seeds") or ahead.change.low is None:
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
        each = f" ({processes(1)} each)" if arm["device_kind"] == "cpu" else ""  # a GPU's allocator repeats itself
        return text + each
    word = arm["memory_status"]
    if known(word) and word not in MEASURED:
        return f"memory {word}"
    return "peak memory not told apart" if known(arm["memory_bytes"]) else "memory saved unknown"


@dataclass(frozen=True, kw_only=True, slots=True)
class Grid:
    """The lines of all answers, by workload, and which columns have anything in them."""

    groups: dict[str, list[Answer]]
    columns: list[str]
    legend: dict[str, str]
    """The marks of doubts in it, and their sentences."""


def grid(answers: Sequence[Answer]) -> Grid:
    """Return the grid of the answers."""
    groups: dict[str, list[Answer]] = {}
    for answer in answers:
        groups.setdefault(answer.workload, []).append(answer)
    optional = ("memory", "energy", "epoch")
    columns = [name for name in optional if any(getattr(answer, name) != UNKNOWN for answer in answers)]
    named = {name for answer in answers for name in answer.doubts}
    legend = {doubt.mark: f"{doubt.about}." for name, doubt in DOUBTS.items() if name in named}
    return Grid(groups=groups, columns=columns, legend=legend)


# All answers in two sentences.


class Part(NamedTuple):
    """A piece of a sentence."""

    text: str
    strong: bool = False


Sentence = list[Part]


def lead(answers: Sequence[Answer]) -> list[Sentence]:
    """Return the sentences: whose types are not its own; what to use where and how much faster; at what cost."""
    if not answers:
        return []
    by_use: dict[tuple[str, bool], list[Answer]] = {}
    for answer in answers:
        by_use.setdefault((answer.use, answer.is_timed), []).append(answer)
    groups = sorted(by_use.values(), key=lambda group: (-len(group), not group[0].is_timed))
    parts = [part for group in groups for part in (Part("; "), *_clause(group, answers))][1:]
    gains = [answer for answer in answers if answer.precision not in (None, BASELINE)]
    cost = [*_memory_range(gains), *_accuracies(gains)]
    if not gains and len(answers) == 1 and answers[0].accuracy:
        words = [f"{name}{'' if word == 'diverged' else ' is'} {word}" for name, word in answers[0].trained]
        cost = [f"compared with {BASELINE} after training, {enumerated(words)}"]
    only = answers[0] if len(answers) == 1 else None
    parts += [Part(f"; it pays {only.pays}")] if only and only.pays and not only.stays else []
    if any(PARTIAL in answer.doubts for answer in answers):
        parts.insert(0, Part("so far, "))
    costs = [Part(f"{'; '.join(cost)}.")] if cost else []
    sentences = [strayed(answers), [*parts, Part(".")], costs, _doubtful(answers)]
    return [[Part(capital(first.text), first.strong), *more] for first, *more in filter(None, sentences)]


def strayed(answers: Sequence[Answer]) -> Sentence:
    """Say which precisions' products ran in other types than theirs; nothing where none did."""
    rows = itertools.chain(*(answer.rows for answer in answers))
    words = (
        f"{row['precision']} {row['strayed']}, so it is no {row['precision']}" for row in rows if known(row["strayed"])
    )
    text = "; ".join(dict.fromkeys(words))
    meaning = " Speedups, FASTER and SLOWER below compare with that."
    return [Part(f"{text}.", strong=True), Part(meaning)] if text else []


def _clause(group: Sequence[Answer], answers: Sequence[Answer]) -> Sentence:
    """Say what to use where some answers advise the same, and how much faster it is there."""
    use, labels = group[0].use, {answer.label for answer in group}
    where = f"on {enumerated(dict.fromkeys(answer.label for answer in group))}"
    if any(answer.label in labels and answer.use != use for answer in answers):  # of other suites
        where = f"in {cases(len(group), len(answers))}"
    only = answers[0] if len(answers) == 1 else None
    fp32 = f"{BASELINE} ≠" if any(OTHER_TYPES in answer.doubts for answer in group) else BASELINE
    if group[0].is_timed:
        ends = sorted(float(answer.arm["speedup"]) for answer in group)
        size = group[0].faster if len(group) == 1 else span(ends[0], ends[-1])
        at = f" at batch {only.batch_text}" if only and only.batch_text != UNKNOWN else ""
        of_only = f" for {only.workload}{at}" if only else ""
        return [Part(f"{use} is "), Part(size, True), Part(f" as fast as {fp32} {where}{of_only}")]
    if use == BASELINE:
        return [Part(f"stay with {fp32}", True), Part(f" {where}{_rival(only) if only else ''}")]
    return [Part(f"{use} {where}" if group[0].precision is None else f"only {use} fits {where}")]


def _doubtful(answers: Sequence[Answer]) -> Sentence:
    """Say what makes the answers doubtful, and of how many; nothing where nothing does."""
    counts = Counter(name for answer in answers for name in answer.doubts)
    clauses = [
        DOUBTS[name].about + (f" ({cases(counts[name], len(answers))})" if len(answers) > 1 else "")
        for name in DOUBTS
        if counts[name]
    ]
    return [Part(f"what to doubt: {'; '.join(clauses)}.")] if clauses else []


def _mib(arm: Row) -> str:
    return f"{number(arm['memory_bytes'] / MIB)} MiB"


def _rival(stay: Answer) -> str:
    """Describe the best other precision where fp32 is advised."""
    arm = stay.arm
    if _is_open(arm):
        ends = f"from {number(arm['low'], 2)} to {number(arm['high'], 2)} times"
        return f": {arm['precision']} may be anywhere {ends} as fast"
    size = times(arm["speedup"], arm["low"], arm["high"])
    once = "" if known(arm["low"]) else " in one process, which decides nothing"
    return f": {arm['precision']} is {size}" + ("" if size.endswith("slower") else " as fast") + once


def _memory_range(gains: Sequence[Answer]) -> list[str]:
    """Write by how much the memory changes, from the largest saving on; nothing where it is not known."""
    changes = [float(answer.arm["memory_change"]) for answer in gains if known(answer.arm["memory_change"])]
    if changes and max(changes) < 0:
        ends = dict.fromkeys(change(-end).removeprefix("+") for end in (max(changes), min(changes)))
        only = f" ({_mib(gains[0].arm)})" if len(gains) == 1 else ""
        return [f"it takes {' to '.join(ends)} less peak memory{only}"]
    ends = dict.fromkeys(change(end) for end in (min(changes), max(changes))) if changes else {}
    return [f"peak memory changes by {' to '.join(ends)}"] if ends else []


def _accuracies(gains: Sequence[Answer]) -> list[str]:
    """Say on how many answers accuracy is shown to be no worse, or by how much it differs in the only one."""
    words = Counter(answer.accuracy_in_short for answer in gains)
    training = gains[0].training if len(gains) == 1 else {}
    if training and (quality := judged_by(training)) is not None:
        size = f"{signed(training[quality.change], quality.decimals)} {quality.unit}"
        at = "" if training["batch_size"] == gains[0].batch else f" at batch {training['batch_size']:.0f}"
        over = f"{size} over {counted(training['delta_seeds'], 'seed')}{at}"
        return [f"its {quality.label} is {'not worse' if words[NOT_WORSE] else 'not shown to be the same'} ({over})"]
    counts = ", ".join(f"{word} in {cases(count, len(gains))}" for word, count in words.items())
    return [f"accuracy: {next(iter(words)) if len(words) == 1 else counts}"] if words else []


def cases(some: int, every: int) -> str:
    """Write a count of cases, a case being a suite on a device: 8 of 15 cases."""
    return f"all {every} cases" if some == every else f"{some} of {every} cases"


def span(low: float, high: float) -> str:
    """Write a range of speedups: 2.6–3.7×; one figure where both ends read the same."""
    digits = 2 if high >= 1.5 else 3
    return "–".join(dict.fromkeys(number(end, digits) for end in (low, high))) + "×"
