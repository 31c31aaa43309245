"""Disturbances of a measurement, on the machines that a fake driver makes."""

from __future__ import annotations

import os
import time
from dataclasses import replace
from types import SimpleNamespace

import pytest

from bench.measure import disturbance
from bench.measure.disturbance import open_watch
from bench.phases import speed
from bench.results.records import Device, TrialResult
from bench.spec.trial import Placement
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeClock, FakeDriver, FakeGpu, GiB
from tests.processes import together

POWER, THERMAL, SW_THERMAL, HW_THERMAL, HW_BRAKE = 74, 75, 269, 270, 271
"""Numbers of nvml.h's fields."""
NEWER = {"SW_THERM": SW_THERMAL, "HW_THERM": HW_THERMAL, "HW_POWER_BRAKE": HW_BRAKE}
"""Those of NVML_FI_DEV_CLOCKS_EVENT_REASON_*_SLOWDOWN, which nvidia-ml-py's versions number differently."""
ALL = {POWER: 0, THERMAL: 0, SW_THERMAL: 0, HW_THERMAL: 0, HW_BRAKE: 0}
MS = 1_000_000
OWN = os.getpid()
CPU = Device(placement="cpu", kind="cpu", name="Test CPU", architecture="CPU")
PAIR = Device(placement="0+1", kind="cuda", name="2 × GPU", architecture="Hopper", uuids=("GPU-a", "GPU-b"))


def gpu_device(uuid: str | None = "GPU-a") -> Device:
    return Device(placement="0", kind="cuda", name="Test GPU", architecture="Hopper", uuid=uuid)


class Watched:
    """A watch on the first GPU of a fake machine."""

    def __init__(self, monkeypatch, gpu: FakeGpu, uuid: str | None = None) -> None:
        self.clock, self.gpu = FakeClock(), gpu
        self.driver = FakeDriver([gpu], clock=self.clock).install(monkeypatch)
        for name, number in NEWER.items():
            setattr(self.driver.pynvml, f"NVML_FI_DEV_CLOCKS_EVENT_REASON_{name}_SLOWDOWN", number)
        self.context = open_watch(gpu_device(uuid or gpu.uuid), self.clock)
        self.watch = self.context.__enter__()

    def poll(self, after_s: float = 0.2) -> str:
        self.clock.advance(after_s)
        return self.watch.poll()


@pytest.fixture
def watched(monkeypatch):
    watches = []

    def make(gpu: FakeGpu, uuid: str | None = None) -> Watched:
        watches.append(Watched(monkeypatch, gpu, uuid))
        return watches[-1]

    yield make
    for watch in watches:
        watch.context.__exit__(None, None, None)
        assert watch.driver.running == 0


@pytest.mark.parametrize(
    ("grown_ms", "cause"),
    [
        ({THERMAL: 120}, "thermal slowdown for 120 ms"),
        ({HW_THERMAL: 120}, "hardware thermal slowdown for 120 ms"),
        ({THERMAL: 50, SW_THERMAL: 60, HW_BRAKE: 7}, "thermal slowdown for 60 ms; hardware power brake for 7 ms"),
        ({POWER: 120}, ""),  # a power cap is part of real speed
    ],
)
def test_a_throttle_counter_that_moved_disturbs_once(watched, grown_ms, cause):
    machine = watched(FakeGpu("GPU-a", fields=dict.fromkeys(ALL, 5000 * MS)))
    assert machine.poll() == ""
    for field, milliseconds in grown_ms.items():
        machine.gpu.fields[field] += milliseconds * MS
    assert machine.poll() == cause
    assert machine.poll() == ""


@pytest.mark.parametrize(("fields", "cause"), [({}, "thermal slowdown for 30 ms"), (ALL, "")])
def test_violation_times_are_read_where_there_are_no_fields(watched, fields, cause):
    machine = watched(FakeGpu("GPU-a", fields=dict(fields), violations={0: 0, 1: 0}))
    machine.gpu.violations = {0: 100 * MS, 1: 30 * MS}
    assert [machine.poll(), machine.poll()] == [cause, ""]


@pytest.mark.parametrize(
    ("fields", "bits", "cause"),
    [
        ({}, 0x20, "thermal slowdown"),
        ({}, 0x48, "hardware thermal slowdown"),
        ({}, 0x08, "hardware slowdown"),
        ({}, 0x217, ""),
        (ALL, 0x08, ""),  # a change of clocks, where the causes of a hardware slowdown are counted
    ],
)
def test_without_counters_the_reasons_of_the_moment_count(watched, fields, bits, cause):
    machine = watched(FakeGpu("GPU-a", fields=dict(fields)))
    machine.gpu.reasons = bits
    assert machine.poll() == cause
    machine.gpu.reasons = 0
    assert machine.poll() == ""


