"""Epochs of batches on a device: images of a data set, sequences of tokens, random values, or a suite's own batches."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import replace
from functools import partial
from itertools import islice
from typing import Any

import torch
from torch import Tensor

from bench.data import sampling
from bench.data.batch import Batch, cut, first_dimension, to_device
from bench.data.cache import Dataset, Images, Storage, choose_storage, free_bytes
from bench.data.prepare import is_synthetic, load
from bench.data.sampling import WHOLE, Augmentation, Normalizer, Shard
from bench.data.tokens import BYTES, SYMBOLS, Text, Tokens, chain
from bench.spec.errors import UsageError
from bench.spec.suite import Data, Suite
from bench.spec.trial import DataSource

TRAIN_SAMPLE = 2000
"""Most training images on which training accuracy is evaluated."""
POOL_BYTES = 512 * 2**20
"""Memory of the distinct batches that a synthetic epoch cycles through."""
VALIDATION_TOKENS = 2**16
"""Tokens that a model of sequences is validated on."""
FEWEST_BATCHES = 2
"""Of an epoch of a suite's own batches."""
NEXT_SEED = 10_000
"""Each epoch of a suite's own batches has a seed higher by this."""


def open_batches(
    data: Data, source: DataSource, *, batch_size: int, device: torch.device, seed: int, shard: Shard = WHOLE
) -> Batches:
    """Open the samples of ``source`` as batches on ``device``, from the cache if ``prepare`` filled it.

    Order and augmentation follow from ``seed`` and the epoch: they are the same for every precision and device.

    Args:
        data: the shape of a sample, and how images are augmented.
        source: where samples come from. Data that are neither images with a class nor tokens are always synthetic.
        batch_size: samples in a batch.
        device: the device that batches are returned on.
        seed: of order and augmentation, or of the synthetic values.
        shard: this rank's part of every training batch.

    Raises:
        UsageError: the data cannot be loaded, or a batch is larger than the training set or does not divide equally.
    """
    shard.require_even(batch_size)
    if is_synthetic(data, source):
        return SyntheticBatches(data, batch_size=batch_size, device=device, seed=seed, shard=shard)
    if data.tokens:
        text = Text(str(source.path), data.input_shape[0]) if source.kind == "text" else None
        return TokenBatches(text, data, batch_size=batch_size, device=device, seed=seed, shard=shard)
    dataset = load(data, source)
    data = replace(data, classes=len(dataset.classes))
    return ImageBatches(dataset, data, batch_size=batch_size, device=device, seed=seed, shard=shard)


class Batches(ABC):
    """Epochs of training batches on a device, and what is tested on."""

    has_test = True
    storage: Storage = "device"
    entropy_nats: float | None = None
    """The entropy rate of tokens, where it is known."""

    def __init__(self, data: Data, *, batch_size: int, device: torch.device, seed: int, shard: Shard = WHOLE) -> None:
        """Take the shape of samples; an epoch has as many batches as the suite says, unless there is a data set."""
        self.data = data
        self.steps_per_epoch = data.steps_per_epoch
        self._batch_size, self._device, self._seed, self._shard = batch_size, device, seed, shard

    @abstractmethod
    def train(self, epoch: int) -> Generator[Batch, None, None]:
        """Yield this rank's shard of every full batch of an epoch, on the device."""

    def test(self, shard: Shard = WHOLE) -> Iterator[Batch]:
        """Yield every test sample once, or a shard of every batch, in order."""
        del shard
        return iter(())

    def train_sample(self, shard: Shard = WHOLE) -> Iterator[Batch]:
        """Yield a sample of what is trained on, as ``test`` does; nothing where there is no accuracy."""
        del shard
        return iter(())

    def _parts(self, total: int, shard: Shard) -> list[slice]:
        """Divide samples into batches and return the shard of each; a batch whose shard is empty is left out."""
        size = self._batch_size
        parts = [shard.of(start, min(start + size, total)) for start in range(0, total, size)]
        return [part for part in parts if part.start < part.stop]


