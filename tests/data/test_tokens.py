"""Tokens: the split of a text, the windows of a seed, what is refused; and that the chain is what
its samples show.
"""

from dataclasses import replace

import numpy as np
import pytest
import torch

from bench.data import batches as batches_module
from bench.data import prepare
from bench.data.tokens import BYTES, SYMBOLS, chain
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.suite import Data
from tests.data.conftest import joined, opened
from tests.training.conftest import same

LENGTH = 4
DATA = Data(
    input_shape=(LENGTH,),
    classes=50_304,
    tokens=True,
    source="markov",
    steps_per_epoch=3,
)
TRAINED, VALIDATED = 180, 20
TEXT = bytes(range(TRAINED)) + bytes(range(200, 200 + VALIDATED))
"""Each byte tells where it stands, and those that are validated on are above all others."""


@pytest.fixture
def text(tmp_path):
    file = tmp_path / "text"
    file.write_bytes(TEXT)
    return file


@pytest.fixture
def source(text):
    return DataSource.parse(f"text:{text}")


def test_the_first_bytes_are_trained_on_and_the_last_tenth_is_validated_on(source):
    prepared = prepare(DATA, source)
    assert prepared.train_tokens == TRAINED
    assert prepared.validation_tokens == VALIDATED
    batches = opened(replace(DATA, steps_per_epoch=300), source)
    # The bytes are the vocabulary, whatever the suite has.
    assert prepared.classes == batches.data.classes == BYTES
    inputs, targets = joined(batches.train(1))
    assert targets.dtype == torch.int64
    assert torch.equal(targets, inputs + 1)  # the next bytes
    # Both ends are reached, and not passed.
    assert inputs.min() == 0
    assert targets.max() == TRAINED - 1
    ((_, targets),) = batches.test()
    bytes_once = list(range(201, 217))  # of 20 bytes four windows take 17
    assert targets.flatten().tolist() == bytes_once


def test_windows_follow_from_the_seed_and_the_epoch_and_those_validated_on_from_neither(source):
    def epoch(number, seed=0):
        return joined(opened(DATA, source, seed=seed).train(number))

    first = epoch(1)
    assert same(first, epoch(1))
    assert not same(first, epoch(2))
    assert not same(first, epoch(1, seed=1))
    (validated,) = opened(DATA, source).test()
    (other,) = opened(DATA, source, seed=1).test()
    assert same(validated, other)


def test_of_a_long_text_evenly_spaced_windows_are_validated_on(source, monkeypatch):
    monkeypatch.setattr(batches_module, "VALIDATION_TOKENS", 2 * LENGTH)
    ((inputs, _),) = opened(DATA, source).test()
    starts = inputs[:, 0]
    assert starts.tolist() == [200, 208]


def test_a_text_that_is_too_short_is_refused_with_what_it_would_need(source, text):
    text.write_bytes(b"x" * 49)
    with pytest.raises(UsageError, match=r"has 49 bytes.* need at least 50"):
        prepare(DATA, source)
    text.write_bytes(b"x" * 50)
    ((inputs, _),) = opened(DATA, source).test()
    assert len(inputs) == 1


def test_another_text_has_another_fingerprint(source, text):
    prints = []
    for content in (TEXT, TEXT[:-1] + b"x", TEXT):
        text.write_bytes(content)
        prints.append(prepare(DATA, source).fingerprint)
    first, other, again = prints
    assert first == again != other


def test_the_chain_is_the_same_everywhere_with_a_stationary_distribution_that_stays():
    transition = chain().transition
    stationary = chain().stationary
    assert transition.min() > 0
    totals = transition.sum(axis=1)
    assert totals == pytest.approx(np.ones(SYMBOLS), abs=1e-12)
    after_a_step = stationary @ transition
    assert after_a_step == pytest.approx(stationary, abs=1e-14)
    assert chain().entropy_nats == pytest.approx(3.084017019322956, abs=1e-9)
