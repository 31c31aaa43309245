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


def opened(source, *, data=DATA, **changes):
    return open_batches(data, source, **{"batch_size": 8, "device": CPU, "seed": 0, **changes})


def joined(batches):
    return [torch.cat(parts) for parts in zip(*batches, strict=True)]


def test_the_first_bytes_are_trained_on_the_last_tenth_is_validated_on_and_the_split_is_known(
    source,
):
    prepared = prepare(DATA, source)
    assert (prepared.train_tokens, prepared.validation_tokens) == (TRAINED, VALIDATED)
    assert (prepared.classes, prepared.train_samples) == (BYTES, None)
    batches = opened(source, data=replace(DATA, steps_per_epoch=300))
    inputs, targets = joined(batches.train(1))
    # Both ends are reached, and not passed.
    assert (int(inputs.min()), int(targets.max())) == (0, TRAINED - 1)
    inputs, targets = joined(batches.test())
    assert (int(inputs.min()), int(targets.max())) == (200, 200 + VALIDATED - 4)


def test_targets_are_the_next_bytes_whatever_vocabulary_the_suite_has(source):
    batches = opened(source)
    assert batches.data.classes == BYTES
    epoch = list(batches.train(1))
    assert len(epoch) == batches.steps_per_epoch == 3
    for inputs, targets in epoch:
        assert inputs.shape == targets.shape == (8, LENGTH)
        assert inputs.dtype == targets.dtype == torch.int64
        assert torch.equal(targets, inputs + 1)
    assert (batches.has_test, batches.entropy_nats) == (True, None)


def test_windows_follow_from_the_seed_and_the_epoch_and_those_validated_on_from_neither(source):
    def epoch(number, seed=0):
        return joined(opened(source, seed=seed).train(number))[0]

    assert torch.equal(epoch(1), epoch(1))
    assert not torch.equal(epoch(1), epoch(2))
    assert not torch.equal(epoch(1), epoch(1, seed=1))
    assert torch.equal(joined(opened(source).test())[0], joined(opened(source, seed=1).test())[0])


def test_of_a_long_text_evenly_spaced_windows_are_validated_on(source, monkeypatch):
    whole = joined(opened(source).test())[1]
    assert whole.flatten().tolist() == list(range(201, 201 + 4 * LENGTH))  # every byte at most once
    monkeypatch.setattr(batches_module, "VALIDATION_TOKENS", 2 * LENGTH)
    assert joined(opened(source).test())[0][:, 0].tolist() == [200, 208]


@pytest.mark.parametrize("size", [0, 1, 10 * (LENGTH + 1) - 1])
def test_a_text_that_is_too_short_is_refused_with_what_it_would_need(tmp_path, size):
    (tmp_path / "short").write_bytes(b"x" * size)
    source = DataSource(kind="text", path=str(tmp_path / "short"))
    for refused in (prepare, lambda data, source: opened(source)):
        with pytest.raises(UsageError, match=f"has {size} bytes.* need at least 50"):
            refused(DATA, source)
    (tmp_path / "short").write_bytes(b"x" * 10 * (LENGTH + 1))
    assert len(joined(opened(source).test())[0]) == 1


def test_another_text_has_another_fingerprint(source, tmp_path):
    first = prepare(DATA, source).fingerprint
    for name, content in (("copy", TEXT), ("other", TEXT[:-1] + b"x")):
        (tmp_path / name).write_bytes(content)
        prepared = prepare(DATA, replace(source, path=str(tmp_path / name)))
        assert (prepared.fingerprint == first) == (name == "copy")


def test_a_chain_of_two_symbols_has_the_entropy_of_the_textbook():
    leave, come = 0.2, 0.3
    two = Chain(transition=np.array([[1 - leave, leave], [come, 1 - come]]))

    def binary(share):
        return -share * math.log(share) - (1 - share) * math.log(1 - share)

    assert two.stationary == pytest.approx([0.6, 0.4], abs=1e-12)
    assert two.entropy_nats == pytest.approx(0.6 * binary(leave) + 0.4 * binary(come), rel=1e-12)


def test_the_chain_is_the_same_everywhere_with_a_stationary_distribution_that_stays():
    transition, stationary = chain().transition, chain().stationary
    assert transition.min() > 0
    assert transition.sum(axis=1) == pytest.approx(np.ones(SYMBOLS), abs=1e-12)
    assert stationary @ transition == pytest.approx(stationary, abs=1e-14)
    assert stationary.sum() == pytest.approx(1, abs=1e-12)
    assert chain().entropy_nats == pytest.approx(3.084017019322956, abs=1e-9)