class ImageBatches(Batches):
    """Epochs of images of a data set, augmented on the device a batch at a time, and its test images."""

    def __init__(
        self, dataset: Dataset, data: Data, *, batch_size: int, device: torch.device, seed: int, shard: Shard = WHOLE
    ) -> None:
        """Load the images onto the device or into host memory if they fit; else leave them in their file.

        Raises:
            UsageError: a batch is larger than the training set.
        """
        count = len(dataset.train.labels)
        if batch_size > count:
            raise UsageError(
                f"A batch of {batch_size} is larger than the training set, which has {count} images. "
                f"Give --batch-sizes of {count} or less, or more images."
            )
        super().__init__(data, batch_size=batch_size, device=device, seed=seed, shard=shard)
        left = count % batch_size if data.keep_last else 0
        self._samples = count - count % batch_size + (left if left >= shard.ranks else 0)
        self.steps_per_epoch = math.ceil(self._samples / batch_size)
        self._size = (data.input_shape[1], data.input_shape[2])
        self._normalized = Normalizer(data.mean, data.std, device)
        size_bytes = dataset.train.images.nbytes + dataset.test.images.nbytes
        self.storage = choose_storage(size_bytes, *free_bytes(device, shard.ranks))
        self._train, self._test = (Images(split, self.storage, device) for split in (dataset.train, dataset.test))

    def train(self, epoch: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Yield this rank's shard of every batch, in the order of ``seed`` and ``epoch``.

        What is left after the full batches is a batch of its own if the data say so, and each rank has a part of it.

        Yields:
            Inputs, (B, *input_shape) float32, and classes, (B,) int64, on the device.
        """
        total = self._samples
        order = sampling.order(len(self._train), seed=self._seed, epoch=epoch)
        augmentation = Augmentation.draw(total, self.data.crop_padding, seed=self._seed, epoch=epoch).to(self._device)
        batches = self._parts(total, self._shard)
        for batch, (images, labels) in zip(batches, self._train.take(order, batches), strict=True):
            yield self._normalized(self._augmented(images, augmentation.of(batch))), labels

    def test(self, shard: Shard = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield every test image once, or a shard of every batch, in order and not augmented.

        The last batch may be smaller; an empty shard of it is left out.
        """
        return self._plain(self._test, torch.arange(len(self._test)), shard)

    def train_sample(self, shard: Shard = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Yield a fixed, evenly spaced sample of training images as ``test`` does: at most 2,000, no more than it."""
        total = len(self._train)
        count = min(total, len(self._test), TRAIN_SAMPLE)
        return self._plain(self._train, torch.arange(count) * total // count, shard)

    def _plain(self, images: Images, order: Tensor, shard: Shard) -> Iterator[tuple[Tensor, Tensor]]:
        for batch_images, labels in images.take(order, self._parts(len(order), shard)):
            yield self._normalized(self._resized(batch_images)), labels

    def _augmented(self, images: Tensor, augmentation: Augmentation) -> Tensor:
        # Mirror before resizing, while images are small; crop after, since the padding is in pixels of the input shape.
        resized = self._resized(sampling.mirror(images, augmentation.mirrored) if self.data.flip else images)
        padding = self.data.crop_padding
        return sampling.crop(resized, augmentation.top, augmentation.left, padding) if padding else resized

    def _resized(self, images: Tensor) -> Tensor:
        return images if images.shape[2:] == self._size else sampling.resize(images, self._size)


class TokenBatches(Batches):
    """Epochs of sequences of tokens, and others to validate on: of a text, or of the Markov chain.

    Those trained on are drawn anew for every epoch. A text's that are validated on are the same for all seeds; the
    chain itself is, and each of its sequences is seen once.
    """

    def __init__(
        self, text: Text | None, data: Data, *, batch_size: int, device: torch.device, seed: int, shard: Shard = WHOLE
    ) -> None:
        """Take the text, or None for the Markov chain.

        Raises:
            UsageError: the vocabulary is smaller than the chain's.
        """
        if text is None and (data.classes or 0) < SYMBOLS:
            raise UsageError(
                f"The data called markov have {SYMBOLS} symbols and the model a vocabulary of {data.classes}. "
                f"Set the suite's Data.classes to {SYMBOLS} or more, or give --data synthetic."
            )
        data = replace(data, classes=BYTES) if text else data
        super().__init__(data, batch_size=batch_size, device=device, seed=seed, shard=shard)
        self.entropy_nats = None if text else chain().entropy_nats
        self._text, self._length = text, data.input_shape[0]

    def train(self, epoch: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Draw an epoch's sequences, and return this rank's shard of every batch.

        The sequences lie on the device when this returns, as a data set in tokens would: no batch waits for the draw.

        Returns:
            Inputs and targets, the inputs' next tokens, both (B, length) int64, on the device.
        """
        return self._batches(self._training(epoch), self._shard)

    def _training(self, epoch: int) -> Tokens:
        """Draw an epoch's sequences, (N, length + 1)."""
        count, rng = self.steps_per_epoch * self._batch_size, sampling.token_generator(self._seed, epoch)
        return self._text.windows(count, rng) if self._text else chain().sample(count, self._length + 1, rng)

    def test(self, shard: Shard = WHOLE) -> Iterator[tuple[Tensor, Tensor]]:
        """Draw the sequences that are validated on, and return each once, or a shard of every batch."""
        count = max(1, VALIDATION_TOKENS // self._length)
        if self._text:
            return self._batches(self._text.validation_windows(count), shard)
        return self._batches(chain().sample(count, self._length + 1, sampling.token_generator(self._seed, None)), shard)

    def _batches(self, sequences: Tokens, shard: Shard) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Yield sequences, (N, length + 1), in batches on the device; empty shards of a batch are left out."""
        tokens = torch.from_numpy(sequences).to(self._device)
        return (_shifted(tokens[part]) for part in self._parts(len(tokens), shard))


def _shifted(tokens: Tensor) -> tuple[Tensor, Tensor]:
    """Return (B, length + 1) tokens as inputs and as targets, each one's next, both (B, length)."""
    return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()


class SyntheticBatches(Batches):
    """Epochs of ``data.steps_per_epoch`` random batches out of a pool on the device; there is no test set."""

    has_test = False

    def __init__(self, data: Data, *, batch_size: int, device: torch.device, seed: int, shard: Shard = WHOLE) -> None:
        """Fill the pool with as many batches as ``POOL_BYTES`` holds: at least two, and no more than an epoch's."""
        super().__init__(data, batch_size=batch_size, device=device, seed=seed, shard=shard)
        target_bytes = 8 if data.classes is not None else 4 * math.prod(data.target_shape or ())
        sample_bytes = 16 * data.input_shape[0] if data.tokens else 4 * math.prod(data.input_shape) + target_bytes
        count = min(max(2, POOL_BYTES // (batch_size * sample_bytes)), self.steps_per_epoch)
        part = shard.of(0, batch_size)
        pool = random_batches(data, batch_size=batch_size, count=count, device=device, seed=seed)
        self._pool = [(inputs[part], targets[part]) for inputs, targets in pool]

    def train(self, epoch: int) -> Generator[tuple[Tensor, Tensor], None, None]:
        """Yield the same batches in every epoch, so that the losses of two epochs can be compared."""
        del epoch
        for step in range(self.steps_per_epoch):
            yield self._pool[step % len(self._pool)]


def random_batches(
    data: Data, *, batch_size: int, count: int, device: torch.device, seed: int
) -> list[tuple[Tensor, Tensor]]:
    """Return ``count`` batches of normal inputs and random targets, drawn on ``device``.

    CPU and GPU have different generators, so the values follow from the seed on devices of one kind only: drawing
    large batches on the CPU and copying them would take longer than training on them. Values are normal because
    zeros and constants change how fast and how hot hardware runs.

    Returns:
        Inputs, (B, *input_shape) float32, and targets: classes, (B,) int64, uniform, or (B, *target_shape)
        float32 values, normal. Of tokens both are (B, length) int64, uniform over the vocabulary.
    """
    generator = sampling.value_generator(seed, device)

    def normal(*shape: int) -> Tensor:
        return torch.randn((batch_size, *shape), generator=generator, device=device)

    def uniform(*shape: int) -> Tensor:
        return torch.randint(data.classes or 1, (batch_size, *shape), generator=generator, device=device)

    if data.tokens:
        return [_shifted(uniform(data.input_shape[0] + 1)) for _ in range(count)]
    targets = uniform if data.classes is not None else partial(normal, *(data.target_shape or ()))
    return [(normal(*data.input_shape), targets()) for _ in range(count)]


class SuiteBatches(Batches):
    """Epochs of a suite's own ``batches``."""

    storage: Storage = "host"

    def __init__(self, suite: Suite, *, batch_size: int, device: torch.device, seed: int, shard: Shard = WHOLE) -> None:
        """Call for the first epoch's batches, whose ``len`` is that of each epoch.

        Raises:
            UsageError: they have no ``len``, and the suite has a schedule.
        """
        super().__init__(suite.data, batch_size=batch_size, device=device, seed=seed, shard=shard)
        self._suite = suite
        first = self._open("train", seed)
        if hasattr(first, "__len__"):
            self.steps_per_epoch = len(first)
        elif suite.schedule is not None:
            raise UsageError(f"The schedule needs the steps of an epoch, and {self._name('train', seed)} has no len.")

    @property
    def has_test(self) -> bool:  # type: ignore[override]
        """Whether there are batches to test on."""
        suite = self._suite
        assert suite.batches is not None
        is_tested = suite.has_loss or suite.evaluate is not None
        return is_tested and suite.batches("test", self._batch_size, self._seed) is not None

    def loaded(self, epoch: int) -> Generator[Batch, None, None]:
        """Yield an epoch's batches as they come, in host memory.

        Raises:
            UsageError: the epoch has fewer than two batches, or fewer than its ``len``.
        """
        seed = self._seed + NEXT_SEED * (epoch - 1)
        batches, number = self._open("train", seed), 0
        for number, batch in enumerate(_begun(batches, seed), start=1):  # noqa: B007
            yield batch
        length = len(batches) if hasattr(batches, "__len__") else 0
        if number < max(FEWEST_BATCHES, length):
            wanted = f"its len is {length}" if number < length else f"an epoch needs {FEWEST_BATCHES} or more"
            raise UsageError(f"{self._name('train', seed)} ended after {number} batch{'es' * (number != 1)}: {wanted}.")

    def train(self, epoch: int) -> Generator[Batch, None, None]:
        """Yield this rank's shard of every batch of an epoch, on the device."""
        return (self._shared(batch, self._shard) for batch in self.loaded(epoch))

    def test(self, shard: Shard = WHOLE) -> Iterator[Batch]:
        """Yield every batch of the test split, or a shard of each."""
        return (self._shared(batch, shard) for batch in _begun(self._open("test", self._seed), self._seed))

    def train_sample(self, shard: Shard = WHOLE) -> Iterator[Batch]:
        """Yield the first batches of training as ``test`` does: of 2,000 samples at most."""
        first = islice(self.loaded(1), max(1, TRAIN_SAMPLE // self._batch_size))
        return (self._shared(batch, shard) for batch in first)

    def _shared(self, batch: Batch, shard: Shard) -> Batch:
        if shard.ranks > 1:
            samples = (self._suite.count or first_dimension)(batch)
            (batch,) = cut(batch, [shard.of(0, samples)], samples, f"Training on {shard.ranks} devices")
        return to_device(batch, self._device)

    def _open(self, split: str, seed: int) -> Any:
        assert self._suite.batches is not None
        batches = self._suite.batches(split, self._batch_size, seed)
        if not isinstance(batches, Iterable):
            raise UsageError(f"{self._name(split, seed)} returned {type(batches).__name__}, which is not iterable.")
        return batches

    def _name(self, split: str, seed: int) -> str:
        return f"batches({split!r}, {self._batch_size}, {seed})"


def _begun(batches: Iterable[Batch], seed: int) -> Iterator[Batch]:
    """Yield batches; torch's CPU generator has a seed of its own while a DataLoader draws its order."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        iterator = iter(batches)
        first = list(islice(iterator, 1))
    yield from first
    yield from iterator


def first_batches(
    suite: Suite, data: Data, *, batch_size: int, count: int, device: torch.device, seed: int, shard: Shard = WHOLE
) -> list[Batch]:
    """Return this rank's shard of the first batches that a suite trains on, on the device, or of random ones.

    There are fewer than ``count`` where an epoch of a suite's own batches has fewer.
    """
    if suite.batches is None:
        size = batch_size // shard.ranks
        return list(random_batches(data, batch_size=size, count=count, device=device, seed=seed + shard.rank))
    batches = SuiteBatches(suite, batch_size=batch_size, device=device, seed=seed, shard=shard)
    with closing(batches.train(1)) as epoch:
        return list(islice(epoch, count))
