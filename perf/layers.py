"""Check that the search for modules that need fp32 finds what was planted, and nothing else.

    python perf/layers.py                    # healthy and planted models
    python perf/layers.py --seeds 5          # fewer of each

A planted model has one to three fragile parts whose strengths are drawn; it counts where the error
without them kept is between the limit and ten times it. The needed modules are a smallest set that
brings the error within the limit, by trying all sets of up to three. The models are small; the time
is that of some thousands of passes of each.
"""

from __future__ import annotations

import argparse
import itertools
import math
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

sys.path.insert(0, str(Path(__file__).parents[1]))
from bench.phases.layers.narrowing import Findings, Narrowing, search

BF16, FP16 = torch.bfloat16, torch.float16
MOST_NEEDED = 3
WIDTH = 48


def narrow(values: Tensor) -> Tensor:
    """Return values in the type of autocast's products, as an operator written by hand does."""
    kind = values.device.type
    if not torch.is_autocast_enabled(kind):
        return values
    return values.to(torch.get_autocast_dtype(kind))


# Fragile parts: each maps (batch, WIDTH) to the same shape; ``strength`` lies in 0..1.


class LongSum(nn.Module):
    """Adds many small values to a large one, one after another."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.steps, self.start = 150, 4.0 * 2.0 ** (5 * strength)

    def forward(self, values: Tensor) -> Tensor:
        values = narrow(values)
        total = torch.full_like(values, self.start)
        for _ in range(self.steps):
            total = total + values / 16
        return (total - self.start) * (16 / self.steps)


class Rotary(nn.Module):
    """Turns pairs of features by angles of positions up to 1e5, in the type of its input."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.farthest = 10.0 ** (1 + 4 * strength)

    def forward(self, values: Tensor) -> Tensor:
        values = narrow(values)
        half = WIDTH // 2
        positions = torch.linspace(1.0, self.farthest, len(values), device=values.device)
        frequencies = 1e-4 ** torch.linspace(0, 1, half, device=values.device)
        angles = positions.to(values.dtype)[:, None] * frequencies.to(values.dtype)
        first, second = values[:, :half], values[:, half:]
        cosine, sine = angles.cos(), angles.sin()
        return torch.cat([first * cosine - second * sine, first * sine + second * cosine], dim=1)


class Offset(nn.Module):
    """Adds an offset that a norm after it removes."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.offset = 4.0 * 2.0 ** (6 * strength)

    def forward(self, values: Tensor) -> Tensor:
        values = narrow(values) + self.offset
        return values - values.mean(dim=-1, keepdim=True)


class Overflow(nn.Module):
    """Multiplies by a number near float16's largest, and divides by it again."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.factor = 2.0 ** (12 + 8 * strength)

    def forward(self, values: Tensor) -> Tensor:
        return narrow(values) * self.factor / self.factor


PLANTS: dict[str, tuple[Callable[[float], nn.Module], Sequence[torch.dtype]]] = {
    "long sum": (LongSum, (BF16, FP16)),
    "rotary positions": (Rotary, (BF16, FP16)),
    "offset": (Offset, (BF16, FP16)),
    "overflow": (Overflow, (FP16,)),
}


class Residual(nn.Module):
    """A block with operations of its own: the sum, and those of a fragile part where it has one."""

    def __init__(self, part: nn.Module | None) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.linear = nn.Linear(WIDTH, WIDTH)
        if part is not None:
            self.part = part

    def forward(self, values: Tensor) -> Tensor:
        change = functional.gelu(self.linear(self.norm(values)))
        return values + (self.part(change) if hasattr(self, "part") else change)


def planted(parts: Sequence[nn.Module], generator: torch.Generator) -> nn.Module:
    """Return a network of residual blocks, some of which hold a fragile part."""
    places = torch.randperm(4, generator=generator).tolist()
    by_place = dict(zip(places, parts, strict=False))
    blocks = [Residual(by_place.get(place)) for place in range(4)]
    return nn.Sequential(nn.Linear(16, WIDTH), *blocks, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))


# Healthy models.


def mlp() -> nn.Module:
    return nn.Sequential(
        nn.Linear(16, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10)
    )


def conv() -> nn.Module:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, padding=1), nn.BatchNorm2d(outputs), nn.ReLU()]

    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(32, 10)]
    return nn.Sequential(*block(1, 16), nn.MaxPool2d(2), *block(16, 32), *pool)


def transformer() -> nn.Module:
    layers = [nn.TransformerEncoderLayer(32, 4, 64, batch_first=True) for _ in range(2)]
    return nn.Sequential(nn.Linear(16, 32), *layers, nn.Flatten(), nn.Linear(32 * 8, 10))


HEALTHY: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "MLP": (mlp, (16,)),
    "conv net": (conv, (1, 12, 12)),
    "transformer": (transformer, (8, 16)),
}


# Special cases, which tests search: the operation is the parent's own, a module is called twice, a
# weight is tied.


