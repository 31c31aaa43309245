"""Instruments: timing, memory, telemetry, what ran, gradients, and disturbances of the device."""
