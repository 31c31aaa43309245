"""What holds memory at the peak of a step, what is copied, what is cast and what is not finite: on
small models.
"""

from collections import Counter, defaultdict

import pytest
import torch
from torch import nn

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
    """Return the figures of a step, or of several parts of one, by their kind."""
    train(model, inputs, dtype)
    model.zero_grad()
    there = {"parameters": model.parameters(), "batches": [inputs]}
    with PeakHolders(torch.device("cpu"), there) as holders:
        train(model, inputs, dtype, times)
    kinds = defaultdict(list)
    for row in holders.rows():
        kinds[row["kind"]].append(row)
    return kinds


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_held_adds_up_to_the_peak(dtype):
    kinds = observed(Expanded(), torch.randn(BATCH, 16, 64), dtype)
    held_bytes = Counter()
    for row in kinds["held"]:
        held_bytes[row["name"]] += row["value"]
    (peak,) = kinds["peak"]
    assert held_bytes.total() == peak["value"]
    assert held_bytes["parameters"] == 4 * (64 * 64 + 64 * 8 + 8)
    assert held_bytes["batches"] == 4 * BATCH * 16 * 64


def test_operators_of_the_backward_pass_belong_to_their_module():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    inputs = torch.randn(BATCH, 64)
    held = observed(model, inputs, "fp32")["held"]
    gradients = {row["module"] for row in held if row["name"] == "mm"}
    assert gradients <= {"0", "2"}
    assert gradients


class Spectrum(nn.Module):
    """A part that computes in fp32."""

    def forward(self, inputs):
        return inputs.float().cos()


class Indices(nn.Module):
    """A part that makes whole numbers of its inputs."""

    def forward(self, inputs):
        return inputs * inputs.long()


def linear(outputs=64):
    return nn.Linear(64, outputs)


@pytest.mark.parametrize(
    ("model", "kind", "modules"),
    [
        (Expanded(), "expanded", {"Expanded"}),
        (nn.Sequential(linear(), linear(1)), "repeated", {"0", "1"}),
        (nn.Sequential(linear(), Spectrum(), linear()), "widened", {"1"}),
        (nn.Sequential(Spectrum(), linear()), "widened", set()),  # was never narrower
        (nn.Sequential(linear(), Spectrum()), "widened", set()),  # nothing narrow follows
        (nn.Sequential(linear(), Indices(), linear()), "widened", set()),
    ],
)
def test_what_autocast_copies_and_casts_is_noted_with_its_module(model, kind, modules):
    inputs = torch.randn(BATCH, 16, 64)
    assert observed(model, inputs, "fp32", times=4)[kind] == []
    noted = observed(model, inputs, "bf16", times=4)[kind]
    assert {row["module"] for row in noted} == modules


def test_a_copy_has_its_bytes_and_a_cast_how_often_it_was_made():
    (copy,) = observed(Expanded(), torch.randn(BATCH, 16, 64), "bf16")["expanded"]
    assert (copy["name"], copy["value"]) == ("_to_copy", 2 * BATCH * 64 * 64)
    inputs = torch.randn(BATCH, 64)
    assert observed(linear(), inputs, "bf16")["repeated"] == []
    casts = observed(linear(), inputs, "bf16", times=4)["repeated"]
    assert {cast["value"] for cast in casts} == {4}


@pytest.mark.parametrize(("inside", "is_noted"), [(2, False), (10, True)])
def test_memory_that_an_operator_takes_inside_is_the_allocators_peak_around_it(
    monkeypatch, inside, is_noted
):
    model, inputs = nn.Sequential(nn.Conv3d(3, 4, 3)), torch.randn(2, 3, 5, 5, 5)
    outputs = model(inputs)
    size = outputs.nbytes + inputs.nbytes + sum(each.nbytes for each in model.parameters())
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: inside * size)
    with PeakHolders(torch.device("cuda"), {}) as holders:
        model(inputs)
    noted = []
    for row in holders.rows():
        if row["kind"] == "unfolded":
            noted.append((row["name"], row["module"]))
    assert noted == [("convolution", "0")] * is_noted


class Roots(nn.Module):
    def forward(self, inputs):
        return (inputs * 0).sqrt()


def overflowing():
    layer = nn.Linear(4, 4)
    nn.init.constant_(layer.weight, float("inf"))
    return layer


@pytest.mark.parametrize(
    ("part", "direction"), [(overflowing(), "forward"), (Roots(), "backward"), (nn.ReLU(), None)]
)
def test_the_first_module_that_makes_no_number_is_named(part, direction):
    model = nn.Sequential(nn.Linear(4, 4), part, nn.Linear(4, 4))
    with watch_finite() as rows:
        train(model, torch.randn(2, 4), "fp32")
    modules = {row["detail"]: row["module"] for row in rows}
    assert modules.get(direction) == ("1" if direction else None)
    assert bool(rows) == bool(direction)
