"""Epochs of batches on a device: images, sequences of tokens, random values, or a suite's own."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Generator, Iterable, Iterator
from contextlib import closing
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import cycle, islice
from typing import Any, Literal

import torch
from torch import Tensor

from bench.data import sampling
from bench.data.batch import Batch, cut, first_dimension, to_device
from bench.data.cache import Dataset, Images, fits
from bench.data.prepare import is_synthetic, load
from bench.data.sampling import WHOLE, Shard
from bench.data.tokens import BYTES, SYMBOLS, Chain, Text, Tokens, chain
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.suite import NO_DATA, Data, Suite

# Inputs and targets of a batch.
Pair = tuple[Tensor, Tensor]
Pairs = Generator[Pair, None, None]
# Memory of the distinct batches that a synthetic epoch cycles through: a few would be learned by
# heart, and their gradients vanish.
POOL_BYTES = 512 * 2**20
# Tokens that a model of sequences is validated on.
VALIDATION_TOKENS = 2**16
# Of an epoch of a suite's own batches: an iterator that a suite made once, for all epochs, is used
# up in the second.
FEWEST_BATCHES = 2
# Each epoch of a suite's own batches has a seed higher by this: more than the seeds of a run, which
# count on from the first, so that no two trainings share an epoch's order.
NEXT_SEED = 10_000


def open_batches(
    data: Data,
    source: DataSource,
    *,
    batch_size: int,
    device: torch.device,
    seed: int,
    shard: Shard = WHOLE,
) -> Batches:
    """Open the samples of ``source`` as batches, from the cache if ``prepare`` filled it.

    Order and augmentation follow from ``seed`` and the epoch: they are the same for every precision
    and device.

    Args:
        data: the shape of a sample, and how images are augmented.
        source: where samples come from. Data that are neither images with a class nor tokens are
            always synthetic.
        batch_size: samples in a batch, no more than the training set has, and equally many for each
            rank.
        device: the device that batches are returned on.
        seed: of order and augmentation, or of the synthetic values.
        shard: this rank's part of every training batch.

    Raises:
        UsageError: the data cannot be loaded.
    """
    opened: Callable[..., Batches]
    if is_synthetic(data, source):
        opened = SyntheticBatches
    elif source.kind == "text":
        text = Text(str(source.path), data.input_shape[0])
        opened = partial(TokenBatches, text)
        data = replace(data, classes=BYTES)
    elif data.tokens:
        opened = partial(TokenBatches, chain())
    else:
        dataset = load(data, source)
        opened = partial(ImageBatches, dataset)
        data = replace(data, classes=len(dataset.classes))
    return opened(
        data=data,
        batch_size=batch_size,
        device=device,
        seed=seed,
        shard=shard,
    )


@dataclass(kw_only=True, eq=False)
class Batches(ABC):
    """Epochs of training batches on a device, and what is tested on."""

    data: Data = NO_DATA
    """The shape of a sample, and how images are augmented."""
    batch_size: int
    device: torch.device
    seed: int
    shard: Shard = WHOLE
    """This rank's part of every batch."""
    steps_per_epoch: int = field(init=False)
    storage: Literal["device", "host", "file"] = field(init=False, default="device")
    """Where samples come from while training."""
    entropy_nats: float | None = field(init=False, default=None)
    """The entropy rate of tokens, where it is known."""
    has_test = True

    def __post_init__(self) -> None:
        self.steps_per_epoch = self.data.steps_per_epoch

    @abstractmethod
    def train(self, epoch: int) -> Generator[Batch, None, None]:
        """Yield this rank's shard of every full batch of an epoch, on the device."""

    def test(self) -> Iterator[Batch]:
        """Yield this rank's shard of every test batch, in order."""
        return iter(())

    def _parts(self, total: int) -> list[slice]:
        """Divide samples into batches and return this rank's shard of each that is not empty."""
        parts = []
        for start in range(0, total, self.batch_size):
            stop = min(start + self.batch_size, total)
            part = self.shard.of(start, stop)
            if part.start < part.stop:
                parts.append(part)
        return parts


