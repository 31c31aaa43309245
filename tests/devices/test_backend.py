"""Only bench/devices knows kinds of devices."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest
import torch

from bench.devices.backend import device_at, out_of_memory_behind

BENCH = Path(__file__).parents[2] / "bench"
ALLOWED: dict[str, str] = {}
"""A module outside bench/devices that uses torch.cuda, with the reason."""


def uses(tree: ast.AST) -> list[int]:
    """Return the lines that reach torch.cuda, or compare a kind of device with "cuda"."""
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id="torch"), attr="cuda"):
                lines.append(node.lineno)
            case ast.ImportFrom(module=str(module)) if module == "torch.cuda" or module.startswith("torch.cuda."):
                lines.append(node.lineno)
            case ast.ImportFrom(module="torch", names=names) if any(name.name == "cuda" for name in names):
                lines.append(node.lineno)
            case ast.Import(names=names) if any(f"{name.name}.".startswith("torch.cuda.") for name in names):
                lines.append(node.lineno)
            case ast.Call(func=ast.Name(id="getattr"), args=[ast.Name(id="torch"), ast.Constant(value="cuda"), *_]):
                lines.append(node.lineno)
            case ast.Compare(left=left, comparators=others):
                sides = (left, *others)
                if any(isinstance(side, ast.Constant) and side.value == "cuda" for side in sides):
                    lines.append(node.lineno)
            case _:
                pass
    return lines


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
    assert uses(ast.parse(code)) == [1]


def test_only_bench_devices_uses_torch_cuda_or_asks_what_kind_a_device_is():
    found = {
        str(path.relative_to(BENCH)): lines
        for path in BENCH.rglob("*.py")
        if path.parent.name != "devices" and (lines := uses(ast.parse(path.read_text())))
    }
    assert set(found) == set(ALLOWED), found


def test_out_of_memory_is_found_behind_the_error_that_it_led_to():
    memory, ended = torch.OutOfMemoryError("CUDA out of memory"), RuntimeError("the capture was invalidated")
    ended.__context__ = memory  # as of an error that is raised while another is handled
    assert out_of_memory_behind(ended) is memory
    assert out_of_memory_behind(RuntimeError("another")) is None


def test_a_placement_is_the_gpu_of_its_number_or_the_cpu():
    assert [device_at(index) for index in (None, 0, 1)] == [
        torch.device("cpu"),
        torch.device("cuda", 0),
        torch.device("cuda", 1),
    ]
