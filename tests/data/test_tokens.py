"""Tokens: the split of a text, the windows of a seed, what is refused; and that the chain is what
its samples show.
"""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.data import batches as batches_module
from bench.data import open_batches, prepare
from bench.data.tokens import BYTES, SYMBOLS, Chain, chain
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.suite import Data

CPU = torch.device("cpu")
LENGTH = 4
DATA = Data(input_shape=(LENGTH,), classes=50_304, tokens=True, source="markov", steps_per_epoch=3)
TRAINED, VALIDATED = 180, 20
TEXT = bytes(range(TRAINED)) + bytes(range(200, 200 + VALIDATED))
"""Each byte tells where it stands, and those that are validated on are above all others."""


@pytest.fixture
def source(tmp_path):
    (tmp_path / "text").write_bytes(TEXT)
    return DataSource.parse(f"text:{tmp_path / 'text'}")


def opened(source, *, data=DATA, seed=0):
    return open_batches(data, source, batch_size=8, device=CPU, seed=seed)


def joined(batches):
    """Return the inputs and the targets of all batches."""
    inputs, targets = zip(*batches, strict=True)
    return torch.cat(inputs), torch.cat(targets)


def test_the_first_bytes_are_trained_on_the_last_tenth_is_validated_on_and_the_split_is_known(
    source,
):
    prepared = prepare(DATA, source)
    assert prepared.train_tokens == TRAINED
    assert prepared.validation_tokens == VALIDATED
    assert prepared.classes == BYTES
    assert prepared.train_samples is None
    long = replace(DATA, steps_per_epoch=300)
    batches = opened(source, data=long)
    inputs, targets = joined(batches.train(1))
    # Both ends are reached, and not passed.
    assert inputs.min() == 0
    assert targets.max() == TRAINED - 1
    inputs, targets = joined(batches.test())
    assert inputs.min() == 200
    assert targets.max() == 216  # of 20 bytes four windows take 17


def test_targets_are_the_next_bytes_whatever_vocabulary_the_suite_has(source):
    batches = opened(source)
    assert batches.data.classes == BYTES
    assert batches.has_test
    assert batches.entropy_nats is None
    epoch = list(batches.train(1))
    assert len(epoch) == batches.steps_per_epoch == 3
    for inputs, targets in epoch:
        assert inputs.shape == (8, LENGTH)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)


def test_windows_follow_from_the_seed_and_the_epoch_and_those_validated_on_from_neither(source):
    def epoch(number, seed=0):
        inputs, _ = joined(opened(source, seed=seed).train(number))
        return inputs

    def validated(seed):
        inputs, _ = joined(opened(source, seed=seed).test())
        return inputs

    first = epoch(1)
    assert torch.equal(first, epoch(1))
    assert not torch.equal(first, epoch(2))
    assert not torch.equal(first, epoch(1, seed=1))
    assert torch.equal(validated(0), validated(1))


def test_of_a_long_text_evenly_spaced_windows_are_validated_on(source, monkeypatch):
    _, targets = joined(opened(source).test())
    every_byte_once = list(range(201, 201 + 4 * LENGTH))
    assert targets.flatten().tolist() == every_byte_once
    monkeypatch.setattr(batches_module, "VALIDATION_TOKENS", 2 * LENGTH)
    inputs, _ = joined(opened(source).test())
    assert inputs[:, 0].tolist() == [200, 208]


@pytest.mark.parametrize("size", [0, 49])
def test_a_text_that_is_too_short_is_refused_with_what_it_would_need(tmp_path, size):
    short = tmp_path / "short"
    short.write_bytes(b"x" * size)
    source = DataSource(kind="text", path=str(short))
    with pytest.raises(UsageError, match=f"has {size} bytes.* need at least 50"):
        prepare(DATA, source)
    short.write_bytes(b"x" * 50)
    inputs, _ = joined(opened(source).test())
    assert len(inputs) == 1


def test_another_text_has_another_fingerprint(source, tmp_path):
    def fingerprint(content):
        file = tmp_path / "another"
        file.write_bytes(content)
        return prepare(DATA, replace(source, path=str(file))).fingerprint

    first = prepare(DATA, source).fingerprint
    assert fingerprint(TEXT) == first
    assert fingerprint(TEXT[:-1] + b"x") != first


def test_a_chain_of_two_symbols_has_the_entropy_of_the_textbook():
    two = Chain(transition=np.array([[0.8, 0.2], [0.3, 0.7]]))

    def binary(share):
        other = 1 - share
        return -share * math.log(share) - other * math.log(other)

    assert two.stationary == pytest.approx([0.6, 0.4], abs=1e-12)
    expected = 0.6 * binary(0.2) + 0.4 * binary(0.3)
    assert two.entropy_nats == pytest.approx(expected, rel=1e-12)


def test_the_chain_is_the_same_everywhere_with_a_stationary_distribution_that_stays():
    transition = chain().transition
    assert transition.min() > 0
    assert transition.sum(axis=1) == pytest.approx(np.ones(SYMBOLS), abs=1e-12)
    stationary = chain().stationary
    assert stationary @ transition == pytest.approx(stationary, abs=1e-14)
    assert chain().entropy_nats == pytest.approx(3.084017019322956, abs=1e-9)
