"""Every check passes a right measurement, fails a wrong one, and says why where nothing can be
measured.
"""

import math

import pytest

from bench.doctor import checks
from tests.doctor.scripted import MIB, log, measured

CASES = [
    (checks.arithmetic, "matmul_error", 3e-5, 4e-5),
    (checks.arithmetic, "matmul_error", 1e-6, math.nan),
    (checks.known_ratio, "known_ratio", log(1.51), log(1.52, 0.1)),
    (checks.known_ratio, "known_ratio", log(1.49, 0.1), log(1 / 1.5)),  # nor inverted
    (checks.memory, "peak", (10, 270), (10, 280)),
    (checks.memory, "peak", (10, 266), (10, 10)),
    (checks.against_itself, "against_itself", (-0.02, 0.05), (0.019, 0.021)),
    # Small, though 1 is outside.
    (
        checks.against_itself,
        "against_itself",
        (0.004, 0.006),
        (-0.024, -0.016),
    ),
]


def by_argument(name, answer):
    """Return a probe's answers by its first argument: peaks by what is held, log-ratios by the
    process.
    """
    if name == "peak":
        return {held: mib * MIB for held, mib in zip((0, checks.HELD_BYTES), answer, strict=True)}
    if name == "against_itself":
        return {number: answer[number % len(answer)] for number in range(checks.PROCESSES)}
    return answer


@pytest.mark.parametrize(("check", "name", "right", "wrong"), CASES)
def test_a_right_measurement_passes_and_a_wrong_one_fails(check, name, right, wrong):
    passed, failed = (
        measured(check, **{name: by_argument(name, answer)}) for answer in (right, wrong)
    )
    assert (passed.result, failed.result) == ("pass", "FAIL")
    assert passed.measured != failed.measured


def test_a_measurement_that_is_not_possible_is_no_failure_and_says_why():
    check = measured(checks.memory, peak=None)
    assert check.result == "not possible"
    assert "does not let a process's peak be read" in check.measured
