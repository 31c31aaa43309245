"""The transformer: its shapes and sizes, that it learns, and what it is validated against."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from torch import nn

from bench.data import open_batches
from bench.data.sampling import token_generator
from bench.data.tokens import chain
from bench.measure.memory import model_bytes
from bench.planning import suite_registry
from bench.spec.data_source import DataSource
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from bench.training.checkpoint import stored_bytes
from bench.training.estimates import training_flops_per_sample
from bench.training.step import build_arm, evaluate, training_step

CPU = torch.device("cpu")
PARAMETERS_M = {"tiny": 0.834, "char": 10.84, "gpt2": 124.5, "wide": 408.0}


def suite_of(**settings):
    return suite_registry.load(suite_registry.refer("gpt", settings))


def arm_of(suite, precision="fp32"):
    return build_arm(suite, suite.data, PRECISIONS[precision], CPU, seed=0, clip_grad=1.0)


def markov(data, batch_size=8, seed=0):
    source = DataSource(kind="markov")
    return open_batches(data, source, batch_size=batch_size, device=CPU, seed=seed)


@pytest.mark.parametrize("preset", PARAMETERS_M)
def test_a_preset_has_its_parameters_and_its_flops(preset):
    suite = suite_of(preset=preset)
    with torch.device("meta"):
        model = suite.model(suite.data)
    weights = list(model.parameters())
    parameters_m = sum(weight.numel() for weight in weights) / 1e6
    assert parameters_m == pytest.approx(PARAMETERS_M[preset], rel=1e-3)
    (length,), layers = suite.data.input_shape, len(model.blocks)
    width = model.tokens.weight.shape[1]
    in_matrices = sum(weight.numel() for weight in weights if weight.dim() == 2)
    in_products = in_matrices - model.positions.weight.numel()
    # Kaplan et al., Scaling Laws (2020), section 2.1: six for each weight in a product, and
    # attention's own products.
    least = length * (6 * in_products + 12 * layers * length * width)
    assert least <= training_flops_per_sample(suite) <= 1.2 * least


def test_a_tied_head_is_counted_and_stored_once():
    suite = suite_of()
    model = suite.model(suite.data)
    bytes_once = 4 * sum(weight.numel() for weight in model.parameters())
    assert model_bytes(model) == bytes_once
    assert bytes_once <= stored_bytes(model) < bytes_once + model.head.weight.nbytes
    arm = arm_of(suite, "bf16")
    assert arm.model.head.weight is arm.model.tokens.weight


def test_outputs_do_not_depend_on_later_tokens():
    suite = suite_of()
    model, tokens = suite.model(suite.data), torch.randint(256, (2, 64))
    changed = tokens.clone()
    changed[:, 40:] = (changed[:, 40:] + 1) % 256
    with torch.no_grad():
        before, after = model(tokens), model(changed)
    torch.testing.assert_close(before[:, :40], after[:, :40])
    assert not torch.allclose(before[:, 40:], after[:, 40:])


def test_a_preset_has_its_rate_and_batch_unless_others_are_asked_for():
    weight = [nn.Parameter(torch.zeros(2, 2))]
    usual = suite_of(preset="gpt2")
    changed = suite_of(preset="gpt2", lr="0.5", batch_size="3")
    assert (usual.optimizer(weight).defaults["lr"], usual.batch_size) == (6e-4, 12)
    assert (changed.optimizer(weight).defaults["lr"], changed.batch_size) == (0.5, 3)


def test_biases_and_norms_do_not_decay():
    suite = suite_of()
    optimizer = suite.optimizer(suite.model(suite.data).parameters())
    for group in optimizer.param_groups:
        is_matrix = {weight.dim() > 1 for weight in group["params"]}
        assert is_matrix == {group["weight_decay"] > 0}
    assert [group["weight_decay"] for group in optimizer.param_groups] == [0.1, 0.0]


@pytest.mark.parametrize("precision", ["fp32", "amp-bf16"])
def test_the_loss_falls_within_a_few_steps(precision):
    suite = suite_of(lr="3e-3", batches="5")
    arm, batches = arm_of(suite, precision), markov(suite.data, batch_size=4)
    losses = [training_step(arm, batch).item() for batch in batches.train(1)]
    assert losses[0] == pytest.approx(math.log(256), rel=0.05)
    assert losses[-1] < losses[0] - 0.1


def test_an_epoch_is_what_the_chain_draws_by_seed_and_number_and_no_validation_has_it():
    suite, drawn = suite_of(batches="3"), set()
    for seed, epoch in ((0, 1), (0, 2), (7, 1)):
        batches = markov(suite.data, seed=seed)
        expected = torch.from_numpy(chain().sample(3 * 8, 65, token_generator(seed, epoch)))
        inputs, targets = (torch.cat(parts) for parts in zip(*batches.train(epoch), strict=True))
        assert torch.equal(inputs, expected[:, :-1])
        assert torch.equal(targets, expected[:, 1:])
        validated, again = (next(batches.test())[0] for _ in range(2))
        assert torch.equal(validated, again)
        drawn |= {tuple(tokens.tolist()) for tokens in (*inputs, *validated)}
    assert len(drawn) == 3 * 24 + 2 * 8  # two of the three have the seed of one validation


def test_a_small_vocabulary_is_refused():
    with pytest.raises(UsageError, match="256 symbols and the model a vocabulary of 100"):
        markov(replace(suite_of().data, classes=100))


def test_a_model_at_the_optimum_loses_the_entropy_and_has_no_accuracy():
    suite = suite_of()
    arm = arm_of(suite)
    # The best logits are those of the chain's own transitions.
    logits = torch.from_numpy(np.log(chain().transition)).float()
    vars(arm.model)["forward"] = nn.Embedding.from_pretrained(logits).forward
    above = []
    for seed in range(5):
        batches = markov(suite.data, seed=seed)
        loss, accuracy_pct = evaluate(arm, batches.test())
        above.append(loss - batches.entropy_nats)
        assert accuracy_pct is None
    half = 2.776 * np.std(above, ddof=1) / math.sqrt(5)  # Student's 95 % interval
    assert abs(np.mean(above)) < half < 0.02
