"""Disturbances of a measurement, on the machines that a fake driver makes."""

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.measure import disturbance
from bench.measure.disturbance import open_watch
from bench.phases.speed import measure as speed
from bench.results.records import Device, TrialResult
from bench.spec.placement import Placement
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu, GiB
from tests.processes import together

POWER, THERMAL, SW_THERMAL, HW_THERMAL, HW_BRAKE = 74, 75, 269, 270, 271
"""Numbers of nvml.h's fields."""
SLOWDOWNS = {"SW_THERM": SW_THERMAL, "HW_THERM": HW_THERMAL, "HW_POWER_BRAKE": HW_BRAKE}
"""Those of NVML_FI_DEV_CLOCKS_EVENT_REASON_*_SLOWDOWN, which nvidia-ml-py's versions number
differently."""
OLDER, NEWER = fake.UTILIZATION
MS = 1_000_000
OWN = os.getpid()
CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="CPU")


def gpu_device(uuid):
    return Device(
        placement="0",
        kind="cuda",
        name="Test GPU",
        architecture="Hopper",
        uuid=uuid,
    )


PAIR = replace(gpu_device(None), placement="0+1", uuids=("GPU-a", "GPU-b"))


def counting_gpu():
    """Return a GPU whose driver counts how long each reason holds its clocks down."""
    numbers = (POWER, THERMAL, SW_THERMAL, HW_THERMAL, HW_BRAKE)
    return FakeGpu("GPU-a", fields=dict.fromkeys(numbers, 0))


class Watched:
    """A watch on the only GPU of a fake machine."""

    def __init__(self, gpu, clock, watch):
        self.gpu = gpu
        self.clock = clock
        self.watch = watch

    def poll(self, after_s=1.0, work=(), reasons=0):
        """Poll after a time in which processes took these shares of it."""
        self.clock.advance(after_s)
        at_us = round(1e6 * (self.clock() + 1))
        for pid, pct in dict(work).items():
            self.gpu.work.append((at_us, pid, pct))
        self.gpu.reasons = reasons
        self.watch.poll()
        self.gpu.reasons = 0


@pytest.fixture
def watched(monkeypatch):
    """Return a function that makes a machine with one GPU and watches it."""
    clock = FakeClock()
    monkeypatch.setattr(time, "sleep", clock.advance)
    opened = ExitStack()

    def make(gpu, uuid="GPU-a"):
        driver = FakeDriver([gpu], clock=clock).install(monkeypatch)
        for name, number in SLOWDOWNS.items():
            field = f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}_SLOWDOWN"
            setattr(driver.pynvml, field, number)
        watch = opened.enter_context(open_watch(gpu_device(uuid), clock))
        return Watched(gpu, clock, watch)

    with opened:
        yield make


@pytest.mark.parametrize(
    ("grown_ms", "cause"),
    [
        ({THERMAL: 120}, "thermal slowdown for 0.12 s"),
        ({THERMAL: 50}, ""),  # for less than a twentieth of the time
        ({HW_THERMAL: 120}, "hardware thermal slowdown for 0.12 s"),
        (
            {THERMAL: 50, SW_THERMAL: 60, HW_BRAKE: 70},
            "thermal slowdown for 0.06 s; hardware power brake for 0.07 s",
        ),
        ({POWER: 900}, ""),  # a power cap is part of real speed
    ],
)
def test_heat_disturbs_by_the_drivers_counters(watched, grown_ms, cause):
    machine = watched(counting_gpu())
    machine.poll(after_s=0.5)
    for number, milliseconds in grown_ms.items():
        machine.gpu.fields[number] += milliseconds * MS
    machine.poll(after_s=0.5)
    assert machine.watch.disturbance() == cause
    assert machine.watch.capped is (POWER in grown_ms)


@pytest.mark.parametrize(
    ("bits", "cause"),
    [
        (0x20, "thermal slowdown for 0.5 s"),
        (0x48, "hardware thermal slowdown for 0.5 s"),
        (0x21F, ""),  # all others: a hardware slowdown may be a change of clocks, too
    ],
)
def test_without_counters_the_reasons_of_the_moment_count(watched, bits, cause):
    machine = watched(FakeGpu("GPU-a"))
    machine.poll()
    machine.poll(0.5, reasons=bits)
    assert machine.watch.disturbance() == cause
    assert machine.watch.capped is bool(bits & 0x4)


@pytest.mark.parametrize(
    ("shares", "processes"),
    [
        ([{123: 90}] * 2 + [{}] * 18, ["pid 123, 9%"]),
        ([{OWN: 50}, {OWN: 0, 123: 40}] * 10, ["pid 123, 40%"]),  # by turns
        ([{123: 4}] * 20, []),  # a desktop
        ([{9: 20, 123: 10}] * 20, ["pid 9, 20%", "pid 123, 10%"]),
    ],
)
def test_a_process_that_computed_for_a_twentieth_of_the_time_disturbs_and_is_named(
    watched, shares, processes
):
    before = (1000, 77, 99)
    machine = watched(FakeGpu("GPU-a", work=[before]))
    for others in shares:
        machine.poll(0.2, work={OWN: 50, **others})
    named = machine.watch.disturbance()
    assert named.count("another process used the GPU") == len(processes)
    for process in processes:
        assert f"({process} of the time)" in named


