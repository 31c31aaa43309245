"""An ablation from fp32 to all techniques, each on top of those before, from host memory."""

from __future__ import annotations

from typing import TYPE_CHECKING

from bench.spec.phase import Phase

if TYPE_CHECKING:
    from bench.planning.question import Question
    from bench.spec.request import Request
    from bench.spec.trial import Trial


def check(request: Request) -> None:
    """Refuse several mixed precisions.

    Raises:
        UsageError: the request names several.
    """
    from bench.phases.ladder.plan import named_mixed

    if request.precisions:
        named_mixed(request.precisions)


def trials(question: Question) -> list[Trial]:
    """Return the trials of the memory phase and of the speed phase that the ablation is made of."""
    from bench.phases.ladder import plan

    return plan.trials(question)


PHASE = Phase(
    name="ladder",
    order=110,
    summary="memory and speed of each step of the ablation",
    option="--ladder",
    help="climb from fp32 over AMP, set-to-none, non-blocking and the prefetcher to what "
    "--techniques names, with batches in host memory, each on top of the one before that "
    "works; --precisions fp32 leaves AMP out",
    is_ablation=True,
    joint=True,
    check=check,
    trials=trials,
    estimate=None,
)
