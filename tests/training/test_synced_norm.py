"""Batch norm over the parts of two processes, against one process's with the whole batch."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from bench.spec.errors import UnsupportedError
from bench.spec.precisions import PRECISIONS
from bench.spec.suite import Data, Suite
from bench.spec.techniques import Techniques
from bench.training import distributed
from bench.training.distributed import SyncedBatchNorm, synchronised_norms
from bench.training.step import build_arm, training_step
from tests.processes import together

BATCH, SHIFT = 8, 100.0
NORMS = {
    "2d": (lambda: nn.BatchNorm2d(3), (BATCH, 3, 4, 5)),
    "1d": (lambda: nn.BatchNorm1d(3), (BATCH, 3)),
    "plain": (lambda: nn.BatchNorm1d(3, affine=False, track_running_stats=False), (BATCH, 3, 2)),
    "cumulative": (lambda: nn.BatchNorm3d(3, momentum=None, eps=0.01), (BATCH, 3, 2, 2, 2)),
}
SUITE = Suite(
    name="small",
    title="",
    data=Data(input_shape=(3, 6, 6), classes=3),
    model=lambda data: nn.Sequential(
        nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(64, 3), nn.BatchNorm1d(3)
    ),
    optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.1, momentum=0.9),
    batch_size=BATCH,
)


def values(shape, seed):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed))


def run_norm(norm, part, whole, dtype=torch.float32):
    """Two steps of a norm on parts of batches; return outputs, gradients and statistics."""
    found = {}
    if norm.weight is not None:
        with torch.no_grad():
            norm.weight.copy_(values((3,), 7))
    for step in range(2):
        inputs = (values(whole, step) * 3 + SHIFT)[part].to(dtype).requires_grad_()
        outputs = norm(inputs)
        (outputs * values(whole, step + 10)[part]).sum().backward()
        found[f"outputs {step}"], found[f"input gradients {step}"] = outputs.detach(), inputs.grad
    found |= {f"gradient of {name}": parameter.grad for name, parameter in norm.named_parameters()}
    found |= dict(norm.named_buffers())
    norm.eval()
    found["evaluated"] = norm(values(whole, 20)[part].to(dtype)).detach()
    return found


def train(rank, *, sync):
    arm = build_arm(
        SUITE, SUITE.data, PRECISIONS["fp32"], torch.device("cpu"), seed=0, techniques=Techniques(sync_bn=sync)
    )
    size = distributed.part(BATCH)
    for step in range(3):
        inputs, targets = values((BATCH, 3, 6, 6), step), torch.arange(BATCH) * (step + 1) % 3
        training_step(arm, inputs[rank * size :][:size], targets[rank * size :][:size])
    return arm.model.state_dict()


def run_parts(rank):
    part = slice(rank * BATCH // 2, (rank + 1) * BATCH // 2)
    found = {name: run_norm(synchronised_norms(make()), part, shape) for name, (make, shape) in NORMS.items()}
    found["kind"] = type(synchronised_norms(nn.BatchNorm2d(3)))
    found["bfloat16"] = run_norm(synchronised_norms(nn.BatchNorm1d(3)), part, (BATCH, 3), torch.bfloat16)
    single = synchronised_norms(nn.BatchNorm1d(3))
    found["one value each"] = single(values((2, 3), 1)[rank : rank + 1]).detach()  # alone it would be refused
    found["trained"], found["trained apart"] = (train(rank, sync=sync) for sync in (True, False))
    return found


@pytest.fixture(scope="module")
def parts(tmp_path_factory):
    return together(tmp_path_factory.mktemp("parts"), run_parts)


@pytest.mark.parametrize("name", NORMS)
def test_outputs_gradients_and_statistics_are_those_of_the_whole_batch(parts, name):
    make, shape = NORMS[name]
    alone = run_norm(make(), slice(None), shape)
    assert all(part["kind"] is SyncedBatchNorm for part in parts)
    for key, whole in alone.items():
        first, second = (part[name][key] for part in parts)
        if (name, key) == ("plain", "evaluated"):
            continue  # without running statistics, evaluation has its own batch's
        if key.startswith("gradient of"):  # each has its own part's, which DistributedDataParallel averages
            found = first + second
        elif key.startswith(("outputs", "input", "evaluated")):
            found = torch.cat([first, second])
        else:
            assert torch.equal(first, second), key
            found = first
        torch.testing.assert_close(found, whole, rtol=2e-4, atol=2e-5, msg=lambda text, key=key: f"{key}: {text}")


def test_16_bits_are_normalised_in_fp32_and_come_out_as_they_went_in(parts):
    alone = run_norm(nn.BatchNorm1d(3), slice(None), (BATCH, 3), torch.bfloat16)
    outputs = torch.cat([part["bfloat16"]["outputs 0"] for part in parts])
    assert outputs.dtype == alone["outputs 0"].dtype == torch.bfloat16
    torch.testing.assert_close(outputs, alone["outputs 0"])
    torch.testing.assert_close(parts[0]["bfloat16"]["running_var"], alone["running_var"], rtol=2e-4, atol=0)


def test_parts_of_one_sample_each_are_normalised_together(parts):
    whole = nn.BatchNorm1d(3)(values((2, 3), 1)).detach()
    torch.testing.assert_close(torch.cat([part["one value each"] for part in parts]), whole, rtol=1e-4, atol=1e-5)


def test_two_processes_train_a_model_with_batch_norm_as_one_does(parts):
    alone = train(0, sync=False)
    for name, value in alone.items():
        for part in parts:
            found = part["trained"][name]
            torch.testing.assert_close(found, value, rtol=1e-4, atol=1e-6, msg=lambda text, name=name: name + text)
    own = parts[0]["trained apart"]["1.running_var"]
    assert not torch.allclose(own, alone["1.running_var"], rtol=1e-4)


def test_a_batch_norm_that_may_do_more_is_refused():
    class Activated(nn.BatchNorm2d):
        pass

    with pytest.raises(UnsupportedError, match="Activated"):
        synchronised_norms(nn.Sequential(Activated(3)))


def test_a_model_without_batch_norm_is_refused_and_not_measured_under_a_name_that_means_nothing():
    with pytest.raises(UnsupportedError, match="Sequential has none"):
        synchronised_norms(nn.Sequential(nn.LayerNorm(3)))


def test_several_samples_are_asked_for(monkeypatch):
    monkeypatch.setattr(torch.distributed, "get_world_size", lambda: 1)
    with pytest.raises(ValueError, match="more than one value"):
        synchronised_norms(nn.BatchNorm1d(3))(torch.zeros(1, 3))
