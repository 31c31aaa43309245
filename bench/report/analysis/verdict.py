"""The advice: which precision to train with on each device, by a table of rules.

A suite on a device is judged at one batch size. The first of ``RULES`` whose arms are any answers
it: it is about the first of them, and its templates write the advice and the evidence.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from operator import itemgetter
from typing import NamedTuple

import pandas as pd

from bench.report.analysis.changes import estimate
from bench.report.analysis.doubts import PARTIAL, Doubt, Row, doubted, marked_verdict
from bench.report.analysis.judge import IN_TURNS, TOLERANCE
from bench.report.analysis.summary import CORE_STATUSES, reference_batch
from bench.report.format import (
    MIB,
    UNKNOWN,
    at_batch,
    change,
    enumerated,
    known,
    number,
    ratio,
    records,
)
from bench.report.reading.load import SUBJECT
from bench.results.records import MEASURED
from bench.spec.metrics import SPEED
from bench.spec.precisions import BASELINE, find_precision

# At equal speed, this share of memory saved is a reason to change precision. A choice: with it, a
# batch of 20 samples can grow by one.
WORTHWHILE = 0.05
NOT_WORSE, NOT_SHOWN, NOT_TRAINED = "not worse", "not shown", "not trained"
NO_ACCURACY = "no accuracy: regression"
STALLED = "does not learn"
STAY = "stay with fp32"
# Words on accuracy, by the verdict on parity.
OF_PARITY = {
    "EQUIVALENT": NOT_WORSE,
    "NON-INFERIOR": NOT_WORSE,
    "WORSE": "worse",
    "diverged": "diverged",
    "INCONCLUSIVE": "undecided",
    "insufficient seeds": "too few seeds",
}
# Words on accuracy of a precision that is not advised, however fast it is.
RULED_OUT = ("worse", "diverged", STALLED)
# Words on accuracy that a training has shown.
SHOWN = (NOT_WORSE, *RULED_OUT)


class Rule(NamedTuple):
    """The advice where there are arms of some kind."""

    arms: Callable[[Facts], list[Row]]
    advice: str
    """A template with the slots of ``Answer._slots``, as is the evidence."""
    evidence: str
    gain: str = ""
    """A description of the advised arm, such as the fastest; empty if the rule advises none."""


# The rules, in the order in which they are tried. What rules a comparison out comes first, then
# gains, then reasons to stay; the rules after these need no speedup.
RULES = (
    Rule(
        arms=lambda facts: facts.untried,
        advice="no comparison",
        evidence="only fp32 was tried{statuses}",
    ),
    Rule(
        arms=lambda facts: facts.diverging,
        advice="no verdict",
        evidence="training diverged in fp32 itself: {arm} is {speed}",
    ),
    Rule(
        arms=lambda facts: facts.faster,
        advice="use {arm}",
        evidence="{speed}{ties}",
        gain="fastest",
    ),
    Rule(
        arms=lambda facts: facts.lighter,
        advice="use {arm}",
        evidence="for its memory: {speed}",
        gain="lightest",
    ),
    Rule(
        arms=lambda facts: facts.undecided,
        advice=STAY,
        evidence="no gain is shown, a new run with a larger --time-budget may decide: {arm} is "
        "{speed}",
    ),
    Rule(
        arms=lambda facts: facts.sound,
        advice=STAY,
        evidence="nothing gains: {arm} is {speed}",
    ),
    Rule(
        arms=lambda facts: facts.compared,
        advice=STAY,
        evidence="training rules out {arm} ({accuracy}), which is {speed}",
    ),
    Rule(
        arms=lambda facts: facts.runs_alone,
        advice="use {arm}",
        evidence="fp32 does not fit (oom), so there is no speedup to state; {arm} trains {pace} "
        "samples/s",
        gain="fastest",
    ),
    Rule(
        arms=lambda facts: facts.stalled,
        advice="{stalled}",
        evidence="no speedup was measured",
    ),
    Rule(
        arms=lambda facts: facts.weighed,
        advice="{lightest}",
        evidence="{peaks}; no speed was measured{statuses}",
    ),
    Rule(
        arms=lambda facts: facts.rows,
        advice="no verdict on speed",
        evidence="no speedup was measured{statuses}",
    ),
)


class Facts:
    """What was measured of a suite on a device, and which arms have what advice needs.

    The arms of each kind have the best first.
    """

    def __init__(self, rows: pd.DataFrame) -> None:
        """Take the rows of the summary of the suite on the device, at all batch sizes."""
        self.rows: list[Row] = list(records(rows))
        self.batch = reference_batch(rows)
        """The batch size that the advice is given at."""
        self.cell = _rows_with(self.rows, "batch_size", self.batch)
        self.fp32 = next(iter(_rows_with(self.cell, "precision", BASELINE)), {})
        """The row of fp32 at the batch size; empty where it was not tried."""
        self.stalled: list[Row] = _known_rows(self.rows, "stalled")
        """The rows of arms that do not learn where fp32 does."""
        arms = [row for row in self.cell if row["precision"] != BASELINE]
        self.untried: list[Row] = [] if arms else self.cell
        self.compared: list[Row] = _most_first(arms, "speedup")
        is_diverging = self.training_of(BASELINE).get("train_status") == "nonfinite"
        self.diverging: list[Row] = self.compared if is_diverging else []
        self.sound: list[Row] = []
        """The compared arms that training does not rule out."""
        for arm in self.compared:
            if self.accuracy_word(arm["precision"]) not in RULED_OUT:
                self.sound.append(arm)
        faster = _rows_with(self.sound, "speed_verdict", "FASTER")
        tied = [arm for arm in faster if is_tied(arm, faster[0])]
        self.faster: list[Row] = sorted(tied, key=self._preference, reverse=True)
        """The fastest of the faster arms, and those that are not shown to be slower."""
        same = _rows_with(self.sound, "speed_verdict", "SAME")
        lighter = [arm for arm in same if arm["memory_change_ratio"] <= -WORTHWHILE]
        self.lighter: list[Row] = sorted(lighter, key=_by_change)
        """The sound arms as fast as fp32 that take less memory."""
        self.undecided: list[Row] = _rows_with(self.sound, "speed_verdict", "INCONCLUSIVE")
        self.runs_alone: list[Row] = []
        """The arms with a throughput where fp32 does not fit in memory."""
        if self.fp32 and _status(self.fp32) == "oom":
            self.runs_alone = _most_first(arms, "samples_per_s")
        is_timed = bool(_known_rows(self.cell, "speed_status"))
        is_trained = bool(_known_rows(self.rows, "train_status"))
        weighed = [] if is_timed or is_trained else _known_rows(arms, "peak_memory_bytes")
        self.weighed: list[Row] = sorted(weighed, key=_by_change)
        """The arms of which the memory alone was asked for, the one that takes least first."""
        self.peaks = "" if is_timed else _peaks(self.cell)
        """The peak memory of each arm, where no speed was asked for."""

    def training_of(self, precision: object) -> Row:
        """Return a precision's training at the batch size, or else at its largest; empty without.

        A precision that does not learn is known from a training of any length, and of any batch
        size.
        """
        trained = _known_rows(_rows_with(self.rows, "precision", precision), "train_status")
        at_batch = _rows_with(trained, "batch_size", self.batch)
        return max(at_batch or trained, key=itemgetter("batch_size"), default={})

    def accuracy_word(self, precision: object) -> str:
        """Return the word on a precision's accuracy against fp32's, or its training's status."""
        if _rows_with(self.stalled, "precision", precision):
            return STALLED
        training = self.training_of(precision)
        if not training:
            return NOT_TRAINED
        if training["accuracy_verdict"] in OF_PARITY:
            return OF_PARITY[training["accuracy_verdict"]]
        if training["train_status"] not in MEASURED:
            return str(training["train_status"])
        if training["regression"] == "yes":
            return NO_ACCURACY
        return "not compared"

    def _preference(self, arm: Row) -> tuple[bool, bool, float]:
        """Order arms that are as fast: accuracy shown, then no loss scaling, then the faster."""
        is_shown = self.accuracy_word(arm["precision"]) == NOT_WORSE
        precision = find_precision(str(arm["precision"]))  # None of a script's arm
        needs_scaling = precision is not None and precision.loss_scaling
        return is_shown, not needs_scaling, arm["speedup"]


