"""Figures as texts."""

import pytest

from bench.report.format import number


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (0.998, "1.0"),
        (1.02, "1.0"),
        (0.994, "0.99"),
        (9.96, "10"),
        (-0.0997, "−0.10"),
        (0.0, "0.0"),
        (99.9, "100"),
    ],
)
def test_a_figure_has_as_many_digits_after_it_is_rounded(value, text):
    assert number(value, 2) == text
