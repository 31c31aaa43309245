"""Noise for simulated arms that is the same in every test."""

import random
from collections.abc import Callable

MS = 1_000_000


def gaussian(seed: int, sigma: float) -> Callable[[], float]:
    """Return multiplicative noise of relative size ``sigma``."""
    rng = random.Random(seed)
    return lambda: max(0.01, 1 + rng.gauss(0, sigma))
