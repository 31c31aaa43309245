"""The self-tests' measurements: on a simulated clock, on this CPU, and on a fake NVIDIA driver."""

import pytest
import torch

from bench.doctor import checks, probes
from bench.doctor.probes import KnownArm, timed
from tests.doctor.scripted import MIB, measured
from tests.measure.simulated import MS, SimulatedMachine, SimulatedRunner, gaussian

CPU = torch.device("cpu")


def advancing(machine, time_ns):
    def wait():
        machine.now_ns += round(time_ns)

    return wait


@pytest.mark.parametrize(("distortion", "passed"), [(1.0, True), (1.02, False)])
def test_a_known_ratio_is_measured_and_an_inflated_arm_is_not_taken_for_it(distortion, passed):
    machine = SimulatedMachine(look_ns=100)
    longer = KnownArm(CPU, advancing(machine, MS * distortion), 3)
    speedup = timed([longer, KnownArm(CPU, advancing(machine, MS), 2)], clock=machine.clock)
    assert measured(checks.known_ratio, known_ratio=speedup).passed is passed


@pytest.mark.parametrize(("slower", "passed"), [(1.0, True), (1.03, False)])
def test_an_arm_that_is_slower_than_itself_fails(monkeypatch, slower, passed):
    centers = []
    for process in range(3):
        machine = SimulatedMachine()
        arms = [
            SimulatedRunner(name, machine, 3 * MS * factor, noise=gaussian(process, 0.005))
            for name, factor in (("A", 1.0), ("A again", slower))
        ]
        centers.append(timed(arms, seed=process, clock=machine.clock).center)
    monkeypatch.setattr(checks, "PROCESSES", len(centers))
    assert measured(checks.against_itself, against_itself=dict(enumerate(centers))).passed is passed


def test_fp32_is_ieee_here_and_the_probe_sees_less(monkeypatch, cpu):
    def passes():
        return measured(checks.arithmetic, matmul_error=probes.matmul_error(cpu)).passed

    assert passes() is True
    exact = torch.Tensor.__matmul__

    def rough(a, b):
        return exact(a.bfloat16().to(a.dtype) if a.dtype == torch.float32 else a, b)

    monkeypatch.setattr(torch.Tensor, "__matmul__", rough)
    assert passes() is False


def test_what_a_step_holds_is_in_its_peak(cpu):
    held = 64 * MIB
    small, large = (probes.peak(cpu, size) for size in (0, held))
    if small is None:
        pytest.skip("the kernel does not reset a process's peak")
    assert large - small == pytest.approx(held, rel=0.1)