@dataclass(eq=False)
class ImageBatches(Batches):
    """Epochs of a data set's images, augmented on the device batch by batch, and its test set."""

    dataset: Dataset

    def __post_init__(self) -> None:
        """Load the images onto the device if they fit; else leave them in their file."""
        train = self.dataset.train
        test = self.dataset.test
        self._samples = len(train.labels)
        left = self._samples % self.batch_size
        # A rank without a sample would have no gradients to average with the others'.
        if not self.data.keep_last or left < self.shard.ranks:
            self._samples -= left
        self.steps_per_epoch = math.ceil(self._samples / self.batch_size)
        _channels, height, width = self.data.input_shape
        self._size = (height, width)
        self._normalized = sampling.normalizer(self.data.mean, self.data.std, self.device)
        size_bytes = train.images.nbytes + test.images.nbytes
        is_mapped = not fits(size_bytes, self.device, self.shard.ranks)
        self.storage = "file" if is_mapped else "device"
        self._train = Images(train, self.device, is_mapped=is_mapped)
        self._test = Images(test, self.device, is_mapped=is_mapped)

    def train(self, epoch: int) -> Pairs:
        """Yield this rank's shard of every batch, in the order of ``seed`` and ``epoch``.

        What is left after the full batches is a batch of its own if the data say so, and each rank
        has a part of it.

        Yields:
            Inputs, (B, *input_shape) float32, and classes, (B,) int64, on the device.
        """
        padding = self.data.crop_padding
        # An image that is left out of this epoch may be in the next: the order is of all.
        order = sampling.order(len(self._train), seed=self.seed, epoch=epoch)
        drawn = sampling.augmentation(
            self._samples,
            padding,
            seed=self.seed,
            epoch=epoch,
        )
        drawn = drawn.to(self.device)
        parts = self._parts(self._samples)
        taken = self._train.take(order, parts)
        for part, (pixels, labels) in zip(parts, taken, strict=True):
            mirrored, top, left = drawn[:, part]
            images = pixels
            # Mirror before resizing, while images are small; crop after: the padding is in pixels
            # of the input shape.
            if self.data.flip:
                images = sampling.mirror(images, mirrored)
            images = sampling.resize(images, self._size)
            if padding:
                images = sampling.crop(images, top, left, padding)
            yield self._normalized(images), labels

    def test(self) -> Iterator[Pair]:
        """Yield this rank's shard of every test batch, in order and not augmented.

        The last batch may be smaller; an empty shard of it is left out.
        """
        order = torch.arange(len(self._test))
        parts = self._parts(len(order))
        for pixels, labels in self._test.take(order, parts):
            images = sampling.resize(pixels, self._size)
            yield self._normalized(images), labels


