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
from typing import Any, Literal

from bench.spec.metric import Metric


@dataclass(frozen=True, kw_only=True, slots=True)
class Work:
    """Quantities that the time of a trial is estimated from."""

    step_s: float
    """Estimated time of a training step in fp32."""
    arms: int
    steps_per_epoch: int
    epochs: int
    budget_s: float
    """Time budget of an arm."""
    fewest_rounds: int
    """ABBA rounds that are measured whatever the time budget."""

    @property
    def warm_up_s(self) -> float:
        """The warm-up of an arm: about as many steps as it takes where they are long."""
        return max(0.5, 8 * self.step_s)

    @property
    def rounds_s(self) -> float:
        """An arm's warm-up and its ABBA rounds, with the untimed steps between them."""
        # A round has two blocks of an arm, of a step each where steps are long, and about as many
        # steps that only warm up or are watched.
        fewest_s = 4 * self.fewest_rounds * self.step_s
        return self.warm_up_s + max(1.5 * self.budget_s, fewest_s)


@dataclass(frozen=True, kw_only=True, slots=True)
class Advice:
    """How to go on after a run."""

    step: str = ""
    """A sentence for its last line."""
    code: str = ""
    """Text that is printed before, as it is."""


@dataclass(frozen=True, kw_only=True, slots=True)
class Phase:
    """One kind of measurement."""

    name: str
    """That of its folder, as in ``--phases``, in trial ids and in the name of its CSV."""
    order: int
    """Its place among the phases of a cell, which run by rising numbers."""
    summary: str
    estimate: Callable[[Work], float] | None
    """Estimates a trial's seconds, without the start of its process; None where nothing is known
    beforehand, or where its trials are other phases'."""
    row: type | None = None
    """The dataclass whose fields are its own columns, and their docstrings the columns'
    descriptions; None has none."""
    details: Mapping[type, str] = field(default_factory=dict)
    """The CSVs of the other records that it sends, by their types."""
    metrics: tuple[Metric, ...] = ()
    """What its arms are compared by."""
    summarised: Mapping[str, str] = field(default_factory=dict)
    """The columns of its CSV that reports sum up, each with how repetitions are put together, as
    pandas names it."""
    derive: Callable[[Any, Any], Any] | None = None
    """Returns its rows with the columns that are not stored (``Column.stored``), given the rows, by
    the names of their arms and with the column ``reference``, and the frames of details, by the
    names of their CSVs."""
    describe: Callable[[Any], str] | None = None
    """Returns the line on the terminal of the ``TrialResult`` of an arm that was measured; None:
    its name, status and detail."""
    key: Literal["replicate", "seed"] | None = None
    """Counts repetitions, and so tells trials of the same precisions apart; None is measured
    once."""
    is_enough: Callable[[Any, Any], bool] | None = None
    """Returns whether the processes of a cell are enough, given the last one's trial, and the
    measured rows of speed by the ids of trials and the names of arms; further processes follow
    until they are. None: as many as were planned."""
    processes_on_gpu: int = 1
    """Processes that repeat it on a GPU, without ``--quick``, if nothing asks whether they are
    enough."""
    grouping: Literal["each", "together", "baseline"] = "each"
    """One trial for each precision, one for all that the device supports, or one of the baseline
    alone."""
    option: str = "--phases"
    """The option that asks for it."""
    help: str = ""
    """Of an option of its own, which has the phase's name."""
    default: bool = False
    """Whether it runs where no option names phases."""
    joint: bool = False
    """Whether it is measured on several devices that train together."""
    trains_on_data: bool = False
    """Whether it needs the suite's training data rather than random batches."""
    recipe_batch: bool = False
    """Whether it keeps the suite's batch size where others are swept: at another it would be
    another training."""
    checkpoints: bool = False
    """Whether a trial that was interrupted is resumed from a checkpoint."""
    finds_unfit: bool = False
    """Whether it finds out which arms fit; the other phases of a cell leave the rest out."""
    is_ablation: bool = False
    """Whether it measures nothing itself: its trials are other phases', and their arms steps of an
    ablation, each with the techniques of the one before it and another."""
    trains: bool = True
    """Whether its steps train, or only go forward, which takes less memory."""
    uses_epochs: bool = False
    """Whether ``--epochs`` and the other options of training are for it."""
    has_own_baseline: bool = False
    """Whether each of its trials measures the baseline, too, so that no trial of that needs to."""
    refuses: Mapping[str, str] = field(default_factory=dict)
    """The techniques that it cannot be measured with, each with the reason."""
    lacks: Callable[[Any], str | None] = lambda _device: None
    """Returns None if a ``Device`` can measure it, else the sentence that a run warns with; an
    empty text leaves the phase out without a warning."""
    check: Callable[[Any], None] = lambda _request: None
    """Raises a UsageError for a ``Request`` that it cannot answer."""
    trials: Callable[[Any], list[Any]] | None = None
    """Returns its trials in a cell, to a ``planning.question.Question``; None are those that its
    ``grouping`` and ``key`` say."""
    searches: bool = False
    """Whether it searches a batch size, before any other phase is planned."""
    conduct: Callable[[Any, Any], None] | None = None
    """Measures a trial that may need several processes, given it and the
    ``phases.session.PhaseSession``; None measures it in one process."""
    advice: Callable[..., list[Advice]] = lambda _folder, _request: []
    """Returns what it advises after a run, given the run's folder and its request."""

    @property
    def file(self) -> str:
        """Its CSV, if it measures (``bench.spec.phases.MEASURING``)."""
        return f"{self.name}.csv"
