"""A recipe's name says what was measured."""

import pandas as pd

from bench.report.reading.labels import IDENTITY, slugs, subjects
from bench.report.reading.load import SUBJECT


def test_a_device_is_named_with_its_run_only_where_another_run_has_the_same_recipe_on_it():
    row = dict.fromkeys([*SUBJECT, *IDENTITY], "x") | {
        "techniques": "",
        "parameters": "",
        "batch_size": 32.0,
    }
    asked = [
        ("a", "mlp", "T4"),
        ("a", "gpt", "T4"),
        ("b", "mlp", "T4"),
        ("b", "vit", "T4"),
        ("b", "mlp", "L4"),
    ]
    rows = [row | {"run": run, "suite": suite, "device": device} for run, suite, device in asked]
    assert list(subjects(pd.DataFrame(rows))["where"]) == [
        "T4 (run a)",
        "T4",
        "T4 (run b)",
        "T4",
        "L4",
    ]


def test_no_two_slugs_are_alike():
    assert slugs(["mlp on A", "mlp on A 2", "MLP on A"]) == ["mlp-on-a", "mlp-on-a-2", "mlp-on-a-1"]
    assert len(set(slugs(["a", "a-1", "A", "a 1"]))) == 4
