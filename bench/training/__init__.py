"""Training: its step and loop, autocast, 16-bit weights, techniques, checkpoints and ranks."""
