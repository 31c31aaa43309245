"""Phases on sequences of tokens: how their reports differ from those on images."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.data import batches
from bench.data.tokens import SYMBOLS, chain
from bench.phases.inference.measure import agreement
from bench.results.records import EpochResult
from bench.spec.data_source import DataSource
from bench.spec.suite import Data
from bench.training.step import train_epoch
from tests.phases.conftest import of_kind, result_of, run_phase

LENGTH = 8


@pytest.fixture
def trial(use_suite, tiny_trial, monkeypatch):
    """A trial of a table of logits, a row for each token, on the Markov chain."""
    monkeypatch.setattr(batches, "VALIDATION_TOKENS", 50 * LENGTH)
    data = Data(
        input_shape=(LENGTH,),
        classes=SYMBOLS,
        tokens=True,
        source="markov",
        steps_per_epoch=3,
    )
    use_suite(lambda _data: nn.Embedding(SYMBOLS, SYMBOLS), data=data)
    return with_data(tiny_trial, "markov")


def with_data(trial, words):
    cell = replace(trial.cell, data=DataSource.parse(words), classes=SYMBOLS)
    return replace(trial, cell=cell)


def test_a_training_on_a_markov_chain_has_its_entropy_next_to_its_loss_and_no_accuracy(trial, cpu):
    sent = run_phase(trial, cpu, "train", "amp-bf16")
    training = result_of(sent).row
    (epoch,) = of_kind(EpochResult, sent)
    assert training.entropy_nats == chain().entropy_nats
    assert training.test_loss == epoch.test_loss
    assert training.test_loss > training.entropy_nats
    assert training.test_accuracy_pct is None
    assert epoch.samples == 12


def test_a_training_on_a_text_has_a_loss_and_no_entropy(trial, cpu, tmp_path):
    text = tmp_path / "mine.txt"
    text.write_bytes(b"to be or not to be; " * 100)
    trial = with_data(trial, f"text:{text}")
    training = result_of(run_phase(trial, cpu, "train", "amp-bf16")).row
    assert training.test_loss > 0
    assert training.entropy_nats is None


@pytest.mark.parametrize("techniques", [(), ("prefetcher",)])
def test_an_epoch_is_drawn_before_its_clock(trial, cpu, monkeypatch, techniques):
    events = []
    draw = batches.TokenBatches.train

    def noted_draw(*given):
        events.append("draw")
        return draw(*given)

    def noted_clock(*given):
        events.append("clock")
        return train_epoch(*given)

    monkeypatch.setattr(batches.TokenBatches, "train", noted_draw)
    monkeypatch.setattr("bench.phases.train.measure.train_epoch", noted_clock)
    run_phase(trial, cpu, "train", "fp32", techniques=techniques, epochs=2)
    assert events == 2 * ["draw", "clock"]


def test_speed_is_in_tokens_too(trial, cpu):
    speed = result_of(run_phase(trial, cpu, "speed", "fp32")).row
    assert speed.tokens_per_s == LENGTH * speed.samples_per_s


def answering(logits):
    """Return a runner that has these outputs of every batch."""
    return SimpleNamespace(activate=lambda: None, forward=lambda _: logits)


def test_answers_are_compared_token_by_token():
    expected = torch.zeros(2, LENGTH, SYMBOLS)
    expected[..., 3] = 4.0
    outputs = expected.clone()
    outputs[0, :4, 5] = 5.0
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    shares = agreement(answering(expected), answering(outputs), [tokens, tokens])
    assert shares == (75.0, 1.25)
