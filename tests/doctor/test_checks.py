"""Every check passes a right measurement, fails a wrong one, and says why where nothing can be measured."""

import math

import pytest

from bench.doctor import checks
from bench.results.records import Device
from bench.stats import Interval
from tests.doctor.scripted import GPU, MIB, measured

CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="x86-64", unsupported={"tf32": "no TF32"})


def interval(center, half):
    logs = [math.log(value) for value in (center, center - half, center + half)]
    return Interval(center=logs[0], low=logs[1], high=logs[2], n=3)


def ratio(center, half):
    return {"known_ratio": interval(center, half)}


def peaks(small_mib, large_mib):
    return {"peak": {0: small_mib * MIB, checks.HELD_BYTES: large_mib * MIB}}


def processes(*logs):
    """Answer processes with A/A logs."""
    return {"against_itself": {number: logs[number % len(logs)] for number in range(checks.PROCESSES)}}


CASES = [
    (checks.arithmetic, CPU, {"matmul_error": 3e-5}, {"matmul_error": 4e-5}),
    (checks.arithmetic, CPU, {"matmul_error": 1e-6}, {"matmul_error": math.nan}),
    (checks.known_ratio, CPU, ratio(1.51, 0.001), ratio(1.52, 0.1)),
    (checks.known_ratio, CPU, ratio(1.49, 0.1), ratio(1 / 1.5, 0.1)),  # nor inverted
    (checks.memory, GPU, peaks(10, 270), peaks(10, 280)),
    (checks.memory, CPU, peaks(10, 266), peaks(10, 10)),
    (checks.against_itself, CPU, processes(-0.02, 0.05), processes(0.019, 0.021)),
    (checks.against_itself, CPU, processes(0.004, 0.006), processes(-0.024, -0.016)),  # small, though 1 is outside
]


@pytest.mark.parametrize(("check", "device", "right", "wrong"), CASES)
def test_a_right_measurement_passes_and_a_wrong_one_fails(check, device, right, wrong):
    passed, failed = (measured(check, device, **answers) for answers in (right, wrong))
    assert (passed.passed, failed.passed) == (True, False)
    assert passed.expected == failed.expected
    assert passed.measured != failed.measured
    assert (passed.result, failed.result) == ("pass", "FAIL")


def test_a_measurement_that_is_not_possible_is_no_failure_and_says_why():
    row = measured(checks.memory, CPU, peak=None)
    assert (row.passed, row.result) == (None, "not possible")
    assert "does not let a process's peak be read" in row.measured
