"""The advice: which precision to train with on each device, by a table of rules.

A question is a suite on a device, judged at one batch size. The first of ``RULES`` whose condition holds answers it:
the rule names an arm, and its templates write the advice and the evidence.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from operator import itemgetter
from typing import Any

import pandas as pd

from bench.report.analysis.alone import IN_TURNS, TOLERANCE
from bench.report.analysis.changes import estimate
from bench.report.analysis.doubts import PARTIAL, Doubt, doubted, marked_verdict
from bench.report.analysis.judge import judged_by
from bench.report.analysis.summary import MEASURES, reference_batch
from bench.report.format import UNKNOWN, at_batch, enumerated, known, number, processes, ratio, records
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
STALLED = "does not learn"
STAY = "stay with fp32"
OF_PARITY = {"EQUIVALENT": NOT_WORSE, "NON-INFERIOR": NOT_WORSE, "WORSE": "worse", "diverged": "diverged"}
"""Words on accuracy, by the verdict on parity."""
RULED_OUT = ("worse", "diverged", STALLED)
"""Words on accuracy of a precision that is not advised, however fast it is."""
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


def accuracy_word(training: Row) -> str:
    """Return the word on the accuracy of a training, compared with fp32's; of a training that failed, its status.

    Args:
        training: the row of the summary; empty where the precision was not trained.
    """
    if not training:
        return NOT_TRAINED
    if training["accuracy_verdict"] in OF_PARITY:
        return OF_PARITY[training["accuracy_verdict"]]
    if training["train_status"] not in MEASURED:
        return str(training["train_status"])
    if training["regression"] == "yes":
        return NO_ACCURACY
    if judged_by(training) is None:
        return "not compared"
    return "too few seeds" if training["accuracy_verdict"] == "insufficient seeds" else "undecided"


class Question:
    """A suite on a device: the facts that the rules look at."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Gather the facts from the rows of the summary of the suite on the device."""
        self.rows: list[Row] = list(records(rows))
        """At all batch sizes."""
        self.batch = reference_batch(rows)
        """The batch size at which the question is judged."""
        self.cell = [row for row in self.rows if row["batch_size"] == self.batch]
        self.fp32 = next((row for row in self.cell if row["precision"] == BASELINE), None)
        self.arms = [row for row in self.cell if row["precision"] != BASELINE]
        self.compared = [arm for arm in self.arms if known(arm["speedup"])]

    def training(self, precision: object) -> Row:
        """Return a precision's training at the batch size, or else at the largest that it trained with; empty without.

        A precision that does not learn is known from a training of any length, and of any batch size.
        """
        trained = [row for row in self.rows if row["precision"] == precision and known(row["train_status"])]
        return max(trained, key=lambda row: (row["batch_size"] == self.batch, row["batch_size"]), default={})

    def accuracy(self, precision: object) -> str:
        """Return the word on a precision's accuracy."""
        is_stalled = any(row["precision"] == precision and known(row["stalled"]) for row in self.rows)
        return STALLED if is_stalled else accuracy_word(self.training(precision))

    @cached_property
    def sound(self) -> list[Row]:
        """The compared arms that training does not rule out."""
        return [arm for arm in self.compared if self.accuracy(arm["precision"]) not in RULED_OUT]

    @cached_property
    def faster(self) -> list[Row]:
        """The sound arms that are faster than fp32."""
        return [arm for arm in self.sound if arm["speed_verdict"] == "FASTER"]

    @cached_property
    def lighter(self) -> list[Row]:
        """The sound arms as fast as fp32 that take less memory."""
        return [
            arm for arm in self.sound if arm["speed_verdict"] == "SAME" and arm["memory_change_ratio"] <= -WORTHWHILE
        ]

    @cached_property
    def tied(self) -> list[Row]:
        """The fastest of the faster arms, and those that are not shown to be slower."""
        fastest = max(self.faster, key=itemgetter("speedup"))
        return [arm for arm in self.faster if is_tied(arm, fastest)]

    def ties(self, best: Row) -> list[str]:
        """Return the names of the precisions that are as fast as an advised one."""
        if best not in self.faster:
            return []
        return [str(arm["precision"]) for arm in self.tied if arm is not best]

    @cached_property
    def stalled(self) -> list[Row]:
        """The arms that do not learn where fp32 does."""
        return [row for row in self.rows if known(row["stalled"])]

    def preference(self, arm: Row) -> tuple[bool, bool, float]:
        """Order arms that are as fast: accuracy that is shown, then no loss scaling, then the faster."""
        precision = find_precision(str(arm["precision"]))  # None of a script's arm
        needs_scaling = precision is not None and precision.loss_scaling
        return self.accuracy(arm["precision"]) == NOT_WORSE, not needs_scaling, arm["speedup"]

    def status(self, row: Row | None) -> str:
        """Return the status of the first phase that an arm of the cell was tried in; empty without one."""
        statuses = [str(row[name]) for name in MEASURES if known(row[name])] if row is not None else []
        return statuses[0] if statuses else ""

    @property
    def runs_alone(self) -> list[Row]:
        """The arms with a throughput where fp32 does not fit in memory; empty where it fits."""
        if self.status(self.fp32) != "oom":
            return []
        return [arm for arm in self.arms if known(arm["samples_per_s"])]


