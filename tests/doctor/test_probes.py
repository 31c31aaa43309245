"""The self-tests' measurements: on a simulated clock, on this CPU, and on a fake NVIDIA driver."""

import pytest
import torch

from bench.doctor import checks, probes
from bench.doctor.probes import KnownArm, timed
from tests.doctor.scripted import MIB, measured
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, gaussian

CPU = torch.device("cpu")


@pytest.mark.parametrize(("distortion", "passed"), [(1.0, True), (1.02, False)])
def test_a_known_ratio_is_measured_and_an_inflated_arm_is_not_taken_for_it(distortion, passed):
    machine = SimulatedMachine(look_ns=100)

    def arm(steps, step_ms):
        def wait():
            machine.now_ns += round(step_ms * MS)

        return KnownArm(CPU, wait, steps)

    longer = arm(3, distortion)
    shorter = arm(2, 1.0)
    speedup = timed([longer, shorter], clock=machine.clock)
    check = measured(checks.known_ratio, known_ratio=speedup)
    assert check.passed is passed


@pytest.mark.parametrize(("step_ms", "passed"), [(3.0, True), (3.09, False)])
def test_an_arm_that_is_slower_than_itself_fails(monkeypatch, step_ms, passed):
    centers = []
    for process in range(3):
        machine = SimulatedMachine()
        noise = gaussian(process, 0.005)
        arms = [
            SimulatedRunner("A", machine, 3.0 * MS, noise=noise),
            SimulatedRunner("A again", machine, step_ms * MS, noise=noise),
        ]
        interval = timed(arms, seed=process, clock=machine.clock)
        centers.append(interval.center)
    monkeypatch.setattr(checks, "PROCESSES", 3)
    check = measured(checks.against_itself, against_itself=centers)
    assert check.passed is passed


def test_fp32_is_ieee_here_and_the_probe_sees_less(monkeypatch, cpu):
    def check():
        error = probes.matmul_error(cpu)
        return measured(checks.arithmetic, matmul_error=error)

    assert check().passed
    exact = torch.Tensor.__matmul__

    def rough(a, b):
        if a.dtype == torch.float32:
            a = a.bfloat16().float()
        return exact(a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    assert not check().passed


def test_what_a_step_holds_is_in_its_peak(cpu):
    held = 64 * MIB
    small = probes.peak(cpu, 0)
    if small is None:
        pytest.skip("the kernel does not reset a process's peak")
    large = probes.peak(cpu, held)
    assert large - small == pytest.approx(held, rel=0.1)
