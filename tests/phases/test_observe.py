"""What holds memory at the peak of a step, what is copied, what is cast and what is not finite: on
small models.
"""

import pytest
import torch
from torch import nn
from torch.utils._python_dispatch import TorchDispatchMode

from bench.phases.explain.observe import PeakHolders, watch_finite

BATCH = 32


class Expanded(nn.Module):
    """A small table that is expanded over the batch: a view in fp32, a copy under autocast."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 64, 64))
        self.head = nn.Linear(64, 8)

    def forward(self, inputs):
        return self.head(torch.matmul(inputs, self.table.expand(len(inputs), -1, -1)))


def train(model, inputs, dtype, times=1):
    for _ in range(times):
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=dtype == "bf16"):
            loss = model(inputs).float().square().mean()
        loss.backward()


def observed(model, inputs, dtype, times=1):
    """Return the figures of a step by their kind."""
    train(model, inputs, dtype)
    model.zero_grad()
    there = {"parameters": model.parameters(), "batches": [inputs]}
    with PeakHolders(torch.device("cpu"), there) as holders:
        train(model, inputs, dtype, times)
    kinds = {}
    for row in holders.rows():
        kinds.setdefault(row["kind"], []).append(row)
    return kinds


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_held_adds_up_to_the_peak(dtype):
    kinds = observed(Expanded(), torch.randn(BATCH, 16, 64), dtype)
    (peak,) = kinds["peak"]
    assert sum(row["value"] for row in kinds["held"]) == peak["value"]
    amounts = {row["name"]: row["value"] for row in kinds["held"]}
    assert amounts["parameters"] == 4 * (64 * 64 + 64 * 8 + 8)
    assert amounts["batches"] == 4 * BATCH * 16 * 64


def test_an_expanded_table_is_copied_whole_under_autocast_alone():
    inputs = torch.randn(BATCH, 16, 64)
    assert "expanded" not in observed(Expanded(), inputs, "fp32")
    (copy,) = observed(Expanded(), inputs, "bf16")["expanded"]
    assert (copy["name"], copy["module"]) == ("_to_copy", "Expanded")
    assert copy["value"] == 2 * BATCH * 64 * 64


def test_operators_of_the_backward_pass_belong_to_their_module():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    inputs = torch.randn(BATCH, 64)
    held = observed(model, inputs, "fp32")["held"]
    gradients = {row["module"] for row in held if row["name"] == "mm"}
    assert gradients <= {"0", "2"}
    assert gradients


def test_weights_that_each_micro_batch_casts_are_counted():
    model = nn.Sequential(nn.Linear(64, 64), nn.Linear(64, 1))
    inputs = torch.randn(BATCH, 64)
    assert "repeated" not in observed(model, inputs, "bf16")
    repeated = observed(model, inputs, "bf16", times=4)["repeated"]
    assert {row["module"] for row in repeated if row["value"] == 4} == {"0", "1"}


class Spectrum(nn.Module):
    """A part that computes in fp32."""

    def forward(self, inputs):
        return inputs.float().cos()


class Indices(nn.Module):
    """A part that makes whole numbers of its inputs."""

    def forward(self, inputs):
        return inputs * inputs.long()


@pytest.mark.parametrize(
    ("model", "modules"),
    [
        (nn.Sequential(nn.Linear(64, 64), Spectrum(), nn.Linear(64, 64)), {"1"}),
        # What it computes was never narrower.
        (nn.Sequential(Spectrum(), nn.Linear(64, 64)), set()),
        (nn.Sequential(nn.Linear(64, 64), Spectrum()), set()),  # nothing narrow follows
        (nn.Sequential(nn.Linear(64, 64), Indices(), nn.Linear(64, 64)), set()),
    ],
)
def test_what_is_widened_between_narrow_operators_is_noted_with_its_module(model, modules):
    inputs = torch.randn(BATCH, 64)
    assert "widened" not in observed(model, inputs, "fp32")
    widened = observed(model, inputs, "bf16", times=2).get("widened", [])
    assert {row["module"] for row in widened} == modules


@pytest.mark.parametrize(("inside", "is_noted"), [(2, False), (10, True)])
def test_memory_that_an_operator_takes_inside_is_the_allocators_peak_around_it(
    monkeypatch, inside, is_noted
):
    """An allocator in which a convolution takes some times the bytes of its tensors, and frees them
    at its end.
    """

    class Allocator(TorchDispatchMode):
        allocated = peak = 0

        def reset_peak(self):
            self.peak = self.allocated

        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            result = func(*args, **(kwargs or {}))
            if func.overloadpacket.__name__ == "convolution":
                inputs, weight, bias = args[:3]
                size = result.nbytes + inputs.nbytes + weight.nbytes + bias.nbytes
                self.allocated += result.nbytes
                self.peak = self.allocated + inside * size
            return result

    allocator = Allocator()
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: allocator.allocated)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: allocator.peak)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", allocator.reset_peak)
    model = nn.Sequential(nn.Conv3d(3, 4, 3))
    inputs = torch.randn(2, 3, 5, 5, 5)
    holders = PeakHolders(torch.device("cuda"), {})
    with allocator, holders:
        model(inputs)
    noted = [row for row in holders.rows() if row["kind"] == "unfolded"]
    assert bool(noted) == is_noted
    for row in noted:
        assert (row["name"], row["module"]) == ("convolution", "0")


class Roots(nn.Module):
    def forward(self, inputs):
        return (inputs * 0).sqrt()


@pytest.mark.parametrize(
    ("broken", "direction"),
    [
        (nn.Linear(4, 4), "forward"),
        (Roots(), "backward"),
    ],
)
def test_the_first_module_that_makes_no_number_is_named(broken, direction):
    if isinstance(broken, nn.Linear):
        nn.init.constant_(broken.weight, float("inf"))
    model = nn.Sequential(nn.Linear(4, 4), broken, nn.Linear(4, 4))
    with watch_finite() as rows:
        train(model, torch.randn(2, 4), "fp32")
    modules = {row["detail"]: row["module"] for row in rows}
    assert modules[direction] == "1"


def test_a_healthy_step_is_finite():
    with watch_finite() as rows:
        train(Expanded(), torch.randn(BATCH, 16, 64), "fp32")
    assert rows == []
