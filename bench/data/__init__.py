"""What a model is trained on: CIFAR-10, a folder of images, or random numbers, as batches on a device."""

from bench.data.batches import Batches, open_batches
from bench.data.prepare import Prepared, prepare
from bench.data.shard import WHOLE, Share
from bench.data.synthetic import random_batches

__all__ = ["WHOLE", "Batches", "Prepared", "Share", "open_batches", "prepare", "random_batches"]