@dataclass(frozen=True, kw_only=True, slots=True)
class Rule:
    """A condition on a question, and the advice where it is the first that holds."""

    applies: Callable[[Question], object]
    arm: Callable[[Question], Row] | None = None
    """Chooses the arm that the answer names; None names none."""
    advice: str
    """A template: ``{arm}`` is the arm's name, ``{accuracy}`` what to say where its accuracy is not shown."""
    evidence: str
    """A template with the slots of ``_slots``."""
    gain: str = ""
    """A description of the advised arm, such as the fastest; empty if the rule advises none."""


RULES = (
    Rule(
        applies=lambda question: not question.arms,
        advice="no comparison",
        evidence="only fp32 was tried{fp32_status}",
    ),
    Rule(
        applies=lambda question: question.compared and question.training(BASELINE).get("train_status") == "nonfinite",
        arm=lambda question: _fastest(question.compared),
        advice="no verdict",
        evidence="training diverged in fp32 itself: {arm} is {speed}",
    ),
    Rule(
        applies=lambda question: question.faster,
        arm=lambda question: max(question.tied, key=question.preference),
        gain="fastest",
        advice="use {arm}",
        evidence="{speed}{ties}",
    ),
    Rule(
        applies=lambda question: question.lighter,
        arm=lambda question: min(question.lighter, key=itemgetter("memory_change_ratio")),
        gain="lightest",
        advice="use {arm}",
        evidence="for its memory: {speed}",
    ),
    Rule(
        applies=lambda question: any(arm["speed_verdict"] == "INCONCLUSIVE" for arm in question.sound),
        arm=lambda question: _fastest(question.sound),
        advice=STAY,
        evidence="no gain is shown, measure longer to decide: {arm} is {speed}",
    ),
    Rule(
        applies=lambda question: question.sound,
        arm=lambda question: _fastest(question.sound),
        advice=STAY,
        evidence="nothing gains: {arm} is {speed}{reason}",
    ),
    Rule(
        applies=lambda question: question.compared,
        arm=lambda question: _fastest(question.compared),
        advice=STAY,
        evidence="training rules out {arm}, which is {speed}: it {accuracy}",
    ),
    Rule(
        applies=lambda question: question.runs_alone,
        arm=lambda question: max(question.runs_alone, key=itemgetter("samples_per_s")),
        gain="fastest",
        advice="use {arm}",
        evidence="fp32 does not fit (oom), so there is no speedup to state; {arm} trains {pace} samples/s",
    ),
    Rule(
        applies=lambda question: question.stalled,
        advice="{stalled}",
        evidence="no speedup was measured",
    ),
    Rule(
        applies=lambda _: True,
        advice="no verdict on speed",
        evidence="no speedup was measured{statuses}",
    ),
)
"""The rules, in the order in which they are tried."""


def _fastest(arms: Sequence[Row]) -> Row:
    return max(arms, key=itemgetter("speedup"))


def _slots(question: Question, arm: Row) -> dict[str, str]:
    """Return what the templates of rules are filled with."""
    statuses = []
    for row in question.cell:
        status = question.status(row)
        if status and status not in MEASURED:
            statuses.append(f"{row['precision']} {status}")
    fp32_status = question.status(question.fp32)
    slots = {
        "fp32_status": f": {fp32_status}" if fp32_status and fp32_status not in MEASURED else "",
        "statuses": f" ({', '.join(statuses)})" if statuses else "",
        "stalled": ", ".join(f"{row['precision']} {STALLED}" for row in question.stalled),
    }
    if not arm:
        return slots
    word = question.accuracy(arm["precision"])
    slots |= {
        "arm": str(arm["precision"]),
        "accuracy": word if word == STALLED else f"is {word}" if word == "worse" else word,
        "pace": number(arm["samples_per_s"]),
    }
    if known(arm["speedup"]):
        why = reason(arm, question.fp32)
        ties = question.ties(arm)
        slots |= {
            "speed": _speed(arm),
            "ties": f"; {enumerated(ties)} {'tie' if len(ties) > 1 else 'ties'} with it" if ties else "",
            "reason": f"; the reason: {why}" if why else "",
        }
    return slots


