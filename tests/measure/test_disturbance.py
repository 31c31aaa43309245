"""Disturbances of a measurement, on the machines that a fake driver makes."""

from __future__ import annotations

import os
import time
from contextlib import ExitStack
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.measure import disturbance
from bench.measure.disturbance import Watch, open_watch
from bench.phases.speed import measure as speed
from bench.results.records import Device, TrialResult
from bench.spec.placement import Placement
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu, GiB
from tests.processes import together

POWER, THERMAL, SW_THERMAL, HW_THERMAL, HW_BRAKE = 74, 75, 269, 270, 271
"""Numbers of nvml.h's fields."""
NEWER = {"SW_THERM": SW_THERMAL, "HW_THERM": HW_THERMAL, "HW_POWER_BRAKE": HW_BRAKE}
"""Those of NVML_FI_DEV_CLOCKS_EVENT_REASON_*_SLOWDOWN, which nvidia-ml-py's versions number
differently."""
ALL = {POWER: 0, THERMAL: 0, SW_THERMAL: 0, HW_THERMAL: 0, HW_BRAKE: 0}
MS = 1_000_000
OWN = os.getpid()
CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="CPU")
PAIR = Device(
    placement="0+1", kind="cuda", name="2 × GPU", architecture="Hopper", uuids=("GPU-a", "GPU-b")
)


def gpu_device(uuid: str | None = "GPU-a") -> Device:
    return Device(placement="0", kind="cuda", name="Test GPU", architecture="Hopper", uuid=uuid)


class Watched:
    """A watch on the only GPU of a fake machine."""

    def __init__(self, gpu: FakeGpu, clock: FakeClock, watch: Watch) -> None:
        self.gpu, self.clock, self.watch = gpu, clock, watch

    def poll(
        self, after_s: float = 1.0, work: dict[int, int] | None = None, reasons: int = 0
    ) -> None:
        """Poll after a time in which processes took these shares of it."""
        self.clock.advance(after_s)
        at_us = round(1e6 * (self.clock() + 1))
        for pid, pct in (work or {}).items():
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

    def make(gpu: FakeGpu, uuid: str = "GPU-a") -> Watched:
        driver = FakeDriver([gpu], clock=clock).install(monkeypatch)
        for name, number in NEWER.items():
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
        ({THERMAL: 50, SW_THERMAL: 60, HW_BRAKE: 70},
         "thermal slowdown for 0.06 s; hardware power brake for 0.07 s"),
        ({POWER: 900}, ""),  # a power cap is part of real speed
    ],
)  # fmt: skip
def test_heat_disturbs_by_the_drivers_counters(watched, grown_ms, cause):
    machine = watched(FakeGpu("GPU-a", fields=dict(ALL)))
    machine.poll(after_s=0.5)
    for number, milliseconds in grown_ms.items():
        machine.gpu.fields[number] += milliseconds * MS
    machine.poll(after_s=0.5)
    assert machine.watch.disturbance() == cause
    assert machine.watch.capped is (POWER in grown_ms)


@pytest.mark.parametrize(
    ("bits", "for_s", "cause"),
    [
        (0x20, 0.5, "thermal slowdown for 0.5 s"),
        (0x20, 0.05, ""),
        (0x48, 0.5, "hardware thermal slowdown for 0.5 s"),
        (0x21F, 0.5, ""),  # all others: a hardware slowdown may be a change of clocks, too
    ],
)
def test_without_counters_the_reasons_of_the_moment_count(watched, bits, for_s, cause):
    machine = watched(FakeGpu("GPU-a"))
    machine.poll()
    machine.poll(for_s, reasons=bits)
    assert machine.watch.disturbance() == cause
    assert machine.watch.capped is bool(bits & 0x4)


@pytest.mark.parametrize(
    ("shares", "named"),
    [
        ([{123: 90}] * 2 + [{}] * 18, ["pid 123, 9%"]),
        ([{OWN: 50}, {OWN: 0, 123: 40}] * 10, ["pid 123, 40%"]),  # by turns
        ([{123: 4}] * 20, []),  # a desktop
        ([{9: 20, 123: 10}] * 20, ["pid 9, 20%", "pid 123, 10%"]),
    ],
)
def test_a_process_that_computed_for_a_twentieth_of_the_time_disturbs_and_is_named(
    watched, shares, named
):
    machine = watched(FakeGpu("GPU-a", work=[(1000, 77, 99)]))  # before the watch
    for others in shares:
        machine.poll(0.2, work={OWN: 50, **others})
    causes = [f"another process used the GPU ({process} of the time)" for process in named]
    assert machine.watch.disturbance() == "; ".join(causes)


@pytest.mark.parametrize(
    ("processes", "work", "errors", "disturbs"),
    [
        ([1, OWN], [(OWN, 90), (1, 0)], {}, False),  # only holds memory
        ([OWN], [(123, 80)], {}, True),  # this process is known by the memory that it holds
        ([70001], [(70001, 90)], {}, False),  # the ids are another namespace's
        # Samples that the driver has not written.
        ([1, OWN], [(0, 80), (123, 4_000_000)], {}, False),
        # As some Blackwell boards.
        ([1, OWN], [(123, 80)], {fake.UTILIZATION[0]: fake.NOT_SUPPORTED}, True),
        ([1, OWN], [(123, 80)], dict.fromkeys(fake.UTILIZATION, fake.NO_PERMISSION), False),
    ],
)
def test_only_a_process_that_is_known_to_compute_disturbs(
    watched, processes, work, errors, disturbs
):
    machine = watched(FakeGpu("GPU-a", processes=dict.fromkeys(processes, GiB), errors=errors))
    machine.poll(work=dict(work))
    assert bool(machine.watch.disturbance()) is disturbs


