"""What the epochs of a training come to."""

from __future__ import annotations

import pytest

from bench.phases.trained import time_to_accuracy_s
from bench.records import EpochResult


def epochs(*accuracies):
    made = dict.fromkeys(EpochResult.__dataclass_fields__)
    return [
        EpochResult(**{**made, "test_accuracy_pct": accuracy, "elapsed_s": 10.0 * number})
        for number, accuracy in enumerate(accuracies, start=1)
    ]


@pytest.mark.parametrize(
    ("accuracies", "target", "seconds"),
    [
        ((50.0, 90.0, 85.0, 95.0), 90.0, 20.0),
        ((50.0, 90.0), 90.1, None),
        ((50.0, 90.0), None, None),
        ((None, None), 50.0, None),
    ],
)
def test_time_to_accuracy_is_that_of_the_first_epoch_that_reached_the_target(accuracies, target, seconds):
    assert time_to_accuracy_s(epochs(*accuracies), target) == seconds