class Answer(Facts):
    """The advice for a suite on a device, with the facts that it rests on."""

    def __init__(self, rows: pd.DataFrame) -> None:
        """Answer by the first rule that applies."""
        super().__init__(rows)
        self.names = self.cell[0]
        """A row with the names of the workload and of the device."""
        self.subject = _subject(self.names)
        self.batch_text = at_batch(self.names, "") or UNKNOWN
        """The batch size; of a training script, which does not tell it, ``UNKNOWN``."""
        rule = next(rule for rule in RULES if rule.arms(self))
        arms = rule.arms(self)
        arm = arms[0]
        self.is_gain = bool(rule.gain)
        """Whether it advises another precision than fp32."""
        self.stays = rule.advice == STAY
        self.is_undecided = arms is self.undecided
        """Whether measuring longer may show a gain."""
        self.precision: str | None = None
        """The advised one; None if there is no advice."""
        if self.is_gain:
            self.precision = str(arm["precision"])
        elif self.stays:
            self.precision = BASELINE
        self.arm: Row = arm if self.precision else {}
        """The row of the advised precision, for fp32 that of the best other precision; empty where
        there is none."""
        self.ties: list[str] = []
        """Other precisions that are as fast as the advised one."""
        if arms is self.faster:
            self.ties = [str(tied["precision"]) for tied in arms[1:]]
        self.training = self.training_of(self.precision) if self.is_gain else {}
        """The training of the precision that is advised instead of fp32; empty where it was not
        trained."""
        self.is_timed = self.is_gain and known(arm["speedup"])
        """Whether a gain over fp32 is known of the precision that is advised instead of it."""
        basis = [self.arm, self.training] if self.arm else self.rows
        self.doubts: list[Doubt] = doubted(basis)
        """The doubts about the figures that it rests on."""
        slots = self._slots(arm)
        self.advice = rule.advice.format(**slots)
        """``use X``; ``fastest: X, accuracy not shown``, or ``NO_ACCURACY`` in its place; ``stay
        with fp32``; or why there is none."""
        if self.is_gain and slots["accuracy"] != NOT_WORSE:
            caveat = "accuracy not shown"
            if slots["accuracy"] == NO_ACCURACY:
                caveat = NO_ACCURACY
            self.advice = f"{rule.gain}: {self.precision}, {caveat}"
        if any(PARTIAL in row["doubts"] for row in self.rows):
            self.advice += " so far"
        self.use = self.precision or self.advice
        """The advised precision, or why there is none."""
        self.evidence = rule.evidence.format(**slots)
        types = self.names["fp32_strayed"]
        if known(types):
            self.evidence += (
                f"; but what is called fp32 here {types}, so this is no comparison with FP32"
            )

    def __str__(self) -> str:
        return f"{self.subject}: {self.advice} — {self.evidence}."

    def _slots(self, arm: Row) -> dict[str, str]:
        """Return what the templates of rules are filled with, of the arm that the rule is about."""
        statuses = []
        for row in self.cell:
            status = _status(row)
            if status not in ("", *MEASURED):
                statuses.append(f"{row['precision']} {status}")
        return {
            "arm": str(arm["precision"]),
            "accuracy": self.accuracy_word(arm["precision"]),
            "pace": number(arm["samples_per_s"]),
            "lightest": _lightest(arm),
            "peaks": self.peaks,
            "statuses": f" ({', '.join(statuses)})" if statuses else "",
            "stalled": ", ".join(f"{row['precision']} {STALLED}" for row in self.stalled),
            "ties": f"; as fast: {enumerated(self.ties)}" if self.ties else "",
            "speed": _speed(arm) if known(arm["speedup"]) else UNKNOWN,
        }

    @property
    def accuracy(self) -> str:
        """The word on the accuracy of the precision that is advised, or ``NOT_SHOWN``.

        Where none is advised instead of fp32, it is that of each precision whose training shows
        something, after its name.
        """
        if self.is_gain:
            word = self.accuracy_word(self.precision)
            return word if word in (*SHOWN, NO_ACCURACY) else NOT_SHOWN
        words = [f"{name} {word}" for name, word in self.trained.items()]
        return ", ".join(words)

    @property
    def trained(self) -> dict[str, str]:
        """The precisions whose training has shown something, with the word on their accuracy."""
        shown = {}
        for row in self.rows:
            word = self.accuracy_word(row["precision"])
            if row["precision"] != BASELINE and word in SHOWN:
                shown[str(row["precision"])] = word
        return shown


