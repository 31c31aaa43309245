"""Learning-rate schedules that several suites share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from bench.spec import require

if TYPE_CHECKING:
    from torch.optim import Optimizer
    from torch.optim.lr_scheduler import LRScheduler


def require_share(warmup: float) -> None:
    """Refuse a warm-up that is not a share of a run."""
    require(0 <= warmup < 1, "warmup", "a share of the run such as 0.1, from 0 and below 1", warmup)


def cosine(optimizer: Optimizer, steps: int, warmup: float = 0.0, stairs: int = 0) -> LRScheduler:
    """Return a linear rise to the full rate, then half a cosine down to 0, stepped once a step.

    Source of the cosine: Loshchilov and Hutter, SGDR (ICLR 2017), equation 5, without restarts; of
    the warm-up: Goyal et al., Accurate, Large Minibatch SGD (2017), section 2.2.

    Args:
        optimizer: whose rate is scheduled.
        steps: of the whole run.
        warmup: share of the steps in which the rate rises; 0 starts at the full rate.
        stairs: the rate changes so many times, such as once an epoch; 0 is at each step. There is
            no warm-up then.
    """
    from torch.optim.lr_scheduler import LambdaLR

    rising = int(warmup * steps)

    def factor(step: int) -> float:
        if stairs:
            return 0.5 * (1 + math.cos(math.pi * (step * stairs // steps) / stairs))
        if step < rising:
            return (step + 1) / (rising + 1)
        return 0.5 * (1 + math.cos(math.pi * (step - rising) / max(1, steps - rising)))

    return LambdaLR(optimizer, factor)
