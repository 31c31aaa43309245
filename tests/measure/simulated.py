"""The simulated arms, where the tests look for them."""

from bench.measure.simulated import SimulatedMachine, SimulatedRunner, gaussian

__all__ = ["SimulatedMachine", "SimulatedRunner", "gaussian"]
