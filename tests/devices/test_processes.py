"""Other processes on the GPUs: the real gpustat on a fake driver, with real processes."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys
from dataclasses import replace

import pytest

from bench.devices import processes as module
from bench.devices.processes import GpuProcess, busy, gpu_processes
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB
from tests.measure.test_disturbance import gpu_device


def test_without_a_driver_nobody_is_seen_and_gpustat_is_not_imported(monkeypatch):
    fake.without_driver(monkeypatch)
    assert gpu_processes() == {}
    assert "gpustat" not in sys.modules


@pytest.mark.parametrize(("missing", "held"), [(fake.DRIVER_470, 3 * GiB), ((), None)])
def test_a_stranger_is_named_with_user_program_and_memory(monkeypatch, stranger, missing, held):
    used = FakeGpu("GPU-a", processes={stranger: held, os.getpid(): GiB})
    FakeDriver([FakeGpu("GPU-b"), used], missing=missing).install(monkeypatch)
    process = GpuProcess(
        pid=stranger,
        user=getpass.getuser(),
        command="sleep",
        memory_bytes=held,
    )
    assert gpu_processes() == {"GPU-b": [], "GPU-a": [process]}


def test_a_display_server_is_left_out(monkeypatch, tmp_path, stranger):
    (tmp_path / "Xorg").symlink_to("/bin/sleep")
    with subprocess.Popen(["Xorg", "600"], executable=tmp_path / "Xorg") as display:
        gpu = FakeGpu("GPU-a", graphics={display.pid: GiB}, processes={stranger: GiB})
        FakeDriver([gpu]).install(monkeypatch)
        processes = gpu_processes()
        display.kill()
    (process,) = processes["GPU-a"]
    assert process.pid == stranger


def test_processes_that_have_gone_and_gpus_that_hide_theirs_or_are_lost_are_left_out(monkeypatch):
    lost = FakeGpu("GPU-a", lost=True)
    errors = {
        "nvmlDeviceGetComputeRunningProcesses_v3": fake.NO_PERMISSION,
        "nvmlDeviceGetGraphicsRunningProcesses_v3": fake.NO_PERMISSION,
    }
    hidden = FakeGpu("GPU-b", errors=errors)
    left = FakeGpu("GPU-c", processes={2**22 + 1: GiB})
    FakeDriver([lost, hidden, left]).install(monkeypatch)
    assert gpu_processes() == {"GPU-c": []}


def test_processes_that_cannot_be_asked_for_are_unknown_and_a_warning_says_why(monkeypatch, caplog):
    nameless = FakeGpu("GPU-a", errors={"nvmlDeviceGetName": fake.NOT_SUPPORTED})
    FakeDriver([nameless]).install(monkeypatch)
    assert gpu_processes() == {}
    assert "Not Supported" in caplog.text
    monkeypatch.setitem(sys.modules, "gpustat", None)
    assert gpu_processes() == {}
    assert "import of gpustat halted" in caplog.text


def test_other_processes_on_a_runs_gpus_are_named_in_one_warning(machine, monkeypatch):
    python = GpuProcess(pid=5, user="ann", command="python", memory_bytes=12.5 * GiB)
    unknown = GpuProcess(pid=7, user="?", command="?", memory_bytes=None)
    seen = {"GPU-a": [python, unknown], "GPU-b": [python], "GPU-other": [python]}
    monkeypatch.setattr(module, "gpu_processes", lambda: seen)
    pair = replace(gpu_device(None), placement="1+0", uuids=("GPU-b", "GPU-a"))
    machine = replace(machine, devices=(pair,))
    assert busy(machine) == [
        "GPU 0 is in use by ann (python, pid 5, 12.5 GiB), ? (?, pid 7, memory unknown). "
        "GPU 1 is in use by ann (python, pid 5, 12.5 GiB)."
    ]
    seen["GPU-a"] = []
    seen["GPU-b"] = []
    assert busy(machine) == []
