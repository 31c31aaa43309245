"""What holds memory at the peak of a step, what is copied, what is cast and what is not finite: on
small models.
"""

from collections import Counter, defaultdict

import pytest
import torch
from torch import nn

from bench.phases.explain.observe import PeakHolders, watch_finite

INPUTS = torch.randn(32, 16, 64)


class Expanded(nn.Module):
    """A small table that is expanded over the batch: a view in fp32, a copy under autocast."""

    def __init__(self):
        super().__init__()
        self.table = nn.Parameter(torch.randn(1, 64, 64))

    def forward(self, inputs):
        table = self.table.expand(len(inputs), -1, -1)
        return torch.matmul(inputs, table)


def train(model, dtype, parts=1):
    for _ in range(parts):
        is_narrow = dtype == "bf16"
        with torch.autocast("cpu", torch.bfloat16, is_narrow):
            outputs = model(INPUTS)
        loss = outputs.float().square().mean()
        loss.backward()


def observed(model, dtype, parts=1):
    """Return the figures of a step, or of several parts of one, by their kind."""
    train(model, dtype)
    model.zero_grad()
    there = {
        "parameters": model.parameters(),
        "batches": [INPUTS],
    }
    with PeakHolders(torch.device("cpu"), there) as holders:
        train(model, dtype, parts)
    kinds = defaultdict(list)
    for row in holders.rows():
        kind = row["kind"]
        kinds[kind].append(row)
    return kinds


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_what_is_held_adds_up_to_the_peak(dtype):
    kinds = observed(Expanded(), dtype)
    held_bytes = Counter()
    for row in kinds["held"]:
        name = row["name"]
        held_bytes[name] += row["value"]
    (peak,) = kinds["peak"]
    assert held_bytes.total() == peak["value"]
    assert held_bytes["parameters"] == 4 * 64 * 64
    assert held_bytes["batches"] == INPUTS.nbytes


def test_operators_of_the_backward_pass_belong_to_their_module():
    model = nn.Sequential(nn.Linear(64, 256), nn.ReLU(), nn.Linear(256, 1))
    modules = {}
    for row in observed(model, "fp32")["held"]:
        modules[row["name"]] = row["module"]
    assert modules["mm"] == "2"


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
    ("parts", "kind", "modules"),
    [
        ([Expanded()], "expanded", ["0"]),
        ([linear(), linear(1)], "repeated", ["0", "1"]),
        ([linear(), Spectrum(), linear()], "widened", ["1"]),
        ([Spectrum(), linear()], "widened", []),  # was never narrower
        ([linear(), Spectrum()], "widened", []),  # nothing narrow follows
        ([linear(), Indices(), linear()], "widened", []),
    ],
)
def test_what_autocast_copies_and_casts_is_noted_with_its_module(parts, kind, modules):
    model = nn.Sequential(*parts)
    plain = observed(model, "fp32", parts=4)
    assert plain[kind] == []
    narrow = observed(model, "bf16", parts=4)
    noted = {row["module"] for row in narrow[kind]}
    assert sorted(noted) == modules


def test_a_copy_has_its_bytes_and_a_cast_how_often_it_was_made():
    (copy,) = observed(Expanded(), "bf16")["expanded"]
    assert copy["name"] == "_to_copy"
    assert copy["value"] == 2 * len(INPUTS) * 64 * 64
    once = observed(linear(), "bf16")
    assert once["repeated"] == []
    casts = observed(linear(), "bf16", parts=4)["repeated"]
    assert casts
    for cast in casts:
        assert cast["value"] == 4


@pytest.mark.parametrize(("times", "noted"), [(3, []), (4, ["cos"])])
def test_memory_that_an_operator_takes_inside_is_the_allocators_peak_around_it(
    monkeypatch, times, noted
):
    operands_bytes = 2 * INPUTS.nbytes
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", lambda: None)
    monkeypatch.setattr(torch.cuda, "memory_allocated", lambda: 0)
    monkeypatch.setattr(torch.cuda, "max_memory_allocated", lambda: times * operands_bytes)
    with PeakHolders(torch.device("cuda"), {}) as holders:
        INPUTS.cos()
    names = [row["name"] for row in holders.rows() if row["kind"] == "unfolded"]
    assert names == noted


class Overflows(nn.Module):
    def forward(self, inputs):
        return inputs * float("inf")


class Roots(nn.Module):
    def forward(self, inputs):
        return (inputs * 0).sqrt()


@pytest.mark.parametrize(
    ("part", "directions"),
    [(Overflows(), ["forward"]), (Roots(), ["backward"]), (nn.ReLU(), [])],
)
def test_the_first_module_that_makes_no_number_is_named(part, directions):
    model = nn.Sequential(linear(), part, linear())
    with watch_finite() as rows:
        train(model, "fp32")
    assert [row["detail"] for row in rows] == directions
    for row in rows:
        assert row["module"] == "1"