def test_a_power_cap_is_kept_in_mind_and_disturbs_nothing(watched):
    machine = watched(FakeGpu("GPU-a", fields=dict(ALL)))
    assert (machine.poll(), machine.watch.capped) == ("", False)
    for machine.gpu.reasons in (0x4, 0):
        assert (machine.poll(), machine.watch.capped) == ("", True)


def test_a_process_that_computes_is_named_with_its_share(watched):
    machine = watched(FakeGpu("GPU-a", work=[(1000, 123, 99)]))  # before the watch
    assert machine.poll() == ""
    machine.gpu.work += [(2000, os.getpid(), 50), (2000, 123, 30), (2500, 123, 40)]
    assert machine.poll() == "another process used the GPU (pid 123, 40 % of its time)"
    assert machine.poll() == ""
    machine.gpu.work += [(3000, os.getpid(), 50), (3000, 9, 20), (3000, 123, 10)]
    assert machine.poll() == "other processes used the GPU (pid 9, 20 % of its time, pid 123, 10 % of its time)"


@pytest.mark.parametrize(
    ("processes", "work", "errors", "disturbs"),
    [
        ([1, OWN], [(OWN, 90), (123, 3), (1, 0)], {}, False),  # holds memory, or draws a desktop
        ([OWN], [(123, 80)], {}, True),  # this process is known by the memory that it holds
        ([70001], [(70001, 90)], {}, False),  # the ids are another namespace's
        ([1, OWN], [(0, 80), (123, 4_000_000)], {}, False),  # samples that the driver has not written
        ([1, OWN], [(123, 80)], {fake.UTILIZATION[0]: fake.NOT_SUPPORTED}, True),  # as some Blackwell boards
        ([1, OWN], [(123, 80)], dict.fromkeys(fake.UTILIZATION, fake.NO_PERMISSION), False),
    ],
)
def test_only_a_process_that_is_known_to_compute_disturbs(watched, processes, work, errors, disturbs):
    machine = watched(FakeGpu("GPU-a", processes=dict.fromkeys(processes, GiB), errors=errors))
    machine.gpu.work += [(2000, *load) for load in work]
    assert bool(machine.poll()) is disturbs


def test_after_a_wait_a_poll_names_what_was_too_soon_to_ask_for(watched, monkeypatch):
    machine = watched(FakeGpu("GPU-a"))
    monkeypatch.setattr(time, "sleep", machine.clock.advance)
    machine.gpu.work += [(2000, os.getpid(), 50), (2000, 123, 30)]
    assert machine.poll(after_s=0.05) == ""
    machine.watch.wait()
    assert "pid 123" in machine.poll(after_s=0)


def test_a_lost_gpu_is_a_cause_and_stays_one(watched):
    machine = watched(FakeGpu("GPU-a", fields=dict(ALL)))
    assert machine.poll() == ""
    machine.gpu.lost = True
    assert machine.poll().startswith("the GPU was lost to NVML: ")
    machine.gpu.lost = False
    assert machine.poll().startswith("the GPU was lost to NVML: ")


def test_a_mig_slice_is_throttled_with_its_board_and_sees_no_other_processes(watched):
    small = FakeGpu("MIG-s", processes={os.getpid(): GiB})
    board = FakeGpu("GPU-a", slices=[small], fields=dict(ALL), work=[])
    machine = watched(board, uuid="MIG-s")
    board.fields[HW_THERMAL] = 15 * MS
    board.work += [(2000, 123, 90), (2000, os.getpid(), 10)]
    assert machine.poll() == "hardware thermal slowdown for 15 ms"
    assert machine.watch.foreign_load_pct() is None


def test_without_a_driver_or_an_nvml_that_knows_the_gpu_nothing_is_claimed(monkeypatch, watched):
    machine = watched(FakeGpu("GPU-a", reasons=0x20), uuid="GPU-other")
    assert (machine.poll(), machine.watch.foreign_load_pct()) == ("", None)
    fake.without_driver(monkeypatch)
    for device in (gpu_device(), gpu_device(None)):
        with open_watch(device) as watch:
            assert (watch.poll(), watch.foreign_load_pct()) == ("", None)


def machine_times(**seconds: float) -> SimpleNamespace:
    """Return the seconds of all cores; 10 of each kind before, later as given."""
    kinds = ("user", "nice", "system", "idle", "iowait", "irq", "softirq", "steal", "guest")
    return SimpleNamespace(_asdict=lambda: dict.fromkeys(kinds, 10.0) | seconds)


