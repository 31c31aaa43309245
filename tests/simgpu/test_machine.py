"""The simulated machine itself: where it cannot be built, that Python and C++ mean the same state, and forks."""

import ctypes
import subprocess
import sys
from importlib import metadata

import pytest

from bench.devices.nvidia import THROTTLE_FIELDS
from tests.simgpu import build
from tests.simgpu.machine import Machine, Shared, environment

OLD_FIELDS = ("NVML_FI_DEV_PERF_POLICY_POWER", "NVML_FI_DEV_PERF_POLICY_THERMAL")
USE_CUDA = "import ctypes; runtime = ctypes.CDLL(None); assert runtime.cudaSetDevice(0) == 0; "


@pytest.fixture
def fresh():
    """Forget what has been built, and forget it again."""
    build.built.cache_clear()
    yield
    build.built.cache_clear()


def test_without_a_compiler_the_reason_is_given(fresh, monkeypatch):
    monkeypatch.setattr(build.shutil, "which", lambda _name: None)
    with pytest.raises(build.UnavailableError, match=r"there is no gcc and no g\+\+"):
        build.built()


@pytest.mark.parametrize("runtime", [None, "12.6.77"])
def test_with_a_torch_that_is_no_cuda_13_build_the_reason_is_given(fresh, monkeypatch, runtime):
    real = metadata.version

    def version(name):
        if name == "nvidia-cuda-runtime":
            if runtime is None:
                raise metadata.PackageNotFoundError(name)
            return runtime
        return real(name)

    monkeypatch.setattr(build.metadata, "version", version)
    with pytest.raises(build.UnavailableError, match="no build for it"):
        build.built()


@pytest.fixture
def path(tmp_path):
    return tmp_path / "machine"


def python(path, code, **variables):
    """Run code in a process of its own on a machine."""
    given = environment(SIM_SHM=path, **variables)
    command = [sys.executable, "-c", code]
    return subprocess.run(command, env=given, capture_output=True, text=True, check=True, timeout=60)


def test_python_and_the_libraries_agree_on_the_machines_state(path):
    python(path, USE_CUDA)
    assert path.stat().st_size == ctypes.sizeof(Shared)
    machine = Machine(path)
    machine.take(1, 1000)
    machine.poke("nvml_error", 1, 999)
    used = "n = ctypes.c_size_t(); t = ctypes.c_size_t(); runtime.cudaSetDevice(1); "
    used += "runtime.cudaMemGetInfo(ctypes.byref(n), ctypes.byref(t)); print((t.value - n.value) // 2**20); "
    lost = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount()); "
    lost += "print(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1))); "
    out = python(path, USE_CUDA + used + lost, SIM_NAME="One", SIM_MEM_MB="4096").stdout.split()
    assert out == ["1300", "2", "One"]  # with the context's 300 MiB; NVML's index 1 is CUDA's GPU 0
    assert machine.computing() == []


@pytest.mark.parametrize(("lacking", "told"), [("", set(THROTTLE_FIELDS)), ("fields", set(OLD_FIELDS))])
def test_nvml_tells_how_long_each_reason_held_unless_the_driver_is_older(path, lacking, told):
    ask = "import pynvml; pynvml.nvmlInit(); board = pynvml.nvmlDeviceGetHandleByIndex(0); "
    ask += f"names = {sorted(THROTTLE_FIELDS)}; "
    ask += "found = pynvml.nvmlDeviceGetFieldValues(board, [getattr(pynvml, name) for name in names]); "
    ask += "print(*(name for name, value in zip(names, found) if value.nvmlReturn == pynvml.NVML_SUCCESS))"
    machine = Machine(path)
    assert set(python(path, ask, SIM_NVML_OFF=lacking).stdout.split()) == told
    assert machine.take_nvml_asked() == {"fields"}
    assert machine.take_nvml_asked() == set()


def test_faults_end_with_the_process_that_holds_them(path):
    machine = Machine(path)
    machine.poke("lost", 0, 1)
    ask = "import ctypes; print(ctypes.CDLL(None).cudaSetDevice(0))"
    assert python(path, ask).stdout == "999\n"
    holder = subprocess.Popen(["true"])
    holder.wait()
    machine.hold(0, holder.pid)
    assert python(path, ask).stdout == "0\n"


def test_a_context_used_after_a_fork_is_reported(path):
    fork = USE_CUDA + "import os; pid = os.fork(); runtime.cudaSetDevice(0); pid and os.waitpid(pid, 0)"
    assert "CUDA used in a forked child" in python(path, fork).stderr