class OwnOperation(nn.Module):
    """Multiplies two of its children's outputs, and adds and removes a large offset itself."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.left, self.right = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.offset = 2.0 ** (6 + 2 * strength)

    def forward(self, values: Tensor) -> Tensor:
        product = narrow(self.left(values)) * narrow(self.right(values)) + self.offset
        return product - self.offset


class Twice(nn.Module):
    """Calls one fragile part two times."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.part, self.linear = Offset(0.55 + 0.4 * strength), nn.Linear(WIDTH, WIDTH)

    def forward(self, values: Tensor) -> Tensor:
        return self.part(functional.gelu(self.linear(self.part(values))))


class Tied(nn.Module):
    """Multiplies by a weight and by the same weight again, and holds a fragile part in between."""

    def __init__(self, strength: float) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH)
        self.part = LongSum(0.5 + 0.4 * strength)
        self.last.weight = self.first.weight

    def forward(self, values: Tensor) -> Tensor:
        return self.last(self.part(functional.gelu(self.first(values))))


SPECIAL = {
    "own operation": (OwnOperation, "1"),
    "called twice": (Twice, "1.part"),
    "tied weights": (Tied, "1.part"),
}


def special(kind: str, strength: float) -> nn.Module:
    part = SPECIAL[kind][0](strength)
    return nn.Sequential(nn.Linear(16, WIDTH), part, nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 10))


# Runs.


def loss(model: nn.Module, batch: Any) -> Tensor:
    inputs, targets = batch
    return functional.cross_entropy(model(inputs).float(), targets)


def narrowing(model: nn.Module, shape: tuple[int, ...], dtype: torch.dtype) -> Narrowing:
    batches = [(torch.randn(32, *shape), torch.randint(10, (32,))) for _ in range(2)]
    return Narrowing(model, loss, batches, dtype)


def needed(model: Narrowing, limit: float) -> list[set[str]]:
    """Return the smallest sets, of at most ``MOST_NEEDED``, that bring the error within a limit."""
    for size in range(1, MOST_NEEDED + 1):
        sets = [set(each) for each in itertools.combinations(model.candidates, size)]
        if fitting := [each for each in sets if model.agreed(model.within(each)) <= limit]:
            return fitting
    return []


def run_healthy(seeds: int) -> None:
    """Search healthy models, and print those in which something was found."""
    clean = total = 0
    for name, dtype, seed in itertools.product(HEALTHY, (BF16, FP16), range(seeds)):
        build, shape = HEALTHY[name]
        torch.manual_seed(seed)
        findings = search(narrowing(build(), shape, dtype))
        total += 1
        if findings.kept:
            print(f"  {name}, {dtype}, seed {seed}: {findings.kept}, error {findings.error:.3f}")
        else:
            clean += 1
    print(f"healthy: nothing found in {clean} of {total}")


def run_planted(kinds: Sequence[str], dtype: torch.dtype, seeds: int) -> Counter[str]:
    """Search models with fragile parts until ``seeds`` of them show; count the outcomes."""
    outcomes = Counter[str]()
    for seed in range(20 * seeds):
        if outcomes["shown"] == seeds:
            break
        generator = torch.Generator().manual_seed(seed)
        torch.manual_seed(seed)
        parts = [PLANTS[kind][0](float(torch.rand((), generator=generator))) for kind in kinds]
        model = narrowing(planted(parts, generator), (16,), dtype)
        findings = search(model)
        band = _band(findings)
        outcomes[band] += 1
        if band != "shown":
            continue
        sets = needed(model, findings.limit)
        if set(findings.kept) in sets:
            outcomes["exact"] += 1
        else:
            print(f"  seed {seed}: {kinds} kept {findings.kept}, needed {sets[:3]}")
    return outcomes


def _band(findings: Findings) -> str:
    if findings.answer == "fine" or findings.error <= findings.limit:
        return "below"
    if findings.error <= 10 * findings.limit or math.isinf(findings.error):
        return "shown"
    return "above"


def sets_of_parts() -> Iterator[tuple[list[str], torch.dtype]]:
    """Yield each part alone, and with the one or two after it, in a type that harms all of them."""
    names = list(PLANTS)
    for count, place in itertools.product((1, 2, 3), range(len(names))):
        kinds = (names + names)[place : place + count]
        # float16 harms all of them.
        in_bf16 = all(BF16 in PLANTS[kind][1] for kind in kinds)
        yield kinds, BF16 if in_bf16 else FP16


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--seeds", type=int, default=20, help="planted models of each kind that show"
    )
    parser.add_argument(
        "--healthy", type=int, default=50, help="seeds of each kind of healthy model"
    )
    options = parser.parse_args()
    torch.set_num_threads(1)
    for kinds, dtype in sets_of_parts():
        outcomes = run_planted(kinds, dtype, options.seeds)
        print(f"{' + '.join(kinds)}, {dtype}: {dict(outcomes)}", flush=True)
    run_healthy(options.healthy)


if __name__ == "__main__":
    main()
