"""The simulated machine itself: where it cannot be built, that Python and C++ mean the same state, and forks."""

import ctypes
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest

from bench.devices.monitor import THROTTLE_FIELDS
from tests.simgpu import build, stubs
from tests.simgpu.machine import Machine, Shared, environment

OLD_FIELDS = ("NVML_FI_DEV_PERF_POLICY_POWER", "NVML_FI_DEV_PERF_POLICY_THERMAL")
USE_CUDA = "import ctypes; runtime = ctypes.CDLL(None); assert runtime.cudaSetDevice(0) == 0; "


@pytest.fixture
def compiled(tmp_path):
    """Compile C code to a library and return its path."""

    def compile_library(name, code, *linked):
        source = tmp_path / f"{name}.c"
        source.write_text(code)
        subprocess.run(["gcc", "-w", "-shared", "-fPIC", source, *linked, "-o", tmp_path / name], check=True)
        return tmp_path / name

    return compile_library


@pytest.mark.parametrize("kind", stubs.LIBRARIES, ids=lambda kind: kind.stem)
def test_a_stub_returns_the_librarys_own_code_and_is_named(path, compiled, kind):
    stub = compiled("stub.so", stubs.source(kind, ["someNewFunction"]))
    call = f"import ctypes; print(ctypes.CDLL({str(stub)!r}).someNewFunction()); runtime = ctypes.CDLL(None); "
    call += "text = runtime.cudaGetErrorString; text.restype = ctypes.c_char_p; print(text(801)); "
    call += "print(runtime.cudaGetLastError())"
    log = path.with_name("log")
    code, message, last_error = python(path, call, SIM_LOG=log).stdout.splitlines()
    assert int(code) == kind.unsupported
    assert int(last_error) == (kind.unsupported if kind is stubs.RUNTIME else 0)  # the runtime tells its own alone
    assert "someNewFunction is not simulated" in message
    assert any("UNSUPPORTED someNewFunction" in file.read_text() for file in path.parent.glob("log.*"))


def test_every_function_that_the_installed_libraries_want_is_there():
    """The built libraries have what is simulated and a stub of everything else."""
    files = build.installed_libraries(Path(metadata.distribution("torch").locate_file("")))
    exported = stubs.symbols(build.built().glob("lib*.so*"), "--dynamic", "--defined-only")
    functions = {name for kind in stubs.LIBRARIES for name in stubs.wanted(files, kind)}
    assert "cudaMalloc" in functions
    assert functions <= exported


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
    machine.poke("taken_bytes", 1, 1000 * 2**20)
    machine.poke("nvml_error", 1, 999)
    used = "n = ctypes.c_size_t(); t = ctypes.c_size_t(); runtime.cudaSetDevice(1); "
    used += "runtime.cudaMemGetInfo(ctypes.byref(n), ctypes.byref(t)); print((t.value - n.value) // 2**20); "
    lost = "import pynvml; pynvml.nvmlInit(); print(pynvml.nvmlDeviceGetCount()); "
    lost += "print(pynvml.nvmlDeviceGetName(pynvml.nvmlDeviceGetHandleByIndex(1))); "
    out = python(path, USE_CUDA + used + lost, SIM_NAME="One", SIM_MEM_MB="4096").stdout.split()
    assert out == ["1300", "2", "One"]  # with the context's 300 MiB; NVML's index 1 is CUDA's GPU 0
    assert machine.computing() == []


@pytest.mark.parametrize(("lacking", "names"), [("", set(THROTTLE_FIELDS)), ("fields", set(OLD_FIELDS))])
def test_nvml_tells_how_long_each_reason_held_unless_the_driver_is_older(path, lacking, names):
    ask = "import pynvml; pynvml.nvmlInit(); board = pynvml.nvmlDeviceGetHandleByIndex(0); "
    ask += f"names = {sorted(THROTTLE_FIELDS)}; "
    ask += "values = pynvml.nvmlDeviceGetFieldValues(board, [getattr(pynvml, name) for name in names]); "
    ask += "print(*(name for name, value in zip(names, values) if value.nvmlReturn == pynvml.NVML_SUCCESS))"
    assert set(python(path, ask, SIM_NVML_OFF=lacking).stdout.split()) == names


def test_faults_end_with_the_process_that_holds_them(path):
    machine = Machine(path)
    machine.poke("lost", 0, 1)
    ask = "import ctypes; print(ctypes.CDLL(None).cudaSetDevice(0))"
    assert python(path, ask).stdout == "999\n"
    holder = subprocess.Popen(["true"])
    holder.wait()
    machine.poke("holder", 0, holder.pid)
    assert python(path, ask).stdout == "0\n"


def test_a_context_used_after_a_fork_is_reported(path):
    fork = USE_CUDA + "import os; pid = os.fork(); runtime.cudaSetDevice(0); pid and os.waitpid(pid, 0)"
    assert "CUDA used in a forked child" in python(path, fork).stderr
