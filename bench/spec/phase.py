"""A phase as the rest of the harness sees it: a folder of bench/phases/ declares ``PHASE``.

A phase is one kind of measurement. Its folder has

- ``__init__.py`` with ``PHASE``, and without torch: planning and reports import it;
- ``measure.py`` with ``run(trial, device, send)``, which the process of a trial calls
  (``bench.phases``), with the file of its checkpoint if the phase keeps one. A phase that plans
  ablations has none: its trials are other phases';
- where its figures follow from the details that it sends, ``figures.py``, with pandas, for
  ``derive``;
- ``report.py`` with what a report shows of it (``bench.report.parts``), if anything;
- ``summary.py``, if it adds columns to the report's summary, and ``command.py``, if it has a
  command of its own.

The core finds phases by looking into bench/phases/, so that a folder is all that a phase needs.
Where the usual answers do not fit a phase, it gives its own: its trials, what it cannot measure.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from bench.spec.metric import Metric

if TYPE_CHECKING:
    # What the callbacks get comes from layers above, which import this module.
    import pandas as pd

    from bench.phases.session import PhaseSession
    from bench.phases.speed import Speed
    from bench.planning.question import Question
    from bench.results.records import Device, TrialResult
    from bench.spec.request import Request
    from bench.spec.trial import Trial

# A warm-up takes half a second: two windows of steps of 0.2 s each (bench/measure/warmup.py). Where
# steps are long it is two windows of a step each after the first three, which are slow.
SHORTEST_WARM_UP_S = 0.5
WARM_UP_STEPS = 8
# Beside its rounds an arm's steps are counted and observed, and the last round runs beyond the
# budget: half of the budget again.
AROUND_ROUNDS = 1.5


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Quantities that the time of a trial is estimated from."""

    step_s: float
    """Estimated time of a training step of the trial's slowest arm."""
    arms: int
    steps_per_epoch: int
    epochs: int
    budget_s: float
    """Time budget of an arm."""
    fewest_rounds: int
    """ABBA rounds that are measured whatever the time budget."""

    @property
    def warm_up_s(self) -> float:
        """The warm-up of an arm."""
        return max(SHORTEST_WARM_UP_S, WARM_UP_STEPS * self.step_s)

    @property
    def rounds_s(self) -> float:
        """An arm's warm-up and its ABBA rounds, with the untimed steps between them."""
        # A round has two blocks of an arm, of a step each where steps are long, and about as many
        # steps that only warm up or are watched.
        fewest_s = 4 * self.fewest_rounds * self.step_s
        return self.warm_up_s + max(AROUND_ROUNDS * self.budget_s, fewest_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """How to go on after a run."""

    step: str = ""
    """A sentence for its last line."""
    code: str = ""
    """Text that is printed before, as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One kind of measurement.

    Most fields have a default that means "nothing special"; a phase gives those that differ.
    """

    # What it is.
    name: str
    """That of its folder, as in ``--phases``, in trial ids and in the name of its CSV."""
    order: int
    """Its place among the phases of a cell, which run by rising numbers."""
    summary: str

    # How it is asked for.
    option: str = "--phases"
    """The option that asks for it."""
    help: str = ""
    """Of an option of its own, which has the phase's name."""
    default: bool = False
    """Whether it runs where no option names phases."""
    check: Callable[[Request], None] = lambda _request: None
    """Raises a UsageError for a request that it cannot answer."""
    uses_epochs: bool = False
    """Whether ``--epochs`` and the other options of training are for it."""

    # Where it can be measured.
    can_measure: Callable[[Device], bool] = lambda _device: True
    """Returns whether a device has what it measures."""
    missing: Callable[[Device], str] = lambda _device: ""
    """Returns the sentence that a run warns with on a device that cannot; empty for no warning, on
    a device of which nobody expects it."""
    joint: bool = False
    """Whether it is measured on several devices that train together."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """The techniques that it cannot be measured with, each with the reason."""

    # Its trials in a cell.
    trials: Callable[[Question], list[Trial]] | None = None
    """Returns them; None are those that ``grouping`` and ``key`` say."""
    grouping: Literal["each", "together", "baseline"] = "each"
    """One trial for each precision, one for all that the device supports, or one of the baseline
    alone."""
    key: Literal["replicate", "seed"] | None = None
    """Counts repetitions, and so tells trials of the same precisions apart; None is measured
    once."""
    is_enough: Callable[[Trial, Mapping[str, Mapping[str, Speed]]], bool] | None = None
    """Returns whether the processes of a cell are enough, given the last one's trial, and the
    measured rows of speed by the ids of trials and the names of arms; further processes follow
    until they are. None: as many as were planned."""
    processes_on_gpu: int = 1
    """Processes that repeat it on a GPU, without ``--quick``, if nothing asks whether they are
    enough."""
    searches: bool = False
    """Whether it searches a batch size, before any other phase is planned."""
    is_ablation: bool = False
    """Whether it measures nothing itself: its trials are other phases', and their arms steps of an
    ablation, each with the techniques of the one before it and another."""
    has_own_baseline: bool = False
    """Whether each of its trials measures the baseline, too, so that no trial of that needs to."""
    recipe_batch: bool = False
    """Whether it keeps the suite's batch size where others are swept: at another it would be
    another training."""
    estimate: Callable[[Work], float] | None
    """Estimates a trial's seconds, without the start of its process; None where nothing is known
    beforehand, or where its trials are other phases'."""

    # How a trial runs.
    conduct: Callable[[Trial, PhaseSession], None] | None = None
    """Measures a trial that may need several processes; None measures it in one."""
    trains: bool = True
    """Whether its steps train, or only go forward, which takes less memory."""
    trains_on_data: bool = False
    """Whether it needs the suite's training data rather than random batches."""
    checkpoints: bool = False
    """Whether a trial that was interrupted is resumed from a checkpoint."""
    finds_unfit: bool = False
    """Whether it finds out which arms fit; the other phases of a cell leave the rest out."""

    # What it stores, and what is shown of it.
    row: type | None = None
    """The dataclass whose fields are its own columns, and their docstrings the columns'
    descriptions; None has none."""
    details: Mapping[type, str] = field(default_factory=dict)
    """The CSVs of the other records that it sends, by their types. A row belongs to an arm by its
    columns ``trial`` and ``precision``, which floor gives a suffix (``phases.floor.AGAIN``), and is
    one of several by columns of its own: of blocks ``round`` and ``position``, of epochs ``epoch``.
    Mappings of frames of details have the names of CSVs as keys, with ``.csv`` in a run's folder
    (``derive``), without in reports (``Runs.details``)."""
    derive: Callable[[pd.DataFrame, Mapping[str, pd.DataFrame]], pd.DataFrame] | None = None
    """Returns its rows with the columns that are not stored (``Column.stored``), given the rows, by
    the names of their arms and with the column ``reference``, and the frames of details, by the
    names of their CSVs."""
    metrics: tuple[Metric, ...] = ()
    """What its arms are compared by."""
    summarised: Mapping[str, str] = field(default_factory=dict)
    """The columns of its CSV that reports sum up, each with how repetitions are put together, as
    pandas names it."""
    describe: Callable[[TrialResult], str] | None = None
    """Returns an arm's line on the terminal once it was measured; None: its name, status and
    detail."""
    advice: Callable[[Path, Mapping[str, Any]], list[Advice]] = lambda _folder, _request: []
    """Returns what it advises after a run, given the run's folder and the request as run.json has
    it."""

    @property
    def file(self) -> str:
        """Its CSV, if it measures (``bench.spec.phases.MEASURING``)."""
        return f"{self.name}.csv"
