"""Rows of a frame as dicts are those of pandas, of the same types."""

import math

import numpy as np
import pandas as pd

from bench.report.tables.format import records
from bench.stats import Interval


def test_values_and_their_types_are_those_of_pandas():
    interval = Interval(center=1.0, low=None, high=None, n=1)
    frame = pd.DataFrame(
        {
            "words": ["a", "b"],
            "category": pd.Series(["x", "y"], dtype="category"),
            "whole": [1, 2],
            "number": [0.5, math.inf],
            "flag": [True, False],
            "objects": pd.Series([interval, np.float64(2.5)], dtype=object),
            "flags": pd.Series([np.bool_(True), None], dtype=object),
        },
        index=[7, 3],
    )
    found = records(frame)
    assert found == frame.to_dict("records")
    assert [list(map(type, row.values())) for row in found] == [
        list(map(type, row.values())) for row in frame.to_dict("records")
    ]


def test_what_is_empty_has_no_rows():
    assert records(pd.DataFrame({"a": [], "b": []})) == []
