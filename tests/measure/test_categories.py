"""What tensors hold at a step's peak, against what can be reckoned by hand."""

from __future__ import annotations

import gc
from dataclasses import asdict

import pytest
import torch
from torch import nn, optim

from bench.measure.memory import TensorBytes, tensor_bytes

CPU = torch.device("cpu")
FLOAT, HALF = 4, 2


class Training:
    """A model in training, as plain as can be."""

    def __init__(self, model, optimizer, batch, *, autocast=False, outputs=8):
        torch.manual_seed(0)
        self.model, self.autocast = model, autocast
        self.optimizer = optimizer([each for each in model.parameters() if each.requires_grad])
        self.batch = (batch, torch.randn(len(batch), outputs))

    def step(self):
        self.optimizer.zero_grad(set_to_none=True)
        inputs, targets = self.batch
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.autocast):
            loss = nn.functional.mse_loss(self.model(inputs).float(), targets)
        loss.backward()
        self.optimizer.step()

    def counted(self) -> TensorBytes:
        self.step()  # the optimizer's state
        found = tensor_bytes(self.step, CPU, modules=[self.model], optimizer=self.optimizer, held=self.batch)
        assert found is not None
        kinds = asdict(found)
        assert kinds.pop("tracked_peak_bytes") == sum(kinds.values())
        assert min(kinds.values()) >= 0
        return found


def sgd(parameters):
    return optim.SGD(parameters, lr=0.01, momentum=0.9)


def weights(model) -> int:
    return FLOAT * sum(parameter.numel() for parameter in model.parameters())


def linear() -> nn.Module:
    """Two layers whose second is so small that the first one's gradient makes the peak."""
    return nn.Sequential(nn.Linear(256, 512, bias=False), nn.ReLU(), nn.Linear(512, 8, bias=False))


@pytest.mark.parametrize(
    ("optimizer", "states", "scalars"),
    [(lambda them: optim.SGD(them, lr=0.01), 0, 0), (sgd, 1, 0), (optim.Adam, 2, 1)],
    ids=["sgd", "momentum", "adam"],
)
def test_parameters_gradients_and_optimizer_state_are_exact(optimizer, states, scalars):
    model = linear()
    found = Training(model, optimizer, torch.randn(2, 256)).counted()
    assert found.parameter_bytes == weights(model)
    assert found.gradient_bytes == weights(model)
    # Adam counts its steps in a scalar beside each parameter.
    assert found.optimizer_bytes == states * weights(model) + scalars * FLOAT * len(list(model.parameters()))


def test_what_an_optimizer_makes_and_drops_is_temporary():
    model = linear()
    plain = Training(model, sgd, torch.randn(2, 256)).counted()
    adam = Training(model, optim.Adam, torch.randn(2, 256)).counted()
    batch = FLOAT * 2 * (256 + 8)
    assert plain.temporary_bytes < batch + 10_000  # its update works in place
    assert adam.temporary_bytes >= batch + weights(model[0])  # the denominator is a tensor of the gradient's size


def test_buffers_count_as_parameters_and_shared_weights_once():
    first, last = nn.Linear(256, 256, bias=False), nn.Linear(256, 256, bias=False)
    last.weight = first.weight
    norm = nn.BatchNorm1d(256)
    model = nn.Sequential(first, norm, last)
    found = Training(model, sgd, torch.randn(4, 256), outputs=256).counted()
    buffers = FLOAT * 2 * 256 + 8  # running mean and variance, and a count in int64
    assert found.parameter_bytes == FLOAT * (256 * 256 + 2 * 256) + buffers
    assert found.gradient_bytes == FLOAT * (256 * 256 + 2 * 256)


def wide(**more) -> Training:
    """A model of which nothing counts but what its layers put out: 2048 × 64 numbers each."""
    layers = [nn.Sequential(nn.Linear(64, 64), nn.Sigmoid()) for _ in range(12)]
    return Training(nn.Sequential(*layers), sgd, torch.randn(2048, 64), outputs=64, **more)


