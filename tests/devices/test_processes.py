"""Who is on the GPUs: the real gpustat on a fake driver, with real processes."""

from __future__ import annotations

import getpass
import os
import subprocess
import sys

from bench.devices import processes as module
from bench.devices.processes import Neighbour, describe, neighbours
from tests.devices import fake_nvml as fake
from tests.devices.fake_gpu import FakeGpu, GiB
from tests.devices.fake_nvml import FakeDriver

MiB = 2**20


def test_without_a_driver_nobody_is_seen_and_gpustat_is_not_imported(monkeypatch):
    fake.without_driver(monkeypatch)
    assert neighbours() == {}
    assert "gpustat" not in sys.modules


def test_importing_it_does_not_import_gpustat():
    code = "import sys, bench.devices.processes; print(sorted({'gpustat', 'pynvml', 'torch'} & set(sys.modules)))"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "[]\n"


def test_a_stranger_is_named_with_user_program_and_memory(monkeypatch, stranger):
    FakeDriver([FakeGpu("GPU-b"), FakeGpu("GPU-a", processes={stranger: 3 * GiB})]).install(monkeypatch)
    neighbour = Neighbour(pid=stranger, user=getpass.getuser(), command="sleep", memory_bytes=3 * GiB)
    assert neighbours() == {"GPU-b": [], "GPU-a": [neighbour]}


def test_on_an_old_driver_too(monkeypatch, stranger):
    driver = FakeDriver([FakeGpu("GPU-a", processes={stranger: GiB})], missing=fake.DRIVER_470)
    driver.install(monkeypatch)
    assert [one.pid for one in neighbours()["GPU-a"]] == [stranger]


def test_memory_that_the_driver_does_not_tell_is_unknown(monkeypatch, stranger):
    FakeDriver([FakeGpu("GPU-a", processes={stranger: None})]).install(monkeypatch)
    assert neighbours()["GPU-a"][0].memory_bytes is None


def test_this_process_is_no_neighbour(monkeypatch, stranger):
    FakeDriver([FakeGpu("GPU-a", processes={os.getpid(): GiB, stranger: GiB})]).install(monkeypatch)
    assert [one.pid for one in neighbours()["GPU-a"]] == [stranger]


def test_a_display_server_is_no_neighbour(monkeypatch, tmp_path, stranger):
    (tmp_path / "Xorg").symlink_to("/bin/sleep")
    with subprocess.Popen(["Xorg", "600"], executable=tmp_path / "Xorg") as display:
        gpu = FakeGpu("GPU-a", graphics={display.pid: GiB}, processes={stranger: GiB})
        FakeDriver([gpu]).install(monkeypatch)
        found = neighbours()
        display.kill()
    assert [one.pid for one in found["GPU-a"]] == [stranger]


def test_a_process_that_has_gone_is_left_out(monkeypatch):
    FakeDriver([FakeGpu("GPU-a", processes={2**22 + 1: GiB})]).install(monkeypatch)
    assert neighbours() == {"GPU-a": []}


def test_a_gpu_that_hides_its_processes_or_is_lost_is_left_out_not_called_free(monkeypatch):
    kinds = [
        f"nvmlDeviceGet{kind}RunningProcesses_{version}" for kind in ("Compute", "Graphics") for version in ("v2", "v3")
    ]
    hidden = FakeGpu("GPU-b", errors=dict.fromkeys(kinds, fake.NO_PERMISSION))
    FakeDriver([FakeGpu("GPU-a", lost=True), hidden, FakeGpu("GPU-c")]).install(monkeypatch)
    assert neighbours() == {"GPU-c": []}


def test_a_query_that_fails_leaves_it_unknown_and_says_so(monkeypatch, caplog):
    FakeDriver([FakeGpu("GPU-a", errors={"nvmlDeviceGetName": fake.NOT_SUPPORTED})]).install(monkeypatch)
    assert neighbours() == {}
    assert "Not Supported" in caplog.text


def test_a_gpustat_that_cannot_be_imported_leaves_it_unknown_and_says_so(monkeypatch, caplog):
    FakeDriver([FakeGpu("GPU-a")]).install(monkeypatch)
    monkeypatch.setitem(sys.modules, "gpustat", None)
    assert neighbours() == {}
    assert "gpustat cannot be imported" in caplog.text


def test_what_gpustat_does_not_know_is_none():
    process = {"pid": 5, "username": "?", "command": "?", "gpu_memory_usage": None}
    assert module._others([process]) == [Neighbour(pid=5, user=None, command=None, memory_bytes=None)]


def test_the_description_is_a_sentence_for_each_busy_gpu():
    ann = Neighbour(pid=5, user="ann", command="python", memory_bytes=12 * GiB + 512 * MiB)
    bob = Neighbour(pid=6, user="bob", command="blender", memory_bytes=300 * MiB)
    ghost = Neighbour(pid=7, user=None, command=None, memory_bytes=None)
    text = describe({"GPU-a": [ann], "GPU-b": [], "GPU-c": [ann, bob, ghost]}, {"GPU-a": "GPU 1"})
    assert text == (
        "GPU 1 is in use by ann (python, pid 5, 12.5 GiB). "
        "GPU-c is in use by ann (python, pid 5, 12.5 GiB), bob (blender, pid 6, 300 MiB) "
        "and somebody (a process, pid 7, memory unknown)."
    )


def test_free_gpus_have_no_description():
    assert describe({}) == ""
    assert describe({"GPU-a": []}) == ""
