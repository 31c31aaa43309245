"""Every check passes a right measurement, fails a wrong one, and says why where nothing can be measured."""

import math
from dataclasses import replace

import pytest

from bench.doctor import checks
from bench.results.records import Device, MemoryPeak
from bench.stats import Interval
from tests.doctor.scripted import AGAINST_ITSELF, GPU, MIB, measured

CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="x86-64", unsupported={"tf32": "no TF32"})
CAPABLE = replace(CPU, unsupported={})


def interval(center, half):
    logs = [math.log(value) for value in (center, center - half, center + half)]
    return Interval(center=logs[0], low=logs[1], high=logs[2], n=3)


def ratio(truth, center, half):
    return {"known_ratio": (truth, interval(center, half))}


def peaks(small_mib, large_mib, *, driver=False):
    field = "driver_used_bytes" if driver else "peak_allocated_bytes"
    held = {0: small_mib, checks.HELD_BYTES: large_mib}
    peak = {"peak_allocated_bytes": MIB}
    return {"peak": {size: MemoryPeak(**{**peak, field: mib * MIB}) for size, mib in held.items()}}


def processes(*logs):
    """Answer processes with A/A logs, 1 % apart from A/A + 1 %."""
    return {"against_itself": {number: logs[number % len(logs)] for number in range(checks.PROCESSES)}}


def types(plain, mixed):
    return {"compute_dtypes": {"fp32": plain, "amp-bf16": mixed, "amp-fp16": mixed}}


FP32 = ("FP32 and TF32", "FP32 is FP32", CPU)
TF32 = ("FP32 and TF32", "TF32 is seen", CAPABLE)
MIXED = ("mixed precision", "mixed precision reaches the model")
CLOCK = ("clock and a known ratio", "the clock costs nothing")
RATIO = "clock and a known ratio"
ALLOCATED, DRIVER = (("memory", name, GPU) for name in ("allocated memory", "the driver's memory"))
IDENTICAL = ("which GPU this is", "CUDA and NVML mean one GPU", GPU)
CASES = [
    (FP32, {"matmul_error": 3e-5}, {"matmul_error": 4e-5}),
    (FP32, {"matmul_error": 1e-6}, {"matmul_error": math.nan}),
    (TF32, {"matmul_error": 1e-4}, {"matmul_error": 9e-5}),
    (TF32, {"matmul_error": 1e-3}, {"matmul_error": 3e-3}),
    ((*MIXED, CPU), types("float32:100%", "bfloat16:98% float32:2%"), types("float32:100%", "float32:100%")),
    ((*MIXED, GPU), types("float32:100%", "float16:100%"), types("float32:98% float16:2%", "float16:100%")),
    ((*MIXED, GPU), types("float32:100%", "float16:100%"), types("", "")),
    ((*CLOCK, CPU), {"empty_block": 400}, {"empty_block": 6_000}),
    ((*CLOCK, GPU), {"empty_block": 12_000}, {"empty_block": 60_000}),
    ((RATIO, "known ratio 1.50", CPU), ratio(1.5, 1.51, 0.001), ratio(1.5, 1.52, 0.1)),
    ((RATIO, "known ratio 2.00", CPU), ratio(2.0, 1.99, 0.1), ratio(2.0, 0.5, 0.1)),  # nor inverted
    (ALLOCATED, peaks(10, 270), peaks(10, 280)),
    (ALLOCATED, peaks(10, 266), peaks(10, 10)),
    (DRIVER, peaks(10, 290, driver=True), peaks(10, 293, driver=True)),
    (("energy", "energy", GPU), {"energy_windows": (10.0, 10.4, "")}, {"energy_windows": (10.0, 11.0, "")}),
    (
        ("energy", "counter and power agree", GPU),
        {"energy_windows": (10.0, 10.4, "")},
        {"energy_windows": (10.0, 10.4, "they differ")},
    ),
    (IDENTICAL, {"identify": ("one", True)}, {"identify": ("another", False)}),
    ((AGAINST_ITSELF, "A/A", CPU), processes((-0.02, 0), (0.05, 0)), processes((0.019, 0), (0.021, 0))),
    (
        (AGAINST_ITSELF, "A/A", CPU),
        processes((0.004, 0), (0.006, 0)),
        processes((-0.024, 0), (-0.016, 0)),
    ),  # small, though 1 is outside
    ((AGAINST_ITSELF, "A/A + 1 %", CPU), processes((0, -0.012), (0, -0.008)), processes((0, -0.03), (0, 0.02))),
    ((AGAINST_ITSELF, "A/A + 1 %", CPU), processes((0, -0.012), (0, -0.008)), processes((0, 0.012), (0, 0.008))),
]


@pytest.mark.parametrize(("check", "right", "wrong"), CASES)
def test_a_right_measurement_passes_and_a_wrong_one_fails(check, right, wrong):
    group, name, device = check
    passed, failed = (measured(group, device, **answers)[name] for answers in (right, wrong))
    assert (passed.passed, failed.passed) == (True, False)
    assert passed.expected == failed.expected
    assert passed.measured != failed.measured
    assert (passed.result, failed.result) == ("pass", "FAIL")


@pytest.mark.parametrize(
    ("device", "native", "passed"),
    [
        (GPU, False, True),  # it refuses amp-bf16
        (GPU, True, False),
        (replace(GPU, unsupported={}), True, True),
        (replace(GPU, unsupported={}), False, False),
        (GPU, None, None),
        (CAPABLE, True, True),
        (CAPABLE, False, None),
    ],
)
def test_bfloat16_is_native_where_a_gpu_is_measured_in_it(device, native, passed):
    assert measured("mixed precision", replace(device, native_bf16=native))["bfloat16 is native"].passed is passed


def test_an_interval_of_one_process_shows_no_one_per_cent(monkeypatch):
    monkeypatch.setattr(checks, "PROCESSES", 1)
    rows = measured(AGAINST_ITSELF, CPU, against_itself={0: (0.0, -0.01)})
    assert rows["A/A"].passed is rows["A/A + 1 %"].passed is False


@pytest.mark.parametrize(
    ("group", "name", "device", "other", "why"),
    [
        ("FP32 and TF32", "TF32 is seen", CPU, {}, "no TF32"),
        ("memory", "resident memory", CPU, {"peak": MemoryPeak()}, "does not let the peak of a process be read"),
        ("memory", "the driver's memory", GPU, {"peak": MemoryPeak()}, "driver does not tell"),
        ("energy", "energy", CPU, {}, "no NVML"),
        ("energy", "energy", GPU, {"energy_windows": None}, "neither energy nor power"),
        ("energy", "energy", replace(GPU, energy=None), {}, "neither energy nor power"),
        ("which GPU this is", "CUDA and NVML mean one GPU", CPU, {}, "no NVML"),
        ("which GPU this is", "CUDA and NVML mean one GPU", GPU, {"identify": None}, "NVML does not start"),
    ],
)
def test_a_measurement_that_is_not_possible_is_no_failure_and_says_why(group, name, device, other, why):
    check = measured(group, device, **other)[name]
    assert (check.passed, check.result) == (None, "not possible")
    assert why in check.measured
