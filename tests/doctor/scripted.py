"""The answers of a healthy machine to the doctor's probes."""

import math

from bench.doctor import checks
from bench.results.records import Device
from bench.stats import Interval

MIB = 2**20
GPU = Device(placement="0", kind="cuda", name="NVIDIA X", architecture="Turing", uuid="GPU-1", unsupported={})


def log(ratio, half=0.001):
    return Interval(center=math.log(ratio), low=math.log(ratio) - half, high=math.log(ratio) + half, n=20)


def healthy():
    """Return answers by the probe's name; those in a dict by the first argument after the device."""
    return {
        "matmul_error": 2e-7,
        "known_ratio": log(1.5),
        "against_itself": {number: 1e-4 * number for number in range(checks.PROCESSES)},
        "peak": {held: held + 4 * MIB for held in (0, checks.HELD_BYTES)},
    }


class ScriptedLauncher:
    """Answers each call by its function's name, or its first argument after the device."""

    def __init__(self, device, **other):
        self.answers, self.called = {**healthy(), **other}, []

    def call(self, target, *arguments):
        name = target.partition(":")[2]
        self.called.append(name)
        answer = self.answers[name]
        if isinstance(answer, Exception):
            raise answer
        return answer[arguments[1]] if isinstance(answer, dict) else answer


def measured(check, device, **other):
    """Return a check, given what its probes answer: by their name, and by their first argument."""
    launcher = ScriptedLauncher(device, **other)

    def probe(function, *arguments):
        return launcher.call(f"probes:{function}", device, *arguments)

    return check(probe, device)
