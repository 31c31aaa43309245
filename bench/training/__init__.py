"""The training step and loop; autocast, 16-bit weights, techniques, checkpoints, distributed training."""