@pytest.mark.parametrize(
    ("is_known", "work", "errors", "disturbs"),
    [
        (True, {OWN: 90, 1: 0}, {}, False),
        (True, {123: 80}, {}, True),  # this process is known by the memory that it holds
        (False, {70001: 90}, {}, False),  # the ids are another namespace's
        # Samples that the driver has not written.
        (True, {0: 80, 123: 4_000_000}, {}, False),
        # As some Blackwell boards.
        (True, {123: 80}, {OLDER: fake.NOT_SUPPORTED}, True),
        (True, {123: 80}, {OLDER: fake.NO_PERMISSION, NEWER: fake.NO_PERMISSION}, False),
    ],
)
def test_only_a_process_that_is_known_to_compute_disturbs(
    watched, is_known, work, errors, disturbs
):
    own = OWN if is_known else 70001
    # The first only holds memory.
    gpu = FakeGpu("GPU-a", processes={1: GiB, own: GiB}, errors=errors)
    machine = watched(gpu)
    machine.poll(work=work)
    assert bool(machine.watch.disturbance()) is disturbs


def test_what_the_driver_tells_late_is_waited_for(watched, monkeypatch):
    gpu = counting_gpu()
    gpu.processes = {OWN: GiB, 123: GiB}
    machine = watched(gpu)

    def late(seconds):
        gpu.work += [(2000, OWN, 50), (2000, 123, 30)]
        gpu.fields[THERMAL] += 200 * MS
        machine.clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", late)
    machine.poll()
    named = machine.watch.disturbance()
    assert named.startswith("thermal slowdown for 0.2 s; ")
    assert "pid 123" in named


def test_a_lost_gpu_is_a_cause_and_stays_one(watched):
    machine = watched(counting_gpu())
    machine.poll()
    for machine.gpu.lost in (True, False):
        machine.poll()
        named = machine.watch.disturbance()
        assert named.startswith("the GPU was lost to NVML: ")


def test_without_a_driver_or_an_nvml_that_knows_the_gpu_nothing_is_claimed(monkeypatch, watched):
    machine = watched(FakeGpu("GPU-a"), uuid="GPU-other")
    machine.poll(reasons=0x20)
    assert machine.watch.disturbance() == ""
    fake.without_driver(monkeypatch)
    for unknown in ("GPU-a", None):
        with open_watch(gpu_device(unknown)) as watch:
            watch.poll()
            assert watch.disturbance() == ""
            assert watch.foreign_load_pct() is None


KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")


def process(own_s, *children, ended_s=0.0):
    """A process and its children, with the seconds that each has taken, and those that ended."""
    times = SimpleNamespace(
        user=own_s / 2,
        system=own_s / 2,
        children_user=ended_s,
        children_system=0.0,
    )
    return SimpleNamespace(cpu_times=lambda: times, children=lambda: children)


@pytest.mark.parametrize(
    ("ranks", "before", "after", "busy_s"),
    [
        # 6 s of ours, 1 s of others', 1 s stolen; a guest's time is in user's.
        (
            1,
            process(4.0),
            process(10.0),
            {"user": 6, "guest": 2, "system": 1, "steal": 1, "idle": 10, "iowait": 2},
        ),
        # 3 s of each that train together.
        (
            2,
            process(4.0),
            process(7.0),
            {"user": 8, "idle": 12},
        ),
        # 3 s of ours, 4 s of the loader's, which ends.
        (
            1,
            process(3.0, process(2.0)),
            process(6.0, ended_s=6.0),
            {"user": 9, "idle": 11},
        ),
    ],
    ids=["others and stolen", "trained together", "loader that ended"],
)
def test_on_a_cpu_what_is_not_ours_is_foreign_load(monkeypatch, ranks, before, after, busy_s):
    """In each case 2 of 20 s are others'."""
    total_s = dict.fromkeys(KINDS, 10.0)
    times = SimpleNamespace(_asdict=total_s.copy)
    monkeypatch.setattr(disturbance.psutil, "cpu_times", lambda: times)
    monkeypatch.setattr(disturbance.psutil, "Process", lambda: before)
    with open_watch(CPU, gather=lambda pid: (pid,) * ranks) as watch:
        assert watch.foreign_load_pct() is None  # no time has passed
        for kind, seconds in busy_s.items():
            total_s[kind] += seconds
        monkeypatch.setattr(disturbance.psutil, "Process", lambda: after)
        assert watch.foreign_load_pct() == pytest.approx(10)
        watch.poll()
        assert watch.disturbance() == ""


def two_gpus(patched, clock):
    """Make a machine of two GPUs, the second hot."""
    gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=0x20)]
    FakeDriver(gpus, clock=clock).install(patched)
    return gpus


@pytest.mark.parametrize(("rank", "cause"), [(0, ""), (1, "thermal slowdown for 1 s; ")])
def test_each_of_several_watches_its_own_gpu_and_takes_none_of_them_for_a_stranger(
    monkeypatch, rank, cause
):
    clock = FakeClock()
    gpus = two_gpus(monkeypatch, clock)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with open_watch(PAIR, clock, gather=lambda pid: (pid, 4711), rank=rank) as watch:
        clock.advance(1)
        for pid in (OWN, 4711, 77):
            gpus[rank].work.append((1_000_000, pid, 40))
        stranger = "another process used the GPU (pid 77, 40% of the time)"
        assert watch.disturbance() == cause + stranger


def time_two(rank, trial):
    sent = []
    with pytest.MonkeyPatch.context() as patched:
        two_gpus(patched, FakeClock())
        speed.run(trial, PAIR, sent.append)
    return [message for message in sent if isinstance(message, TrialResult)]


@pytest.mark.slow
def test_what_disturbs_one_of_several_is_named_by_all(tmp_path, tiny_trial):
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"))
    trial = replace(tiny_trial, phase="speed", cell=cell)
    for (result,) in together(tmp_path, time_two, trial):
        assert result.row.disturbance.startswith("device cpu: thermal slowdown for ")
