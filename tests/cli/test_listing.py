"""``list --gpus`` describes a machine: with fake GPUs under the real nvidia-ml-py and gpustat, and
without.
"""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from bench.cli.listing import describe_devices
from bench.devices import monitor, survey
from bench.devices.capabilities import missing_package
from bench.devices.processes import gpu_processes
from bench.results.records import Seen
from bench.spec.precisions import PRECISIONS
from tests.conftest import call
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB

WHEEL = ["sm_61", "sm_75", "sm_80", "sm_90"]


@pytest.fixture
def listed(monkeypatch):
    """Lists a machine whose driver and CUDA have some GPUs."""

    def listed(*gpus: FakeGpu) -> str:
        properties = []
        for gpu in gpus:
            major, minor = gpu.capability
            of_gpu = SimpleNamespace(
                name=gpu.name,
                major=major,
                minor=minor,
                uuid=gpu.uuid.removeprefix("GPU-"),  # as CUDA has it
                total_memory=gpu.memory_total,
                multi_processor_count=132,
            )
            properties.append(of_gpu)
        if gpus:
            FakeDriver(gpus).install(monkeypatch)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties.__getitem__)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: WHEEL)
        monkeypatch.setattr(torch.version, "cuda", "13.0")
        monkeypatch.setattr(monitor, "SILENT_S", 0.05)  # the fakes' counters stand still
        monkeypatch.setattr(survey, "_gflops", lambda device, size, dtype=None: 100.0)
        devices, no_gpu = survey.look()
        return "\n".join(describe_devices(devices, no_gpu, gpu_processes()))

    return listed


def test_a_gpu_has_its_facts_its_precisions_and_its_users(listed, stranger):
    lines = listed(
        FakeGpu("GPU-a", name="NVIDIA H100", power_limit_w=500.0, processes={stranger: 3 * GiB})
    )
    facts, uuid, precisions, *rest = lines.splitlines()
    assert facts == (
        "GPU 0: NVIDIA H100, Hopper, 80.0 GiB, 69.0 GiB free, compute capability 9.0, power limit "
        "500 W, from the factory 700 W"
    )
    assert uuid == "  GPU-a"
    available = [name for name, each in PRECISIONS.items() if missing_package(each) is None]
    assert precisions == f"  {', '.join(available)}: ok"
    users, _cpu, machine = "\n".join(rest).partition("\nCPU: ")
    assert "used by: " in users
    assert f"pid {stranger}, 3.0 GiB" in users
    assert machine


@pytest.mark.parametrize(
    ("gpu", "parts"),
    [
        (
            FakeGpu("GPU-t", name="T4", capability=(7, 5)),
            [
                "tf32: unsupported: tf32 needs TF32 tensor cores, from sm_80 on; this GPU is sm_75",
                "amp-bf16: unsupported: amp-bf16 needs bfloat16 arithmetic",
                "bfloat16 is emulated\n",
                "used by: nobody else",
            ],
        ),
        (
            FakeGpu("GPU-v", name="V100", capability=(7, 0)),
            ["has no kernels for GPU 0 (V100, sm_70)"],
        ),
        (FakeGpu("GPU-h", name="H100"), ["bfloat16 is native\n"]),
        (FakeGpu("GPU-a", errors={"nvmlDeviceGetName": fake.NOT_SUPPORTED}), ["used by: unknown"]),
    ],
)
def test_what_a_gpu_is_and_can_do_is_told_with_the_reason(listed, gpu, parts):
    of_gpu = listed(gpu).partition("CPU: ")[0]
    for part in parts:
        assert part in of_gpu


def test_without_a_driver_the_cpu_and_the_reason_are_listed(listed, monkeypatch):
    fake.without_driver(monkeypatch)
    lines = listed()
    assert lines.startswith("No GPU to measure on: no NVIDIA driver answers (NVML does not start")
    assert "\nCPU: " in lines


def test_a_cpu_that_emulates_bfloat16_is_said_to(cpu):
    slow = replace(cpu, cores=2, threads=2, fp32_gflops=90, bf16_gflops=4)
    lines = "\n".join(describe_devices([Seen(device=slow, memory_free_bytes=GiB)], "none", {}))
    emulated = [name for name, each in PRECISIONS.items() if each.compute == "bfloat16"]
    assert f"{', '.join(emulated)}: emulated: 4 GFLOP/s in bfloat16, 90 in fp32" in lines
    assert "CPU: Test CPU, CPU, 1.0 GiB free, 2 threads" in lines


@pytest.mark.slow
def test_the_command_lists_this_machine(tmp_path):
    done = call("list", "--gpus", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "fp32" in done.stdout.split("CPU: ")[1]