def test_activations_are_what_forward_keeps_for_backward():
    # A sigmoid keeps what it returns, which is also all that the next linear layer keeps.
    kept = 12 * 2048 * 64 * FLOAT
    found = wide().counted()
    assert kept <= found.activation_bytes <= kept + 2048 * 64 * FLOAT + 64


def test_activations_are_smaller_under_autocast():
    full, mixed = wide().counted(), wide(autocast=True).counted()
    assert mixed.activation_bytes < 0.75 * full.activation_bytes
    assert mixed.tracked_peak_bytes < full.tracked_peak_bytes
    assert (mixed.parameter_bytes, mixed.optimizer_bytes) == (full.parameter_bytes, full.optimizer_bytes)


def test_autocasts_copies_of_weights_are_activations():
    # The large layer is frozen, so that no gradient of it makes the peak later, when its copy is gone.
    small, large = nn.Linear(8, 512), nn.Linear(512, 512).requires_grad_(False)
    model = nn.Sequential(small, large, nn.Linear(512, 8))
    full, mixed = (Training(model, sgd, torch.randn(2, 8), autocast=on).counted() for on in (False, True))
    assert full.activation_bytes < 20_000
    assert mixed.activation_bytes >= HALF * 512 * 512


def test_what_forward_makes_and_drops_is_temporary():
    class Peaked(nn.Linear):
        def forward(self, inputs):
            with torch.no_grad():
                large = torch.zeros(1_000_000)
                shift = large.sum()
                del large
            return super().forward(inputs) + shift

    found = Training(Peaked(16, 8), sgd, torch.randn(2, 16)).counted()
    assert found.temporary_bytes >= FLOAT * 1_000_000
    assert found.activation_bytes < 1000


def test_tensors_that_are_held_all_the_time_are_temporaries():
    few = Training(linear(), sgd, torch.randn(2, 256)).counted()
    many = Training(linear(), sgd, torch.randn(1002, 256).narrow(0, 0, 2)).counted()
    assert many.temporary_bytes - few.temporary_bytes == FLOAT * 1000 * 256  # a view holds all of its storage


def test_the_peak_is_that_of_torchs_own_tracker():
    tracker = pytest.importorskip("torch.distributed._tools.mem_tracker").MemTracker()
    net = nn.Sequential(nn.Conv2d(3, 16, 3), nn.BatchNorm2d(16), nn.ReLU(inplace=True), nn.Flatten(), nn.LazyLinear(8))
    images = torch.randn(8, 3, 16, 16)
    net(images)
    training = Training(net, optim.Adam, images)
    found = training.counted()
    tracker.track_external(net, training.optimizer, *training.batch)
    with tracker:
        training.step()
    theirs = {str(kind): held for kind, held in tracker.get_tracker_snapshot("peak")[CPU].items()}
    assert found.tracked_peak_bytes == theirs["Total"]


def test_counting_leaves_nothing_behind():
    training = wide()
    first = training.counted()
    gc.collect()
    assert training.counted() == first


def test_a_step_that_cannot_be_watched_costs_only_the_kinds(capsys):
    model = linear()
    optimizer = sgd(model.parameters())

    def step():
        raise torch.OutOfMemoryError("CUDA out of memory")

    assert tensor_bytes(step, CPU, modules=[model], optimizer=optimizer) is None
    assert "OutOfMemoryError: CUDA out of memory" in capsys.readouterr().out


def test_tensors_of_other_devices_are_not_counted():
    model = linear()
    optimizer = sgd(model.parameters())
    elsewhere = torch.empty(1000, device="meta")

    def step():
        torch.empty(1000, device="meta")
        torch.empty(10)

    found = tensor_bytes(step, CPU, modules=[model], optimizer=optimizer, held=[elsewhere])
    assert found.temporary_bytes == FLOAT * 10
