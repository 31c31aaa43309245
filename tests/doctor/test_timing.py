"""The timing's self-tests on a simulated clock: they pass with honest arms, and fail with inflated ones."""

import math
import os
import subprocess
import sys

import psutil
import pytest
import torch

from bench.doctor import arms, judge, timing
from bench.doctor.arms import BesideProcess, KnownStep, Lengthened, Wrapped
from bench.doctor.timing import FINE, KNOWN, timed
from bench.spec.trial import Protocol
from bench.stats import process_interval
from tests.measure.simulated import SimulatedMachine, SimulatedRunner, gaussian

MS = 1_000_000


def advancing(machine, time_ns):
    def wait():
        machine.now_ns += round(time_ns)

    return wait


def measured_ratio(distortion):
    machine = SimulatedMachine(look_ns=100)
    sizes = {"longer": 3 * MS * distortion, "shorter": 2 * MS}
    known = [KnownStep(name, torch.device("cpu"), advancing(machine, size)) for name, size in sizes.items()]
    (found,) = timed(known, KNOWN, clock=machine.clock)
    return judge.known_ratio(1.5, found)


def test_a_known_ratio_is_found_and_an_inflated_arm_is_not_taken_for_it():
    assert measured_ratio(1.0).passed is True
    assert measured_ratio(1.02).passed is False


def against_itself(slower, added):
    centers = []
    for process in range(3):
        machine = SimulatedMachine()
        base, again, longer = (
            SimulatedRunner(name, machine, 3 * MS * factor, noise=gaussian(process, 0.005))
            for name, factor in (("A", 1.0), ("A again", slower), ("A + 1 %", 1.0))
        )
        lengthened = Lengthened("A + 1 %", longer, advancing(machine, added * 3 * MS))
        found = timed([base, again, lengthened], FINE, seed=process, clock=machine.clock)
        centers.append([log.center for log in found])
    same, longer = (process_interval(values) for values in zip(*centers, strict=True))
    return judge.null(same), judge.one_per_cent(longer)


def test_one_per_cent_is_told_from_nothing():
    assert [check.passed for check in against_itself(slower=1.0, added=0.01)] == [True, True]


def test_an_arm_that_is_slower_than_itself_and_a_per_cent_that_is_not_there_fail():
    assert [check.passed for check in against_itself(slower=1.03, added=0.0)] == [False, False]


def test_the_real_arms_give_a_ratio_for_each(monkeypatch, cpu):
    monkeypatch.setitem(arms.SIZES, "cpu", (8, 4))
    monkeypatch.setattr(timing, "FINE", Protocol(time_budget_s=0.1))
    same, added = timing.against_itself(cpu, 0, print)
    assert math.isfinite(same)
    assert math.isfinite(added)


def test_an_empty_block_takes_time(monkeypatch, cpu):
    monkeypatch.setitem(arms.SIZES, "cpu", (8, 4))
    assert timing.empty_block(cpu, print) > 0


def test_a_nap_waits_for_what_it_was_asked_by_the_clock_that_times_it(monkeypatch):
    now = {"ns": 0}
    asleep = []

    def look():
        now["ns"] += 1000
        return now["ns"]

    def sleep(seconds):
        asleep.append(seconds)
        now["ns"] += int(seconds * 1e9) + 300_000  # late

    monkeypatch.setattr(arms.time, "perf_counter_ns", look)
    monkeypatch.setattr(arms.time, "sleep", sleep)
    arms.nap(3 * MS)()
    assert 3 * MS <= now["ns"] <= 3 * MS + 3000
    assert 0 < asleep[0] < 0.003


def test_the_other_process_stands_still_in_one_arm_and_runs_in_the_other():
    child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(60)"])
    try:
        inner = SimulatedRunner("fp32", SimulatedMachine(), MS)
        off, on = (BesideProcess(name, inner, child.pid, runs) for name, runs in (("off", False), ("on", True)))
        off.activate()
        os.waitpid(child.pid, os.WUNTRACED)  # until it has stopped
        assert psutil.Process(child.pid).status() == psutil.STATUS_STOPPED
        on.activate()
        os.waitpid(child.pid, os.WCONTINUED)
        assert psutil.Process(child.pid).status() != psutil.STATUS_STOPPED
        on.run(3)
        assert inner.steps == on.taken_steps() == 3
    finally:
        child.kill()
        child.wait()


def test_the_sampler_goes_on_when_the_comparison_has_ended_or_failed(monkeypatch, cpu):
    monkeypatch.setitem(arms.SIZES, "cpu", (8, 4))
    monkeypatch.setattr(timing, "BESIDE", Protocol(time_budget_s=0.05))
    monkeypatch.setattr(timing, "BESIDE_S", 0.001)
    told = []
    monkeypatch.setattr(arms.os, "kill", lambda pid, what: told.append((pid, what)))
    found = timing.beside_sampler(cpu, 4711, print)
    assert found.n >= 2
    assert set(told) == {(4711, arms.signal.SIGSTOP), (4711, arms.signal.SIGCONT)}

    def fail(*_arguments, **_more):
        told.append((4711, arms.signal.SIGSTOP))
        raise RuntimeError

    monkeypatch.setattr(timing, "compare", fail)
    with pytest.raises(RuntimeError):
        timing.beside_sampler(cpu, 4711, print)
    assert told[-1] == (4711, arms.signal.SIGCONT)


def test_a_wrapped_arm_is_the_other_one():
    machine = SimulatedMachine()
    inner = SimulatedRunner("fp32", machine, MS, asynchronous=True, launch_ns=MS)
    wrapped = Wrapped("again", inner)
    wrapped.activate()
    wrapped.run(2)
    wrapped.synchronize()
    assert wrapped.asynchronous
    assert machine.active is inner
    assert machine.now_ns == 3 * MS
    assert wrapped.fingerprint() == inner.fingerprint()
