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
            harness.run_steps(count)
            plain.run_steps(count)
            assert torch.equal(harness.loss, plain.last)
        assert plain.taken_steps() == 6


@pytest.mark.skipif(
    bool(WITHOUT_TORCHAO), reason=f"transformers imports torchao: {WITHOUT_TORCHAO}"
)
def test_with_huggingfaces_weights_gpt_has_its_losses_to_fp32s_rounding_step_after_step():
    pytest.importorskip("transformers")
    suite = arms.open_suite("gpt", preset="tiny")
    ours = suite.model(suite.data)
    theirs = steps.huggingface_model(suite, "tiny")
    assert theirs.model.config._attn_implementation == "sdpa"
    pairs = zip(
        ours.parameters(),
        theirs.named_parameters(),
        strict=True,
    )
    with torch.no_grad():
        for weight, (name, other) in pairs:
            # Biases begin at 0 and norms at 1, which would hide a mistake.
            other.add_(torch.randn_like(other), alpha=0.05)
            # The matrices of Conv1D, such as c_attn, lie the other way round.
            is_turned = ".c_" in name and name.endswith(".weight")
            weight.copy_(other.T if is_turned else other)
    losses = []
    for model in (ours, theirs):
        runner = arms.by_hand(suite, "fp32", CPU, 2, model=model)
        for _ in range(3):
            runner.run_steps(1)
            losses.append(runner.last.item())
    assert losses[:3] == pytest.approx(losses[3:], rel=2e-6)
