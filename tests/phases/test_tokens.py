"""Phases on sequences of tokens: how their reports differ from those on images."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from bench.data import batches
from bench.data.tokens import SYMBOLS, chain
from bench.phases.inference.measure import agreement
from bench.phases.train import measure as train
from bench.results.records import EpochResult
from bench.spec.data_source import DataSource
from bench.spec.protocol import Protocol
from bench.spec.suite import Data
from tests.phases.conftest import of_kind, result_of, run_phase

LENGTH = 8


@pytest.fixture
def trial(use_suite, tiny_trial, monkeypatch):
    """A trial of a table of logits, a row for each token, on the Markov chain."""
    monkeypatch.setattr(batches, "VALIDATION_TOKENS", 50 * LENGTH)
    data = Data(
        input_shape=(LENGTH,), classes=SYMBOLS, tokens=True, source="markov", steps_per_epoch=3
    )
    use_suite(lambda data: nn.Embedding(data.classes, data.classes), data=data)
    cell = replace(tiny_trial.cell, data=DataSource(kind="markov"))
    return replace(tiny_trial, cell=cell, protocol=Protocol(time_budget_s=0.1, replicates=2))


@pytest.fixture(params=["markov", "text:{folder}/mine.txt"])
def on_tokens(request, trial, tmp_path):
    """The trial on the Markov chain, and on a text."""
    (tmp_path / "mine.txt").write_bytes(b"to be or not to be; " * 100)
    source = DataSource.parse(request.param.format(folder=tmp_path))
    return replace(trial, cell=replace(trial.cell, data=source, classes=SYMBOLS))


def test_a_training_has_the_entropy_of_a_markov_chain_next_to_its_loss_and_no_accuracy(
    on_tokens, cpu
):
    sent = run_phase(on_tokens, cpu, "train", "amp-bf16")
    training, (epoch,) = result_of(sent).row, of_kind(EpochResult, sent)
    on_a_chain = on_tokens.cell.data.kind == "markov"
    assert training.entropy_nats == (chain().entropy_nats if on_a_chain else None)
    assert training.test_loss == epoch.test_loss > (training.entropy_nats or 0)
    assert (training.test_accuracy_pct, epoch.samples) == (None, 12)


@pytest.mark.parametrize("techniques", [(), ("prefetcher",)])
def test_an_epoch_is_drawn_before_its_clock(trial, cpu, monkeypatch, techniques):
    events = []

    def noted(event, called):
        return lambda *given: events.append(event) or called(*given)

    monkeypatch.setattr(batches.TokenBatches, "train", noted("draw", batches.TokenBatches.train))
    monkeypatch.setattr(train, "train_epoch", noted("clock", train.train_epoch))
    run_phase(trial, cpu, "train", "fp32", techniques=techniques, epochs=2)
    assert events == 2 * ["draw", "clock"]


def test_speed_is_in_tokens_too(trial, cpu):
    figures = result_of(run_phase(trial, cpu, "speed", "fp32")).row
    assert figures.tokens_per_s == LENGTH * figures.samples_per_s


def test_answers_are_compared_token_by_token():
    expected = torch.zeros(2, LENGTH, SYMBOLS)
    expected[..., 3] = 4.0
    outputs = expected.clone()
    outputs[0, :4, 5] = 5.0
    baseline = SimpleNamespace(activate=lambda: None, forward=lambda _: expected)
    runner = SimpleNamespace(activate=lambda: None, forward=lambda _: outputs)
    tokens = torch.zeros(2, LENGTH, dtype=torch.int64)
    assert agreement(baseline, runner, [tokens, tokens]) == (75.0, 1.25)
