"""Instruments: timing, memory, energy, what ran, gradients, and what disturbed the device meanwhile."""
