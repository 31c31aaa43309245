"""The answers of a healthy machine to the doctor's probes."""

import math

from bench.doctor import checks
from bench.results.records import Device, MemoryPeak
from bench.stats import Interval

MIB, GIB = 2**20, 2**30
(AGAINST_ITSELF,) = (group for group in checks.GROUPS if group.startswith("a step against itself"))
GPU = Device(
    placement="0",
    kind="cuda",
    name="NVIDIA X",
    architecture="Turing",
    uuid="GPU-1",
    native_bf16=False,
    energy="counter",
    unsupported={"tf32": "needs sm_80", "amp-bf16": "needs sm_80"},
)


def log(ratio, half=0.001):
    return Interval(center=math.log(ratio), low=math.log(ratio) - half, high=math.log(ratio) + half, n=20)


def healthy(device):
    """Return answers by the probe's name; those in a dict by the first argument after the device."""
    kind = "peak_allocated_bytes" if device.kind == "cuda" else "peak_resident_bytes"
    return {
        "identify": ("CUDA 0 is NVML GPU-1", True),
        "matmul_error": {"fp32": 2e-7, "tf32": 3e-4},
        "compute_dtypes": {"fp32": "float32:100%", "amp-bf16": "bfloat16:100%", "amp-fp16": "float16:100%"},
        "empty_block": 500.0,
        "known_ratio": (1.5, log(1.5)),
        "against_itself": {number: (1e-4 * number, -0.01 + 1e-4 * number) for number in range(checks.PROCESSES)},
        "peak": {
            held: MemoryPeak(**{kind: held + 4 * MIB, "driver_used_bytes": held + 500 * MIB})
            for held in (0, checks.HELD_BYTES)
        },
        "energy_windows": (10.0, 10.1, ""),
    }


class ScriptedLauncher:
    """Answers each call by its function's name, or its first argument after the device."""

    def __init__(self, device, **other):
        self.answers, self.called = {**healthy(device), **other}, []

    def call(self, target, *arguments):
        name = target.partition(":")[2]
        self.called.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer[arguments[1]] if isinstance(answer, dict) else answer


def measured(group, device, **other):
    """Return a group's checks by name, given what its probes answer: by their name, and by their first argument."""
    launcher = ScriptedLauncher(device, **other)

    def probe(function, *arguments):
        return launcher.call(f"probes:{function}", device, *arguments)

    return {check.name: check for check in checks.GROUPS[group](probe, device)}