def test_what_the_driver_tells_late_is_waited_for(watched, monkeypatch):
    machine = watched(FakeGpu("GPU-a", fields=dict(ALL), processes={OWN: GiB, 123: GiB}))

    def late(seconds):
        machine.gpu.work += [(2000, OWN, 50), (2000, 123, 30)]
        machine.gpu.fields[THERMAL] += 200 * MS
        machine.clock.advance(seconds)

    monkeypatch.setattr(time, "sleep", late)
    machine.poll()
    slowdown, stranger = machine.watch.disturbance().split("; ")
    assert slowdown == "thermal slowdown for 0.2 s"
    assert "pid 123" in stranger


def test_a_lost_gpu_is_a_cause_and_stays_one(watched):
    machine = watched(FakeGpu("GPU-a", fields=dict(ALL)))
    machine.poll()
    for machine.gpu.lost in (True, False):
        machine.poll()
        assert machine.watch.disturbance().startswith("the GPU was lost to NVML: ")


def test_without_a_driver_or_an_nvml_that_knows_the_gpu_nothing_is_claimed(monkeypatch, watched):
    machine = watched(FakeGpu("GPU-a"), uuid="GPU-other")
    machine.poll(reasons=0x20)
    assert machine.watch.disturbance() == ""
    fake.without_driver(monkeypatch)
    for device in (gpu_device(), gpu_device(None)):
        with open_watch(device) as watch:
            watch.poll()
            assert watch.disturbance() == ""
            assert watch.foreign_load_pct() is None


class Machine:
    """A CPU, this process and its children, with the seconds that each has taken."""

    def __init__(self, *children, own_s: float = 0.0, ended_s: float = 0.0, **busy_s: float):
        self.own_s, self.ended_s, self.busy_s = own_s, ended_s, busy_s
        self.loaders = list(children)

    def children(self):
        return self.loaders

    def cpu_times(self):
        half = self.own_s / 2
        return SimpleNamespace(
            user=half, system=half, children_user=self.ended_s, children_system=0.0
        )

    def _asdict(self):
        return dict.fromkeys(KINDS, 10.0) | self.busy_s


KINDS = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")


@pytest.mark.parametrize(
    ("ranks", "before", "after", "foreign_s"),
    [
        # 4 s of ours, 3 s of others', 1 s stolen; a guest's time is in user's.
        (1, Machine(own_s=4.0),
         Machine(own_s=8.0, user=16.0, guest=12.0, system=11.0, steal=11.0, idle=20.0, iowait=12.0),
         4),
        # 3 s of each that train together, 1 s of others'.
        (2, Machine(own_s=4.0), Machine(own_s=7.0, user=17.0, idle=23.0), 1),
        # 3 s of ours, 4 s of the loader's, which ends, 1 s of others'.
        (1, Machine(Machine(own_s=2.0), own_s=3.0),
         Machine(own_s=6.0, ended_s=6.0, user=18.0, idle=22.0), 1),
    ],
    ids=["others and stolen", "trained together", "loader that ended"],
)  # fmt: skip
def test_on_a_cpu_what_is_not_ours_is_foreign_load(monkeypatch, ranks, before, after, foreign_s):
    def stand(machine):
        monkeypatch.setattr(disturbance.psutil, "Process", lambda: machine)
        monkeypatch.setattr(disturbance.psutil, "cpu_times", lambda: machine)

    stand(before)
    with open_watch(CPU, gather=lambda pid: (pid,) * ranks) as watch:
        assert watch.foreign_load_pct() is None  # no time has passed
        stand(after)
        assert watch.foreign_load_pct() == pytest.approx(100 * foreign_s / 20)
        watch.poll()
        assert watch.disturbance() == ""


@pytest.mark.parametrize(("rank", "cause"), [(0, ""), (1, "thermal slowdown for 1 s; ")])
def test_each_of_several_watches_its_own_gpu_and_takes_none_of_them_for_a_stranger(
    monkeypatch, rank, cause
):
    clock, gpus = FakeClock(), [FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=0x20)]
    FakeDriver(gpus, clock=clock).install(monkeypatch)
    monkeypatch.setattr(time, "sleep", lambda _seconds: None)
    with open_watch(PAIR, clock, gather=lambda pid: (pid, 4711), rank=rank) as watch:
        clock.advance(1)
        gpus[rank].work += [(10**6, OWN, 40), (10**6, 4711, 40), (10**6, 77, 40)]
        stranger = "another process used the GPU (pid 77, 40% of the time)"
        assert watch.disturbance() == cause + stranger


def time_two(rank, trial):
    sent = []
    gpus = [FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=0x20)]
    with pytest.MonkeyPatch.context() as patched:
        FakeDriver(gpus, clock=FakeClock()).install(patched)
        speed.run(trial, PAIR, sent.append)
    return [message for message in sent if isinstance(message, TrialResult)]


@pytest.mark.slow
def test_what_disturbs_one_of_several_is_named_by_all(tmp_path, tiny_trial):
    protocol = replace(tiny_trial.protocol, time_budget_s=0.05)
    cell = replace(tiny_trial.cell, placement=Placement(name="cpu+cpu"))
    trial = replace(tiny_trial, phase="speed", protocol=protocol, cell=cell)
    for (result,) in together(tmp_path, time_two, trial):
        assert result.row.disturbance.startswith("device cpu: thermal slowdown for ")
