"""Every check passes a right measurement, fails a wrong one, and says why where nothing can be
measured.
"""

import math

import pytest

from bench.doctor import checks
from tests.doctor.scripted import MIB, log, measured


def peaks(mib, held_mib):
    return {0: mib * MIB, checks.HELD_BYTES: held_mib * MIB}


def by_turns(*logs):
    """The log-ratios of an arm to itself, in processes that give some by turns."""
    return [*logs] * checks.PROCESSES


@pytest.mark.parametrize(
    ("check", "name", "right", "wrong"),
    [
        (checks.arithmetic, "matmul_error", 3e-5, 4e-5),
        (checks.arithmetic, "matmul_error", 1e-6, math.nan),
        (checks.known_ratio, "known_ratio", log(1.51), log(1.52, 0.1)),
        (checks.known_ratio, "known_ratio", log(1.49, 0.1), log(1 / 1.5)),  # nor inverted
        (checks.memory, "peak", peaks(10, 270), peaks(10, 280)),
        (checks.memory, "peak", peaks(10, 266), peaks(10, 10)),
        (
            checks.against_itself,
            "against_itself",
            by_turns(-0.02, 0.05),
            by_turns(0.019, 0.021),
        ),
        # Small, though 1 is outside.
        (
            checks.against_itself,
            "against_itself",
            by_turns(0.004, 0.006),
            by_turns(-0.024, -0.016),
        ),
    ],
)
def test_a_right_measurement_passes_and_a_wrong_one_fails(check, name, right, wrong):
    passed = measured(check, **{name: right})
    failed = measured(check, **{name: wrong})
    assert passed.result == "pass"
    assert failed.result == "FAIL"
    assert passed.measured != failed.measured


def test_a_measurement_that_is_not_possible_is_no_failure_and_says_why():
    check = measured(checks.memory, peak=None)
    assert check.result == "not possible"
    assert "does not let a process's peak be read" in check.measured
