"""Simulated NVIDIA GPUs, and tests on them; README.md says what they can tell and what not."""