@dataclass(eq=False)
class TokenBatches(Batches):
    """Epochs of sequences of tokens, and others to validate on: of a text, or of the Markov chain.

    Those trained on are drawn anew for every epoch. A text's that are validated on are the same for
    all seeds; the chain itself is, and each of its sequences is seen once.
    """

    source: Text | Chain

    def __post_init__(self) -> None:
        """Take the entropy of the source.

        Raises:
            UsageError: the vocabulary is smaller than the source's.
        """
        super().__post_init__()
        if (self.data.classes or 0) < SYMBOLS:
            raise UsageError(
                f"The data called markov have {SYMBOLS} symbols and the model a vocabulary of "
                f"{self.data.classes}. Set the suite's Data.classes to {SYMBOLS} or more, or give "
                "--data synthetic."
            )
        self.entropy_nats = self.source.entropy_nats
        self._length = self.data.input_shape[0]

    def train(self, epoch: int) -> Pairs:
        """Draw an epoch's sequences, and return this rank's shard of every batch.

        The sequences lie on the device when this returns, as a data set in tokens would: no batch
        waits for the draw.

        Returns:
            Inputs and targets, the inputs' next tokens, both (B, length) int64, on the device.
        """
        count = self.steps_per_epoch * self.batch_size
        rng = sampling.token_generator(self.seed, epoch)
        # One token more: the last one's next.
        sequences = self.source.sample(count, self._length + 1, rng)
        return self._batches(sequences)

    def test(self) -> Iterator[Pair]:
        """Draw the sequences that are validated on, and return this rank's shard of every batch."""
        # One at least, of however long sequences.
        count = max(1, VALIDATION_TOKENS // self._length)
        rng = sampling.token_generator(self.seed, -1)
        sequences = self.source.held_out(count, self._length + 1, rng)
        return self._batches(sequences)

    def _batches(self, sequences: Tokens) -> Pairs:
        """Yield sequences, (N, length + 1), in batches on the device."""
        tokens = torch.from_numpy(sequences).to(self.device)
        return (_shifted(tokens[part]) for part in self._parts(len(tokens)))


def _shifted(tokens: Tensor) -> Pair:
    """Return (B, length + 1) tokens as inputs and as targets, each one's next, both (B, length)."""
    inputs = tokens[:, :-1]
    targets = tokens[:, 1:]
    return inputs.contiguous(), targets.contiguous()


class SyntheticBatches(Batches):
    """Epochs of random batches out of a pool on the device; there is no test set."""

    has_test = False

    def __post_init__(self) -> None:
        """Fill the pool: at least two batches, and no more than ``POOL_BYTES`` or an epoch's."""
        super().__post_init__()
        draw = partial(
            random_batches,
            self.data,
            batch_size=self.batch_size,
            device=self.device,
            seed=self.seed,
        )
        ((inputs, targets),) = draw(count=1)
        batch_bytes = inputs.nbytes + targets.nbytes
        fitting = max(2, POOL_BYTES // batch_bytes)
        part = self.shard.of(0, self.batch_size)
        self._pool = []
        for inputs, targets in draw(count=min(fitting, self.steps_per_epoch)):
            self._pool.append((inputs[part], targets[part]))

    def train(self, epoch: int) -> Pairs:
        """Yield the same batches in every epoch, so that losses of two epochs can be compared."""
        del epoch
        yield from islice(cycle(self._pool), self.steps_per_epoch)


def random_batches(
    data: Data,
    *,
    batch_size: int,
    count: int,
    device: torch.device,
    seed: int,
) -> list[Pair]:
    """Return ``count`` batches of normal inputs and random targets, drawn on ``device``.

    CPU and GPU have different generators, so the values follow from the seed on devices of one kind
    only: drawing large batches on the CPU and copying them would take longer than training on them.
    Values are normal because zeros and constants change how fast and how hot hardware runs.

    Returns:
        Inputs, (B, *input_shape) float32, and targets: classes, (B,) int64, uniform, or (B,
        *target_shape) float32 values, normal. Of tokens both are (B, length) int64, uniform over
        the vocabulary.
    """
    generator = sampling.generator(device, seed, sampling.VALUES)

    def normal(*shape: int) -> Tensor:
        return torch.randn((batch_size, *shape), generator=generator, device=device)

    def whole(*shape: int) -> Tensor:
        classes = data.classes or 1
        return torch.randint(classes, (batch_size, *shape), generator=generator, device=device)

    batches = []
    for _ in range(count):
        if data.tokens:
            (length,) = data.input_shape
            batches.append(_shifted(whole(length + 1)))
            continue
        # Inputs are drawn before targets: the other order would give other values.
        inputs = normal(*data.input_shape)
        targets = whole() if data.target_shape is None else normal(*data.target_shape)
        batches.append((inputs, targets))
    return batches


@dataclass(eq=False)
class SuiteBatches(Batches):
    """Epochs of a suite's own ``batches``."""

    suite: Suite

    def __post_init__(self) -> None:
        """Call for the first epoch's batches, whose ``len`` is that of each epoch.

        Raises:
            UsageError: they have no ``len``, and the suite has a schedule of steps.
        """
        self.data = self.suite.data
        self.storage = "host"
        super().__post_init__()
        first = self._open("train", self.seed)
        if hasattr(first, "__len__"):
            self.steps_per_epoch = len(first)
            return
        if (self.suite.schedule is not None) and self.suite.schedule_every == "step":
            name = self._name("train", self.seed)
            raise UsageError(f"The schedule needs the steps of an epoch, and {name} has no len.")

    @property
    def has_test(self) -> bool:  # type: ignore[override]
        """Whether there are batches to test on."""
        is_tested = self.suite.has_loss or self.suite.evaluate is not None
        if not is_tested:
            return False
        return self._open("test", self.seed) is not None

    def loaded(self, epoch: int) -> Generator[Batch, None, None]:
        """Yield an epoch's batches as they come, in host memory.

        Raises:
            UsageError: the epoch has fewer than two batches, or fewer than its ``len``.
        """
        seed = self.seed + NEXT_SEED * (epoch - 1)
        batches = self._open("train", seed)
        count = 0
        for batch in _begun(batches, seed):
            yield batch
            count += 1
        least = FEWEST_BATCHES
        if hasattr(batches, "__len__"):
            least = max(least, len(batches))
        if count < least:
            name = self._name("train", seed)
            raise UsageError(
                f"{name} ended after {count} of the {least} batches that an epoch needs."
            )

    def train(self, epoch: int) -> Generator[Batch, None, None]:
        """Yield this rank's shard of every batch of an epoch, on the device."""
        for batch in self.loaded(epoch):
            yield self._shared(batch)

    def test(self) -> Iterator[Batch]:
        """Yield this rank's shard of every test batch; all of it for a suite's own ``evaluate``."""
        batches = _begun(self._open("test", self.seed), self.seed)
        if self.suite.evaluate is not None:
            return (to_device(batch, self.device) for batch in batches)
        return (self._shared(batch) for batch in batches)

    def _shared(self, batch: Batch) -> Batch:
        """Return this rank's shard of a batch, on the device."""
        if self.shard.ranks > 1:
            count = self.suite.count or first_dimension
            samples = count(batch)
            own = self.shard.of(0, samples)
            (batch,) = cut(batch, [own], samples, f"Training on {self.shard.ranks} devices")
        return to_device(batch, self.device)

    def _open(self, split: str, seed: int) -> Any:
        assert self.suite.batches is not None
        batches = self.suite.batches(split, self.batch_size, seed)
        if batches is None and split == "train":
            name = self._name(split, seed)
            raise UsageError(f"{name} returned None: there is nothing to train on.")
        return batches

    def _name(self, split: str, seed: int) -> str:
        return f"batches({split!r}, {self.batch_size}, {seed})"


def _begun(batches: Iterable[Batch], seed: int) -> Iterator[Batch]:
    """Yield batches; while a DataLoader draws their order, torch's CPU generator has this seed."""
    with torch.random.fork_rng(devices=[]):
        torch.default_generator.manual_seed(seed)
        iterator = iter(batches)
        # A DataLoader draws its order when its first batch is asked for.
        first = list(islice(iterator, 1))
    yield from first
    yield from iterator


def first_batches(
    suite: Suite,
    data: Data,
    *,
    batch_size: int,
    count: int,
    device: torch.device,
    seed: int,
    shard: Shard = WHOLE,
) -> list[Batch]:
    """Return this rank's shard of the first batches that a suite trains on, or of random ones.

    They lie on the device. There are fewer than ``count`` where an epoch of a suite's own batches
    has fewer.
    """
    if suite.batches is None:
        size = batch_size // shard.ranks
        # Each rank draws samples of its own.
        seed += shard.rank
        return random_batches(
            data,
            batch_size=size,
            count=count,
            device=device,
            seed=seed,
        )
    batches = SuiteBatches(
        suite,
        batch_size=batch_size,
        device=device,
        seed=seed,
        shard=shard,
    )
    with closing(batches.train(1)) as epoch:
        return list(islice(epoch, count))
