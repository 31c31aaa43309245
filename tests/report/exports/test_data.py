"""The summary as JSON: every figure is the summary's own, and what is unknown is null."""

import json

import pandas as pd

from bench.report.exports.data import FIELDS, rows
from tests.report.builders import RunBuilder


def test_every_value_is_that_of_its_column_and_nan_is_null(tmp_path):
    run = RunBuilder(tmp_path / "run").speed().memory("fp32", 100).memory("amp-bf16", 60)
    run.train("fp32", [90.0, 90.2]).train("amp-bf16", [90.1, 90.4])
    summary = run.lost("speed", "amp-fp16", "oom", "tried to allocate 2 GiB").summary()
    objects = json.loads(json.dumps(rows(summary), allow_nan=False))
    assert len(objects) == len(summary) == 3
    for row, (_, line) in zip(objects, summary.iterrows(), strict=True):
        assert list(row) == list(FIELDS)
        for name, field in FIELDS.items():
            if field.type != "numbers":
                value = None if pd.isna(line[field.column]) else line[field.column]
                assert row[name] == value, name
