"""A recipe's name says what was measured."""

import pandas as pd
import pytest

from bench.report.reading.labels import IDENTITY, subjects
from bench.report.reading.load import SUBJECT


@pytest.mark.parametrize(
    ("parameters", "sizes", "name"),
    [
        ("batch_size=128 width=64", [128, 256], "mlp (batch_size=128 width=64)"),
        ("batch_size=128 width=64", [32], "mlp (width=64)"),
        ("depth=2 batch_size=128", [32], "mlp (depth=2)"),
        ("batch_size=128", [32], "mlp"),
        ("", [32], "mlp"),
    ],
)
def test_a_batch_size_of_the_recipe_that_was_not_measured_is_not_in_its_name(parameters, sizes, name):
    row = {**dict.fromkeys([*SUBJECT, *IDENTITY], "x"), "suite": "mlp", "techniques": "", "parameters": parameters}
    (found,) = subjects(pd.DataFrame([{**row, "batch_size": float(size)} for size in sizes]))["workload"]
    assert found == name


def test_a_device_is_named_with_its_run_only_where_another_run_has_the_same_recipe_on_it():
    row = dict.fromkeys([*SUBJECT, *IDENTITY], "x") | {"techniques": "", "parameters": "", "batch_size": 32.0}
    asked = [("a", "mlp", "T4"), ("a", "gpt", "T4"), ("b", "mlp", "T4"), ("b", "vit", "T4"), ("b", "mlp", "L4")]
    rows = [row | {"run": run, "suite": suite, "device": device} for run, suite, device in asked]
    assert list(subjects(pd.DataFrame(rows))["where"]) == ["T4 (run a)", "T4", "T4 (run b)", "T4", "L4"]
