"""The loops that perf/ compares train alike."""

import pytest
import torch

from perf import arms, steps
from tests.libraries import WITHOUT_TORCHAO

CPU = torch.device("cpu")


def test_all_loops_train_on_the_same_batches_to_the_same_losses():
    suite = arms.open_suite("mlp", width=8)
    for precision in ("fp32", "amp-bf16"):
        harness = arms.harness(suite, precision, CPU, 4)
        plain = arms.by_hand(suite, precision, CPU, 4)
        for count in (1, 3, 2):
            for arm in (harness, plain):
                arm.run_steps(count)
            assert torch.equal(harness.loss, plain.last)
        assert plain.taken_steps() == 6


def bring_over(theirs, ours):
    """Give a model of the suite gpt the weights of Hugging Face's."""
    body = theirs.transformer
    pairs = [(ours.tokens, body.wte), (ours.positions, body.wpe), (ours.norm, body.ln_f)]
    for block, other in zip(ours.blocks, body.h, strict=True):
        attention, others = block.attention, other.attn
        pairs += [(block.norm1, other.ln_1), (block.norm2, other.ln_2)]
        pairs += [(attention.qkv, others.c_attn), (attention.projection, others.c_proj)]
        pairs += [(block.expansion, other.mlp.c_fc), (block.projection, other.mlp.c_proj)]
    for layer, other in pairs:
        # The matrices of Conv1D lie the other way round.
        weight = other.weight.T if type(other).__name__ == "Conv1D" else other.weight
        layer.weight.data.copy_(weight)
        if getattr(layer, "bias", None) is not None:
            layer.bias.data.copy_(other.bias)


@pytest.mark.skipif(
    bool(WITHOUT_TORCHAO), reason=f"transformers imports torchao: {WITHOUT_TORCHAO}"
)
def test_with_huggingfaces_weights_gpt_has_its_losses_to_fp32s_rounding_step_after_step():
    pytest.importorskip("transformers")
    suite = arms.open_suite("gpt", preset="tiny")
    theirs, ours = steps.huggingface_model(suite, "tiny"), suite.model(suite.data)
    assert theirs.model.config._attn_implementation == "sdpa"
    with torch.no_grad():  # biases begin at 0 and norms at 1, which would hide a mistake
        for weight in theirs.parameters():
            weight.add_(torch.randn_like(weight), alpha=0.05)
    bring_over(theirs.model, ours)
    sizes = [sum(map(torch.numel, model.parameters())) for model in (ours, theirs)]
    assert sizes[0] == sizes[1]
    runners = [arms.by_hand(suite, "fp32", CPU, 2, model=model) for model in (ours, theirs)]
    for _ in range(3):
        for runner in runners:
            runner.run_steps(1)
        loss, other = (runner.last.item() for runner in runners)
        assert loss == pytest.approx(other, rel=2e-6)
