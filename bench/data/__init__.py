"""Training data as batches on a device: CIFAR-10, a folder of images, tokens, or random numbers."""

from bench.data.batches import Batches, SuiteBatches, first_batches, open_batches, random_batches
from bench.data.prepare import prepare
from bench.data.sampling import WHOLE, Shard

__all__ = [
    "WHOLE",
    "Batches",
    "Shard",
    "SuiteBatches",
    "first_batches",
    "open_batches",
    "prepare",
    "random_batches",
]
