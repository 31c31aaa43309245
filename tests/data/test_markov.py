"""The Markov chain: that what is computed of it is what its samples show."""

import math

import numpy as np
import pytest

from bench.data.markov import SYMBOLS, Chain, chain


def losses(tokens):
    """Return what the true transitions lose on each token but the first of each sequence, in nats."""
    return -np.log(chain().transition[tokens[:, :-1], tokens[:, 1:]])


def plug_in_entropy(tokens):
    """Return the entropy of the counted transitions, with Miller's and Madow's correction of its bias, in nats."""
    pairs = np.bincount((SYMBOLS * tokens[:, :-1] + tokens[:, 1:]).ravel(), minlength=SYMBOLS**2)
    counts = pairs.reshape(SYMBOLS, SYMBOLS)
    rows, seen = counts.sum(axis=1, keepdims=True), counts > 0
    conditional = -(counts[seen] * np.log((counts / rows)[seen])).sum() / counts.sum()
    return conditional + (seen.sum() - SYMBOLS) / (2 * counts.sum())


def test_a_chain_of_two_symbols_has_the_entropy_of_the_textbook():
    leave, come = 0.2, 0.3
    two = Chain(transition=np.array([[1 - leave, leave], [come, 1 - come]]))

    def binary(share):
        return -share * math.log(share) - (1 - share) * math.log(1 - share)

    assert two.stationary == pytest.approx([0.6, 0.4], abs=1e-12)
    assert two.entropy_nats == pytest.approx(0.6 * binary(leave) + 0.4 * binary(come), rel=1e-12)


def test_the_stationary_distribution_stays_and_the_transitions_are_probabilities():
    transition, stationary = chain().transition, chain().stationary
    assert transition.shape == (SYMBOLS, SYMBOLS)
    assert transition.min() > 0
    assert stationary.min() > 0
    assert transition.sum(axis=1) == pytest.approx(np.ones(SYMBOLS), abs=1e-12)
    assert stationary @ transition == pytest.approx(stationary, abs=1e-14)
    assert stationary.sum() == pytest.approx(1, abs=1e-12)


def test_the_chain_is_the_same_everywhere():
    assert chain().entropy_nats == pytest.approx(3.084017019322956, abs=1e-9)


def test_symbols_have_their_stationary_shares_at_every_place_and_transitions_their_own():
    tokens = chain().sample(20_000, 4, np.random.default_rng(1))
    for place in (0, 3):
        shares = np.bincount(tokens[:, place], minlength=SYMBOLS) / len(tokens)
        chi_square = len(tokens) * ((shares - chain().stationary) ** 2 / chain().stationary).sum()
        assert chi_square < SYMBOLS + 6 * math.sqrt(2 * SYMBOLS)
    common = int(chain().stationary.argmax())
    after = tokens[:, 1:][tokens[:, :-1] == common]
    expected = len(after) * chain().transition[common]
    often = expected > 5
    counts = np.bincount(after, minlength=SYMBOLS)
    assert ((counts - expected)[often] ** 2 / expected[often]).sum() < often.sum() + 6 * math.sqrt(2 * often.sum())


@pytest.mark.parametrize("count", [10_000, pytest.param(156_250, marks=pytest.mark.slow)])
def test_long_samples_have_the_computed_entropy(count):
    tokens = chain().sample(count, 65, np.random.default_rng(0))  # 64 transitions each: at most 10⁷
    entropy, own = chain().entropy_nats, losses(tokens)
    assert own.mean() == pytest.approx(entropy, abs=4 * own.std() / math.sqrt(own.size))
    if count > 100_000:
        assert own.mean() == pytest.approx(entropy, rel=1e-3)
        assert plug_in_entropy(tokens) == pytest.approx(entropy, rel=1e-3)


def test_samples_follow_from_the_generator():
    one, same, other = (chain().sample(3, 50, np.random.default_rng(seed)) for seed in (0, 0, 1))
    assert (one == same).all()
    assert (one != other).any()
