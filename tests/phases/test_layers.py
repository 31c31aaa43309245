"""The layers phase: which modules need fp32, and what it stores."""

import pytest
import torch
from torch import nn

from bench.phases.layers import measure as layers
from bench.results.records import Numeric
from bench.spec.errors import UnsupportedError
from tests.phases.conftest import of_kind, result_of, run_phase


class Offset(nn.Module):
    """Adds a large offset in the narrow type, and takes it away."""

    def forward(self, inputs):
        narrow = (
            torch.get_autocast_dtype("cpu") if torch.is_autocast_enabled("cpu") else inputs.dtype
        )
        return (inputs.to(narrow) + 500) - 500


def search(trial, device, *names):
    sent = run_phase(trial, device, "layers", *names)
    return of_kind(Numeric, sent), result_of(sent)


def test_a_fragile_module_is_named_with_the_option_that_keeps_it(use_suite, tiny_trial, cpu):
    use_suite(
        lambda data: nn.Sequential(nn.Flatten(), nn.Linear(192, 16), Offset(), nn.Linear(16, 2))
    )
    rows, result = search(tiny_trial, cpu, "amp-bf16")
    assert result.status == "ok"
    assert result.detail.startswith("keep 2 in fp32, as in --precisions amp-bf16:keep=2: ")
    whole = {row.name: row.value for row in rows if not row.layer}
    assert whole["concentrated"] == 1
    assert whole["kept"] <= whole["limit"] < whole["error"] == result.row.gradient_error
    assert [row.layer for row in rows if row.name == "keep"] == ["2"]
    shares = {row.layer: row.value for row in rows if row.name == "share"}
    assert sum(shares.values()) == pytest.approx(1)
    assert max(shares, key=shares.get) == "2"


def test_a_healthy_model_needs_nothing(tiny_trial, cpu):
    rows, result = search(tiny_trial, cpu, "amp-bf16")
    assert "no module needs fp32" in result.detail
    assert {row.name for row in rows if row.value == 1} == {"fine"}


@pytest.mark.parametrize("name", ["bf16", "amp-fp16-noscale"])
def test_what_is_not_autocast_alone_is_not_searched(tiny_trial, cpu, name):
    with pytest.raises(UnsupportedError, match="searches amp-bf16 and amp-fp16"):
        search(tiny_trial, cpu, name)


@pytest.mark.parametrize(
    ("names", "patterns"),
    [
        (["head"], ["head"]),
        (["blocks.0.norm", "blocks.1.norm", "blocks.2.norm"], ["blocks.*.norm"]),
        (["blocks.0.norm", "blocks.2.norm"], ["blocks.0.norm", "blocks.2.norm"]),
        (["blocks.0.norm", "blocks.1.norm", "blocks.2.norm", "head"], ["blocks.*.norm", "head"]),
        ([""], ["*"]),
    ],
)
def test_a_glob_stands_for_modules_only_where_it_matches_no_other(names, patterns):
    known = [
        "",
        "head",
        "blocks",
        *(f"blocks.{n}" for n in range(3)),
        *(f"blocks.{n}.norm" for n in range(3)),
    ]
    assert layers.globs(names, known) == patterns