def process(*children: SimpleNamespace, **seconds: float) -> SimpleNamespace:
    times = dict.fromkeys(("user", "system", "children_user", "children_system"), 0.0) | seconds
    return SimpleNamespace(cpu_times=lambda: SimpleNamespace(**times), children=lambda: list(children))


LOADER = process(user=1.0, system=1.0)


@pytest.mark.parametrize(
    ("ranks", "processes", "machine", "foreign_s"),
    [
        # 4 s of ours, 3 s of others', 1 s stolen; a guest's time is in user's.
        (1, (process(user=3.0, system=1.0), process(user=6.0, system=2.0)),
         {"user": 16.0, "guest": 12.0, "system": 11.0, "steal": 11.0, "idle": 20.0, "iowait": 12.0}, 4),
        # 3 s of each that train together, 1 s of others'.
        (2, (process(user=3.0, system=1.0), process(user=6.0, system=1.0)), {"user": 17.0, "idle": 23.0}, 1),
        # 3 s of ours, 4 s of the loader's, which ends, 1 s of others'.
        (1, (process(LOADER, user=3.0), process(user=6.0, children_user=5.0, children_system=1.0)),
         {"user": 18.0, "idle": 22.0}, 1),
    ],
    ids=["others and stolen", "trained together", "loader that ended"],
)  # fmt: skip
def test_on_a_cpu_what_is_not_ours_is_foreign_load(monkeypatch, ranks, processes, machine, foreign_s):
    before, after = processes
    monkeypatch.setattr(disturbance.psutil, "Process", lambda: before)
    monkeypatch.setattr(disturbance.psutil, "cpu_times", machine_times)
    with open_watch(CPU, gather=lambda pid: (pid,) * ranks) as watch:
        assert watch.foreign_load_pct() is None  # no time has passed
        monkeypatch.setattr(disturbance.psutil, "Process", lambda: after)
        monkeypatch.setattr(disturbance.psutil, "cpu_times", lambda: machine_times(**machine))
        assert watch.foreign_load_pct() == pytest.approx(100 * foreign_s / 20)
        assert watch.poll() == ""


@pytest.mark.parametrize(("rank", "cause"), [(0, ""), (1, "thermal slowdown; ")])
def test_each_of_several_watches_its_own_gpu_and_takes_none_of_them_for_a_stranger(monkeypatch, rank, cause):
    clock, gpus = FakeClock(), [FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=0x20)]
    FakeDriver(gpus, clock=clock).install(monkeypatch)
    with open_watch(PAIR, clock, gather=lambda pid: (pid, 4711), rank=rank) as watch:
        clock.advance(1)
        gpus[rank].work += [(10**6, pid, 40) for pid in (OWN, 4711, 77)]
        assert watch.poll() == f"{cause}another process used the GPU (pid 77, 40 % of its time)"


def time_two(rank, trial):
    sent = []
    with pytest.MonkeyPatch.context() as patched:
        FakeDriver([FakeGpu("GPU-a"), FakeGpu("GPU-b", reasons=0x20)], clock=FakeClock()).install(patched)
        speed.run(trial, PAIR, sent.append)
    return [message for message in sent if isinstance(message, TrialResult)]


@pytest.mark.slow
def test_what_disturbs_one_of_several_discards_the_rounds_of_all(tmp_path, tiny_trial):
    tiny_trial = replace(tiny_trial, protocol=replace(tiny_trial.protocol, time_budget_s=0.05))
    trial = replace(tiny_trial, phase="speed", cell=replace(tiny_trial.cell, placement=Placement(name="cpu+cpu")))
    for (result,) in together(tmp_path, time_two, trial):
        assert (result.status, result.speed.rounds) == ("invalid", 0)
        assert "device cpu: thermal slowdown" in result.detail


def test_what_another_process_disturbed_began_with_the_newest_stamp_of_the_last_reading(watched, monkeypatch):
    machine = watched(FakeGpu("GPU-a", processes={OWN: GiB, 123: GiB}, work=[(1_000_000_000, OWN, 50)]))
    machine.poll()
    monkeypatch.setattr(time, "time", lambda: 1001.0)
    machine.gpu.work += [(1_000_400_000, OWN, 50), (1_000_600_000, 123, 30)]
    assert "pid 123" in machine.poll()
    assert machine.watch.window_s == pytest.approx((1.05, 0.35))
    machine.gpu.work += [(2_000_000_000, 123, 30)]  # of another clock
    assert "pid 123" in machine.poll(after_s=0.7)
    assert machine.watch.window_s == pytest.approx((0.7 + 1.15, -0.05))