def _rows_with(rows: Sequence[Row], name: str, value: object) -> list[Row]:
    return [row for row in rows if row[name] == value]


def _known_rows(rows: Sequence[Row], name: str) -> list[Row]:
    return [row for row in rows if known(row[name])]


def _most_first(rows: Sequence[Row], name: str) -> list[Row]:
    return sorted(_known_rows(rows, name), key=itemgetter(name), reverse=True)


def _status(row: Row) -> str:
    """Return the status of the first phase that an arm was tried in; empty if there is none."""
    for name in CORE_STATUSES:
        if known(row[name]):
            return str(row[name])
    return ""


def _speed(arm: Row) -> str:
    """Write an arm's speedup with its interval and its caveats."""
    speedup = ratio(arm["speedup"], arm["speedup_low"], arm["speedup_high"])
    marks = marked(marked_verdict(arm), arm["measured_in"], arm["speed_status"])
    text = f"{speedup}× as fast as fp32 ({marks})"
    turns = [arm[name] for name in IN_TURNS]
    if known(turns[0]):
        text += f", each alone (in turns {ratio(*turns)}×)"
    return text


def _by_change(arm: Row) -> tuple[bool, float]:
    """Order arms by their change of memory; those whose change cannot be resolved are last."""
    share = float(arm["memory_change_ratio"])
    return math.isnan(share), share


