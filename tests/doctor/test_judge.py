"""Every judge passes what is right, fails what is wrong, and says why where nothing can be known."""

import math

import pytest

from bench.doctor import judge
from bench.doctor.check import Identity
from bench.stats import Interval

MIB = 2**20


def ratio(center, half):
    logs = [math.log(value) for value in (center, center - half, center + half)]
    return Interval(center=logs[0], low=logs[1], high=logs[2], n=3)


def gpu(**other):
    fields = {"cuda_index": 1, "cuda_name": "NVIDIA X", "cuda_bytes": 79 * 2**30, "uuid": "GPU-1"}
    fields |= {"nvml_name": "NVIDIA X", "nvml_bytes": 80 * 2**30, "back": (1,)}
    return Identity(**(fields | other))


RIGHT_AND_WRONG = {
    "fp32 is ieee": (judge.fp32(2e-7), judge.fp32(3e-4)),
    "fp32 is not nan": (judge.fp32(1e-6), judge.fp32(math.nan)),
    "tf32 shows": (judge.tf32(3e-4, ""), judge.tf32(2e-7, "")),
    "tf32 is no less": (judge.tf32(3e-4, ""), judge.tf32(3e-3, "")),
    "autocast reaches": (
        judge.reaches_model("bfloat16", "float32:100%", "bfloat16:98% float32:2%"),
        judge.reaches_model("bfloat16", "float32:100%", "float32:100%"),
    ),
    "fp32 is alone": (
        judge.reaches_model("float16", "float32:100%", "float16:100%"),
        judge.reaches_model("float16", "float32:98% float16:2%", "float16:100%"),
    ),
    "products were seen": (
        judge.reaches_model("float16", "float32:100%", "float16:100%"),
        judge.reaches_model("float16", "", ""),
    ),
    "the clock is quick": (judge.clock(400, on_gpu=False), judge.clock(6_000, on_gpu=False)),
    "a GPU's clock is quick": (judge.clock(12_000, on_gpu=True), judge.clock(60_000, on_gpu=True)),
    "the ratio is found": (judge.known_ratio(1.5, ratio(1.51, 0.001)), judge.known_ratio(1.5, ratio(1.52, 0.1))),
    "the ratio is not inverted": (judge.known_ratio(2.0, ratio(1.99, 0.1)), judge.known_ratio(2.0, ratio(0.5, 0.1))),
    "A is A": (judge.null(ratio(1.02, 0.03)), judge.null(ratio(1.02, 0.015))),
    "A is nearly A": (judge.null(ratio(1.005, 0.004)), judge.null(ratio(0.98, 0.004))),
    "one per cent is seen": (judge.one_per_cent(ratio(0.99, 0.005)), judge.one_per_cent(ratio(0.99, 0.02))),
    "and its sign": (judge.one_per_cent(ratio(0.99, 0.005)), judge.one_per_cent(ratio(1.01, 0.005))),
    "memory rises": (
        judge.raised("m", 256 * MIB, 10 * MIB, 270 * MIB, tolerance=0.02, why=""),
        judge.raised("m", 256 * MIB, 10 * MIB, 280 * MIB, tolerance=0.02, why=""),
    ),
    "memory rises at all": (
        judge.raised("m", 256 * MIB, 10 * MIB, 266 * MIB, tolerance=0.1, why=""),
        judge.raised("m", 256 * MIB, 10 * MIB, 10 * MIB, tolerance=0.1, why=""),
    ),
    "isolated": (judge.isolated(100 * MIB, 106 * MIB, ""), judge.isolated(100 * MIB, 108 * MIB, "")),
    "isolated from below": (judge.isolated(100 * MIB, 94 * MIB, ""), judge.isolated(100 * MIB, 92 * MIB, "")),
    "unbiased": (judge.estimator(-0.001, 0.94, 200), judge.estimator(-0.003, 0.94, 200)),
    "covered": (judge.estimator(0.0, 0.9, 200), judge.estimator(0.0, 0.89, 200)),
    "energy agrees": (judge.energy((10.0, 10.4), ""), judge.energy((10.0, 11.0), "")),
    "the sampler is free": (judge.sampler(ratio(1.005, 0.01), 40, ""), judge.sampler(ratio(1.02, 0.001), 40, "")),
    "the sampler sampled": (judge.sampler(ratio(1.0, 0.01), 1, ""), judge.sampler(ratio(1.0, 0.01), 0, "")),
    "the same name": (judge.identity(gpu(), ""), judge.identity(gpu(nvml_name="NVIDIA Y"), "")),
    "the same memory": (judge.identity(gpu(), ""), judge.identity(gpu(nvml_bytes=40 * 2**30), "")),
    "known memory": (judge.identity(gpu(), ""), judge.identity(gpu(nvml_bytes=None), "")),
    "back to the index": (judge.identity(gpu(), ""), judge.identity(gpu(back=(0,)), "")),
    "back to one alone": (judge.identity(gpu(), ""), judge.identity(gpu(back=(0, 1)), "")),
}


@pytest.mark.parametrize("name", RIGHT_AND_WRONG)
def test_what_is_right_passes_and_what_is_wrong_fails(name):
    right, wrong = RIGHT_AND_WRONG[name]
    assert right.passed is True
    assert wrong.passed is False
    assert (right.name, right.expected) == (wrong.name, wrong.expected)
    assert right.measured != wrong.measured
    assert (right.result, wrong.result) == ("pass", "FAIL")


@pytest.mark.parametrize(
    "check",
    [
        judge.tf32(None, "no TF32"),
        judge.raised("m", MIB, None, MIB, tolerance=0.1, why="no TF32"),
        judge.isolated(MIB, None, "no TF32"),
        judge.energy(None, "no TF32"),
        judge.sampler(None, 0, "no TF32"),
        judge.identity(None, "no TF32"),
    ],
    ids=lambda check: check.name,
)
def test_what_cannot_be_known_is_no_failure_and_says_why(check):
    assert check.passed is None
    assert check.result == "not possible"
    assert check.measured == "no TF32"


def test_an_interval_of_one_process_shows_no_one_per_cent():
    assert judge.one_per_cent(Interval(center=-0.01, low=None, high=None, n=1)).passed is False
    assert judge.null(Interval(center=0.0, low=None, high=None, n=1)).passed is False
