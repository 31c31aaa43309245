"""Instruments: timing, memory, and what NVML tells."""