def _speed(arm: Row) -> str:
    """Write an arm's speedup with its interval and its caveats."""
    speedup, _, interval = ratio(arm["speedup"], arm["speedup_low"], arm["speedup_high"]).partition(" ")
    marks = marked(marked_verdict(arm), arm["measured_in"], arm["speed_status"])
    text = f"{speedup}× as fast as fp32 {interval or '(no interval)'} ({marks})"
    turns = [arm[name] for name in IN_TURNS]
    return f"{text}, each alone (in turns {ratio(*turns)}×)" if known(turns[0]) else text


def is_tied(arm: Row, fastest: Row) -> bool:
    """Return whether an arm is not shown to be slower than the fastest.

    It is by their ratio in the processes that timed both. Where fewer than two processes timed both, it is by whether
    their intervals over fp32 overlap; of a speedup alone, by what one window tells.
    """
    if arm is fastest:
        return True
    if known(fastest["turns_speedup"]):
        return bool(math.log(fastest["speedup"] / arm["speedup"]) <= TOLERANCE)
    ahead = estimate(SPEED, fastest[SPEED.arm], arm[SPEED.arm])
    if ahead is None or ahead.pairing != "processes" or ahead.change.low is None:
        return bool(arm["speedup_high"] >= fastest["speedup_low"])
    return ahead.change.low <= 0


def marked(verdict: str, measured_in: str, status: str) -> str:
    """Write a verdict with its caveats: one process only, arms timed in separate processes, or too wide an interval."""
    marks = [verdict]
    if measured_in == processes(1) or measured_in.endswith(" apart"):
        marks.append(measured_in)
    if status == "unconverged":
        marks.append(status)
    return ", ".join(marks)


def reason(arm: Row, baseline: Row | None) -> str:
    """Say why an arm gains nothing over its cell's fp32; empty where no measured figure shows a cause."""
    precision = find_precision(arm["precision"])
    missed = precision.missed(arm["compute_dtypes"]) if precision and known(arm["compute_dtypes"]) else ""
    if missed or baseline is None:
        return missed
    if known(baseline["fp32_strayed"]):
        return f"fp32 itself {baseline['fp32_strayed']}"
    return _limit(arm, baseline)


def _limit(arm: Row, baseline: Row) -> str:
    host, reached = arm["host_ratio"], baseline["pct_of_peak"]
    if host >= LAUNCH_BOUND:
        share = f"the host takes {number(host, 2)} of the GPU's time; try larger batches"
        return f"launching kernels limits it, not arithmetic ({share})"
    gain = arm["peak_tflops"] / baseline["peak_tflops"]
    if gain < LITTLE_GAIN:
        return f"large matrix products run at {ratio(gain)}× fp32's rate here, so the device has no gain to give"
    if reached < LITTLE_OF_CEILING:
        share = f"fp32 reaches {number(reached, 2)} % of this device's rate of large matrix products"
        return f"{share}, so memory traffic or overhead limits it, not arithmetic"
    return ""


