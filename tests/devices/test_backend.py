"""Only bench/devices knows kinds of devices."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

BENCH = Path(__file__).parents[2] / "bench"
USE = re.compile(r"torch\.cuda|from torch import .*\bcuda\b|torch, .cuda.|[!=]= .cuda\b|\bcuda. [!=]=")
"""What reaches torch.cuda, or compares a kind of device with "cuda"."""
PROSE = "PyTorch's notes"


@pytest.mark.parametrize(
    "code",
    [
        "torch.cuda.synchronize()",
        "from torch import cuda",
        "from torch.cuda import Event",
        "import torch.cuda as c",
        "getattr(torch, 'cuda').synchronize()",
        "device.type != 'cuda'",
    ],
)
def test_each_way_to_reach_cuda_is_found(code):
    assert USE.search(code)


def test_only_bench_devices_uses_torch_cuda_or_asks_what_kind_a_device_is():
    found = [
        f"{path.relative_to(BENCH)}: {line.strip()}"
        for path in BENCH.rglob("*.py")
        if path.parent.name != "devices"
        for line in path.read_text().splitlines()
        if USE.search(line) and PROSE not in line
    ]
    assert found == []
