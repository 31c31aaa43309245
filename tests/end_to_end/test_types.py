"""A model that computes in 16 bits by itself: what is called fp32 is none, and the answer begins
with that.
"""

import re
from pathlib import Path

import pytest

from tests.conftest import call
from tests.rows import rows

SUITE = """
import torch
from torch import nn
from torch.nn import functional

from bench.spec import Suite


class Net(nn.Module):
    def __init__(self, kind):
        super().__init__()
        self.kind, self.first, self.inner = kind, nn.Linear(16, 128), nn.Linear(128, 128)
        if kind == "bf16weights":
            self.bfloat16()
        elif kind == "bf16middle":
            self.inner.bfloat16()

    def forward(self, x):
        kind, half = self.kind, torch.bfloat16
        if kind == "bf16weights":
            return self.inner(self.first(x.to(half)).relu())
        x = self.first(x).relu()
        if kind == "half":
            return functional.linear(x.to(half), self.inner.weight.to(half))
        if kind == "own":
            with torch.autocast("cpu", dtype=half):
                return self.inner(x)
        return self.inner(x.to(half) if kind == "bf16middle" else x)


def batches(split, batch_size, seed):
    inputs = torch.ones(batch_size, 16)
    return [(inputs, torch.zeros(batch_size, dtype=torch.long))] * 4


def suite(kind="plain"):
    return Suite(
        name="stray",
        title="",
        model=lambda: Net(kind),
        batches=batches,
        loss=lambda model, batch: functional.cross_entropy(model(batch[0]).float(), batch[1]),
        optimizer=lambda parameters: torch.optim.SGD(parameters, lr=0.01),
        batch_size=32,
    )
"""


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "modules"),
    [
        ("bf16weights", "inner, first"),  # the one with most FLOPs first
        ("bf16middle", "inner"),
        ("half", ""),
        ("own", "inner"),
        ("plain", None),
    ],
)
def test_the_answer_begins_with_what_fp32_really_computed(
    tmp_path: Path, kind: str, modules: str | None
) -> None:
    (tmp_path / "stray.py").write_text(SUITE)
    words = "--suite stray.py --gpus cpu --precisions fp32,amp-bf16 --phases speed --quick"
    words += f" --set kind={kind} --time-budget 0.3 --out run"
    done = call(*words.split(), cwd=tmp_path)
    assert done.returncode == 0, done.stdout + done.stderr
    head = (tmp_path / "reports" / "run" / "report.md").read_text().splitlines()
    row = rows(tmp_path / "run", "speed.csv")[0]
    assert row["precision"] == "fp32"
    if modules is None:
        assert row["compute_dtypes"] == "float32:100%"
        assert "≠" not in "".join(head) + done.stdout
        return
    (share,) = re.findall(r"bfloat16:(\d+)%", row["compute_dtypes"])
    assert int(share) > 80
    where = f" ({modules})" if modules else ""
    text = f"fp32 computed {share} % of its products in bfloat16{where}, so it is no fp32."
    assert head[2].startswith(f"**{text}**")
    assert "ms, but computed" in done.stdout
    assert text in " ".join(done.stdout.split())
