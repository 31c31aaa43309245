"""Why memory rises or falls, of made-up figures."""

from __future__ import annotations

import pandas as pd
import pytest

from bench.report.analysis.explanation import MEMORY_KINDS, memory_pair
from bench.report.reading.load import CELL
from bench.report.tables.explanation import memory_sentences

MIB = 2**20
FULL = {"parameters": 100, "gradients": 100, "optimizer": 200, "activations": 600, "temporaries": 10}


def trial(precision, kinds, *, status="ok", **more):
    row = dict.fromkeys(CELL, "x") | {"phase": "memory", "status": status, "precision": precision}
    row |= {name: float("nan") for name in ("peak_allocated_bytes", "peak_reserved_bytes", "weight_copy_bytes")}
    row["most_weight_copy_bytes"] = float("nan")
    row |= {MEMORY_KINDS[kind]: value * MIB for kind, value in kinds.items()}
    row |= {"tracked_peak_bytes": sum(kinds.values()) * MIB, "fp32_activation_bytes": float("nan")}
    return row | {name: value * MIB for name, value in more.items()}


def changed(*rows):
    return memory_pair(pd.DataFrame(rows), dict.fromkeys(CELL, "x"), "amp-bf16")


def test_the_kinds_that_made_the_peak_fall_are_named_largest_first():
    found = changed(trial("fp32", FULL), trial("amp-bf16", FULL | {"activations": 350, "temporaries": 60}))
    (text,) = memory_sentences(found)
    assert text.index("activations −250") < text.index("temporaries +50")
    assert "parameters" not in text
    assert "−20 %" in text


def test_a_peak_that_hardly_moves_has_no_cause():
    (text,) = memory_sentences(changed(trial("fp32", FULL), trial("amp-bf16", FULL | {"temporaries": 12})))
    assert "1,010" in text or "1,012" in text
    assert "+" not in text


def test_copies_of_weights_are_told_of_the_precision_that_makes_them():
    mixed = trial(
        "amp-bf16",
        FULL | {"activations": 650},
        weight_copy_bytes=50,
        most_weight_copy_bytes=70,
        fp32_activation_bytes=130,
    )
    found = changed(trial("fp32", FULL, weight_copy_bytes=0, fp32_activation_bytes=600), mixed)
    rises, copies, kept = memory_sentences(found)
    assert "activations +50" in rises
    assert copies.index("70.0 MiB") < copies.index("50.0 MiB")
    assert "130 MiB" in kept
    assert "20 %" in kept


@pytest.mark.parametrize(("reserved", "told"), [(1020, False), (1500, True)])
def test_the_allocators_slack_is_told_apart_where_it_is_large(reserved, told):
    gpu = {"peak_allocated_bytes": 1010}
    mixed = trial("amp-bf16", FULL, **gpu, peak_reserved_bytes=reserved)
    sentences = list(memory_sentences(changed(trial("fp32", FULL, **gpu, peak_reserved_bytes=1015), mixed)))
    assert any("allocator" in text for text in sentences) == told
    assert "490 MiB" in sentences[-1] or not told


def test_without_the_kinds_of_both_nothing_is_said():
    assert changed(trial("fp32", FULL)) is None
    assert changed(trial("fp32", FULL), trial("amp-bf16", FULL, status="oom")) is None
