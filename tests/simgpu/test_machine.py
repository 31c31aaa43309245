"""The simulated machine itself: its functions, its state in Python and C++, and forks."""

import ctypes
import subprocess
import sys

import pytest

from tests.simgpu import build, stubs
from tests.simgpu.machine import Machine, Shared, environment

USE_CUDA = "import ctypes; runtime = ctypes.CDLL(None); assert runtime.cudaSetDevice(0) == 0; "


def test_every_function_that_the_installed_libraries_want_is_there():
    """The built libraries have what is simulated and a stub of everything else."""
    files = build.installed_libraries()
    exported = stubs.symbols(build.built().glob("lib*.so*"), "--dynamic", "--defined-only")
    functions = set()
    for library in stubs.LIBRARIES:
        functions |= stubs.wanted(files, library)
    assert "cudaMalloc" in functions
    assert functions <= exported


@pytest.fixture
def path(tmp_path):
    return tmp_path / "machine"


def python(path, code, **variables):
    """Run code in a process of its own on a machine."""
    given = environment(SIM_SHM=path, **variables)
    command = [sys.executable, "-c", code]
    return subprocess.run(
        command, env=given, capture_output=True, text=True, check=True, timeout=60
    )


ASK = """
import pynvml

runtime.cudaSetDevice(1)
free, total = ctypes.c_size_t(), ctypes.c_size_t()
runtime.cudaMemGetInfo(ctypes.byref(free), ctypes.byref(total))
print((total.value - free.value) // 2**20)
pynvml.nvmlInit()
print(pynvml.nvmlDeviceGetCount())
print(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1)))
"""


def test_python_and_the_libraries_agree_on_the_machines_state(path):
    python(path, USE_CUDA)
    assert path.stat().st_size == ctypes.sizeof(Shared)
    machine = Machine(path)
    machine.poke("taken_bytes", 1, 1000 * 2**20)
    machine.poke("nvml_error", 1, 999)
    out = python(path, USE_CUDA + ASK, SIM_NAME="One", SIM_MEM_MB="4096").stdout.split()
    assert out == ["1300", "2", "One"]  # with the context's 300 MiB; NVML's index 1 is CUDA's GPU 0
    assert machine.computing() == []


def test_a_context_used_after_a_fork_is_reported(path):
    fork = "import os; pid = os.fork(); runtime.cudaSetDevice(0); pid and os.waitpid(pid, 0)"
    assert "CUDA used in a forked child" in python(path, USE_CUDA + fork).stderr
