"""The way of a batch from host memory to the arm's device, as the arm's techniques say."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, closing
from functools import partial

from bench.data.batch import Batch, pinned, to_device
from bench.data.transfer import prefetched
from bench.training.step import BuiltArm


def from_host(
    arm: BuiltArm,
    batches: Sequence[Batch],
    stack: ExitStack,
) -> Iterator[Batch]:
    """Return batches that lie in host memory on the arm's device, in turn and again and again.

    Without techniques each is copied from pageable memory when it is asked for. ``non-blocking``
    pins them, and does not wait for a copy; the ``prefetcher``, which ``stack`` closes, copies the
    next batch during the step.
    """
    techniques = arm.techniques
    if techniques.non_blocking:
        # Once, before all steps: pinning copies a batch, which would count as the step's.
        batches = [pinned(batch) for batch in batches]
    ready = partial(to_device, device=arm.device, non_blocking=techniques.non_blocking)
    if not techniques.prefetcher:
        return map(ready, itertools.cycle(batches))
    ahead = prefetched(itertools.cycle(batches), arm.device, ready)
    return stack.enter_context(closing(ahead))