@dataclass(frozen=True, kw_only=True)
class Answer(Verdict):
    """The verdict on a suite on a device, with the figures that it rests on."""

    question: Question
    precision: str | None
    """The advised one; None if there is no advice."""
    arm: Row
    """The row of the advised precision, for fp32 that of the best other precision; empty where there is no advice."""

    @property
    def batch(self) -> int:
        """The batch size that it is given at."""
        return self.question.batch

    @property
    def workload(self) -> str:
        """The name of the suite in the summary."""
        return str(self.question.cell[0]["workload"])

    @property
    def where(self) -> str:
        """The name of the device in the summary."""
        return str(self.question.cell[0]["where"])

    @property
    def label(self) -> str:
        """The name of the device in the shortest form that no other has."""
        return str(self.question.cell[0]["label"])

    @property
    def architecture(self) -> str:
        """The device's generation."""
        return str(self.question.cell[0]["architecture"])

    @property
    def batch_text(self) -> str:
        """The batch size; of a training script, which does not tell it, ``UNKNOWN``."""
        return at_batch(self.question.cell[0], "") or UNKNOWN

    @property
    def stays(self) -> bool:
        """Whether the advice is fp32."""
        return self.precision == BASELINE

    @property
    def is_gain(self) -> bool:
        """Whether it advises another precision than fp32."""
        return self.precision is not None and not self.stays

    @property
    def is_timed(self) -> bool:
        """Whether a gain over fp32 is known of the precision that is advised instead of it."""
        return self.is_gain and known(self.arm["speedup"])

    @property
    def is_open(self) -> bool:
        """Whether the best other precision may be faster or slower than fp32, which is advised."""
        if not self.stays or self.arm["speed_verdict"] != "INCONCLUSIVE" or not known(self.arm["speedup_low"]):
            return False
        return bool(self.arm["speedup_low"] < 1 < self.arm["speedup_high"])

    @property
    def training(self) -> Row:
        """The training of the advised precision, perhaps at another batch size; empty where it was not trained."""
        return self.question.training(self.precision) if self.is_gain else {}

    @cached_property
    def accuracy(self) -> str:
        """The word on the accuracy of the precision that is advised instead of fp32, or ``NOT_SHOWN``.

        Where there is none, it is that of each precision whose training shows something, after its name.
        """
        if self.is_gain:
            word = self.question.accuracy(self.precision)
            return word if word in (*OF_PARITY.values(), NO_ACCURACY) else NOT_SHOWN
        return ", ".join(f"{name} {word}" for name, word in self.trained)

    @cached_property
    def trained(self) -> list[tuple[str, str]]:
        """If no precision but fp32 is advised: the others whose training gave a verdict, each with that verdict."""
        if self.is_gain:
            return []
        trained = []
        for name in dict.fromkeys(str(row["precision"]) for row in self.question.rows):
            word = self.question.accuracy(name)
            if name != BASELINE and self.question.training(name) and word in (*OF_PARITY.values(), STALLED):
                trained.append((name, word))
        return trained

    @property
    def ties(self) -> list[str]:
        """Other precisions that are as fast as the advised one."""
        return self.question.ties(self.arm)

    @property
    def doubts(self) -> list[Doubt]:
        """The doubts about the figures that it rests on."""
        return doubted([self.arm, self.training] if self.arm else self.question.rows)

    @property
    def sizes(self) -> list[int]:
        """The batch sizes at which precisions were compared with fp32."""
        return sorted({int(row["batch_size"]) for row in self.question.rows if known(row["speed_verdict"])})

    @property
    def paying(self) -> list[int]:
        """The batch sizes next to each other, its own among them, at all of which the advised precision is FASTER.

        Where fp32 is advised they are the largest sizes at which the best other precision is.
        """
        if not self.arm or self.batch_text == UNKNOWN:
            return []
        name = self.arm["precision"]
        arms = [row for row in self.question.rows if row["precision"] == name and known(row["speed_verdict"])]
        target = arms[-1]["batch_size"] if self.stays and arms else self.question.batch
        for is_faster, group in itertools.groupby(arms, lambda row: bool(row["speed_verdict"] == "FASTER")):
            sizes = [int(row["batch_size"]) for row in group]
            if is_faster and target in sizes:
                return sizes
        return []


def answers(summary: pd.DataFrame) -> list[Answer]:
    """Return the answer for each suite on each device, in the order of the tables.

    A suite of which only phases without metrics were tried on a device has none.
    """
    given = []
    for _, rows in summary.groupby(SUBJECT, sort=False):
        if rows[[*MEASURES, "stalled"]].notna().any(axis=None):
            given.append(answer(Question(rows)))
    return given


def answer(question: Question) -> Answer:
    """Answer a question by the first rule that applies."""
    rule = next(rule for rule in RULES if rule.applies(question))
    arm = rule.arm(question) if rule.arm else {}
    slots, first = _slots(question, arm), question.cell[0]
    advice, evidence = rule.advice.format(**slots), rule.evidence.format(**slots)
    precision = str(arm["precision"]) if rule.gain else BASELINE if rule.advice == STAY else None
    word = question.accuracy(precision)
    if rule.gain and word != NOT_WORSE:
        advice = f"{rule.gain}: {precision}, {NO_ACCURACY if word == NO_ACCURACY else 'accuracy not shown'}"
    if any(PARTIAL in row["doubts"] for row in question.rows):
        advice = f"{advice} so far"
    if known(first["fp32_strayed"]):
        evidence += f"; but what is called fp32 here {first['fp32_strayed']}, so this is no comparison with FP32"
    return Answer(
        subject=f"{first['workload']} on {first['where']}{at_batch(first)}",
        advice=advice,
        evidence=evidence,
        question=question,
        precision=precision,
        arm=arm if precision else {},
    )


def stalled(answers: Sequence[Answer]) -> list[Verdict]:
    """Return a verdict on each precision that does not learn, where fp32 does."""
    verdicts = []
    for given in answers:
        for row in given.question.stalled:
            subject = f"{row['workload']} on {row['where']}{at_batch(row)}"
            advice = f"{row['precision']} {STALLED}"
            verdicts.append(Verdict(subject=subject, advice=advice, evidence=row["stalled"]))
    return verdicts
