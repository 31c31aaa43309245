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
