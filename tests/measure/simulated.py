"""The simulated arms, where the tests look for them, and noise that is the same in every test."""

import random
from collections.abc import Callable

from bench.doctor.simulated import SimulatedMachine, SimulatedRunner

__all__ = ["SimulatedMachine", "SimulatedRunner", "gaussian"]


def gaussian(seed: int, sigma: float) -> Callable[[], float]:
    """Return multiplicative noise of relative size ``sigma``."""
    chance = random.Random(seed)
    return lambda: max(0.01, 1 + chance.gauss(0, sigma))