def _lightest(arm: Row) -> str:
    """Say which takes less memory, fp32 or the arm that takes least of the others."""
    share = arm["memory_change_ratio"]
    if not known(share):
        return "no difference in memory"
    lightest = arm["precision"] if share < 0 else BASELINE
    return f"least memory: {lightest}"


def _peaks(rows: Sequence[Row]) -> str:
    """Write the peak memory of each arm, with its change from fp32 where that can be resolved."""
    peaks = []
    for row in _known_rows(rows, "peak_memory_bytes"):
        peak = f"{row['precision']} {number(row['peak_memory_bytes'] / MIB)} MiB"
        if known(row["memory_change_ratio"]):
            peak += f" ({change(row['memory_change_ratio'])})"
        peaks.append(peak)
    return ", ".join(peaks)


def is_tied(arm: Row, fastest: Row) -> bool:
    """Return whether an arm is not shown to be slower than the fastest.

    It is by their ratio in the processes that timed both. Where fewer than two processes timed
    both, it is by whether their intervals over fp32 overlap; of a speedup alone, by what one window
    tells.
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
    """Write a verdict with its processes, and whether its interval is too wide."""
    words = [verdict, measured_in]
    if status == "unconverged":
        words.append(status)
    return ", ".join(words)


def answers(summary: pd.DataFrame) -> list[Answer]:
    """Return the answer for each suite on each device, in the order of the tables.

    A suite of which neither speed nor memory nor training was tried on a device has none.
    """
    given = []
    for _, rows in summary.groupby(SUBJECT, sort=False):
        if rows[[*CORE_STATUSES, "stalled"]].notna().any(axis=None):
            given.append(Answer(rows))
    return given


def _subject(row: Row) -> str:
    return f"{row['workload']} on {row['where']}{at_batch(row)}"


def stalled(answers: Sequence[Answer]) -> list[str]:
    """Return a sentence on each precision that does not learn, where fp32 does."""
    sentences = []
    for answer in answers:
        for row in answer.stalled:
            sentences.append(f"{_subject(row)}: {row['precision']} {STALLED} — {row['stalled']}.")
    return sentences
