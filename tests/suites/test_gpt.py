"""The transformer: its shapes and sizes, that it learns, and what it is validated against."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bench.data.sampling import token_generator
from bench.data.tokens import chain
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.training.checkpoint import stored_bytes
from bench.training.estimates import training_flops_per_sample
from bench.training.step import evaluate
from tests.data.conftest import joined, opened
from tests.suites.conftest import suite_of
from tests.training.conftest import arm_of, train

PARAMETERS_M = {"tiny": 0.834, "char": 10.84, "gpt2": 124.5, "wide": 408.0}


def markov(data, **options):
    return opened(data, DataSource(kind="markov"), **options)


@pytest.mark.parametrize("preset", PARAMETERS_M)
def test_a_preset_has_its_parameters_and_its_flops(preset):
    suite = suite_of("gpt", preset=preset)
    with torch.device("meta"):
        model = suite.model(suite.data)
    parameters = nn.utils.parameters_to_vector(model.parameters())
    assert len(parameters) == pytest.approx(1e6 * PARAMETERS_M[preset], rel=1e-3)
    length, width = model.positions.weight.shape
    layers = len(model.blocks)
    in_products = 12 * layers * width**2 + model.head.weight.numel()
    # Kaplan et al., Scaling Laws (2020), section 2.1: six for each weight in a product, and
    # attention's own products.
    in_attention = 12 * layers * length * width
    least = length * (6 * in_products + in_attention)
    flops = training_flops_per_sample(suite)
    assert least <= flops <= 1.2 * least


def test_a_tied_head_is_stored_once():
    model = arm_of(suite_of("gpt"), "bf16").model
    head = model.head.weight
    assert head is model.tokens.weight
    bytes_once = sum(weight.nbytes for weight in model.parameters())
    stored = stored_bytes(model)
    assert bytes_once <= stored < bytes_once + head.nbytes


def test_outputs_do_not_depend_on_later_tokens():
    suite = suite_of("gpt")
    model = suite.model(suite.data)
    tokens = torch.randint(256, (2, 64))
    with torch.no_grad():
        before = model(tokens)
        tokens[:, 40:] = 0
        after = model(tokens)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before, after)


def test_a_preset_has_its_rate_and_batch():
    suite = suite_of("gpt", preset="gpt2")
    optimizer = suite.optimizer([torch.zeros(2, 2)])
    assert optimizer.defaults["lr"] == 6e-4
    assert suite.batch_size == 12


def test_biases_and_norms_do_not_decay():
    suite = suite_of("gpt")
    model = suite.model(suite.data)
    optimizer = suite.optimizer(model.parameters())
    for group in optimizer.param_groups:
        for weight in group["params"]:
            decay = 0.1 if weight.dim() == 2 else 0.0
            assert group["weight_decay"] == decay


def test_the_loss_falls_within_a_few_steps():
    suite = suite_of("gpt", lr="3e-3", batches="5")
    batches = markov(suite.data, batch_size=4)
    arm = arm_of(suite, "amp-bf16")
    first, *_, last = train(arm, batches.train(1))
    uniform_nats = math.log(256)
    assert first == pytest.approx(uniform_nats, rel=0.05)
    assert last < first - 0.1


def test_an_epoch_is_what_the_chain_draws_by_seed_and_number_and_no_validation_has_it():
    suite = suite_of("gpt", batches="3")
    batches = markov(suite.data, seed=7)
    validated, _ = next(batches.test())
    sequences = validated.tolist()
    for epoch in (1, 2):
        inputs, _ = joined(batches.train(epoch))
        generator = token_generator(7, epoch)
        sample = chain().sample(3 * 8, 65, generator)
        expected = sample[:, :-1].tolist()
        assert inputs.tolist() == expected
        sequences += expected
    distinct = set(map(tuple, sequences))
    assert len(distinct) == len(sequences)


def test_a_small_vocabulary_is_refused():
    with pytest.raises(UsageError, match="256 symbols and the model a vocabulary of 100"):
        markov(replace(suite_of("gpt").data, classes=100))


def test_a_model_at_the_optimum_loses_the_entropy_and_has_no_accuracy():
    suite = suite_of("gpt")
    arm = arm_of(suite)
    # The best logits are those of the chain's own transitions.
    logits = np.log(chain().transition)
    weights = torch.from_numpy(logits).float()
    vars(arm.model)["forward"] = nn.Embedding.from_pretrained(weights).forward
    excesses = []
    for seed in range(5):
        batches = markov(suite.data, seed=seed)
        loss, accuracy_pct = evaluate(arm, batches.test())
        assert accuracy_pct is None
        excesses.append(loss - batches.entropy_nats)
    error = np.std(excesses, ddof=1) / math.sqrt(5)
    half_width = 2.776 * error  # Student's 95 % interval
    mean = np.mean(excesses)
    assert abs(mean) < half_width < 0.02
