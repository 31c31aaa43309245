"""What ``list --gpus`` says of a machine: with fake GPUs under the real nvidia-ml-py and gpustat, and without."""

from __future__ import annotations

from types import SimpleNamespace

import torch

from bench.cli.listing import describe_devices
from bench.devices import survey as environment
from bench.devices import survey as inventory
from bench.devices.processes import gpu_processes
from bench.results.records import Device, Seen
from tests.conftest import call
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu, GiB

WHEEL = ["sm_75", "sm_80", "sm_90"]


def cuda(monkeypatch, *gpus: FakeGpu) -> None:
    """Make torch see these GPUs, as CUDA would: UUIDs without NVML's prefix."""
    seen = [
        SimpleNamespace(
            name=gpu.name,
            major=gpu.capability[0],
            minor=gpu.capability[1],
            uuid=gpu.uuid.removeprefix("GPU-"),
            total_memory=gpu.memory_total,
            multi_processor_count=132,
        )
        for gpu in gpus
    ]
    monkeypatch.setattr(torch.cuda, "device_count", lambda: len(seen))
    monkeypatch.setattr(torch.cuda, "get_device_properties", seen.__getitem__)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: WHEEL)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(environment, "_gflops", lambda device, size, dtype=None: 100.0)


def listed() -> str:
    seen, no_gpu = inventory.look(print)
    return "\n".join(describe_devices(seen, no_gpu, gpu_processes()))


def test_a_gpu_has_its_facts_its_precisions_and_its_users(monkeypatch, stranger):
    gpu = FakeGpu("GPU-a", name="NVIDIA H100", power_limit_w=500.0, processes={stranger: 3 * GiB})
    FakeDriver([gpu]).install(monkeypatch)
    cuda(monkeypatch, gpu)
    said = listed().splitlines()
    assert said[0] == (
        "GPU 0: NVIDIA H100, Hopper, compute capability 9.0, 80.0 GiB, 69.0 GiB free, power limit 500 W "
        "(from the factory 700 W), clocks up to 1980 MHz, memory 2619 MHz"
    )
    assert said[1] == "  GPU-a"
    assert said[2].startswith("  fp32, tf32, amp-fp16, amp-bf16")
    assert said[2].endswith(": ok")
    assert any("it is in use by" in line and f"pid {stranger}, 3.0 GiB" in line for line in said)
    assert any(line.startswith("CPU: ") for line in said)


def test_what_a_generation_cannot_do_is_said_with_the_reason(monkeypatch):
    turing, volta = FakeGpu("GPU-t", name="T4", capability=(7, 5)), FakeGpu("GPU-v", name="V100", capability=(7, 0))
    FakeDriver([turing, volta]).install(monkeypatch)
    cuda(monkeypatch, turing, volta)
    first, second = listed().split("GPU 1: ")
    assert "tf32: unsupported: tf32 needs TF32 tensor cores, from sm_80 on; this GPU is sm_75" in first
    assert "amp-bf16: unsupported: amp-bf16 needs bfloat16 arithmetic" in first
    assert "This torch build" in second
    assert "has no kernels for GPU 1 (V100, sm_70)" in second
    assert "nobody else is using it" in second


def test_a_gpu_without_tensor_cores_is_told_to_gain_little(monkeypatch):
    pascal = FakeGpu("GPU-p", name="P40", capability=(6, 1))
    FakeDriver([pascal]).install(monkeypatch)
    cuda(monkeypatch, pascal)
    monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["sm_61"])
    said = listed()
    assert "amp-fp16, amp-fp16-noscale, fp16-master, fp16: ok, but without tensor cores" in said
    assert "  fp32: ok\n" in said


def test_a_gpu_that_cuda_does_not_see_is_listed_with_the_reason(monkeypatch):
    hidden, shown = FakeGpu("GPU-h", name="Hidden"), FakeGpu("GPU-s", name="Shown")
    FakeDriver([hidden, shown]).install(monkeypatch)
    cuda(monkeypatch, shown)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    said = listed()
    assert "GPU 0: Shown" in said
    assert "GPU, not usable: Hidden" in said
    assert "CUDA does not see it: CUDA_VISIBLE_DEVICES is '1'." in said


def test_the_board_of_a_slice_that_cuda_sees_is_not_called_unseen(monkeypatch):
    part = FakeGpu("MIG-s", name="Slice")
    FakeDriver([FakeGpu("GPU-a", name="Board", slices=[part])]).install(monkeypatch)
    cuda(monkeypatch, part)
    said = listed()
    assert "GPU 0: Slice" in said
    assert "Board" not in said
    assert "not usable" not in said


def test_users_that_cannot_be_told_are_not_called_none(monkeypatch):
    gpu = FakeGpu("GPU-a", errors={"nvmlDeviceGetName": fake.NOT_SUPPORTED})
    FakeDriver([gpu]).install(monkeypatch)
    cuda(monkeypatch, gpu)
    assert "who is using it cannot be told" in listed()


def test_a_lost_gpu_does_not_hide_the_others(monkeypatch):
    lost, fine = FakeGpu("GPU-l", lost=True), FakeGpu("GPU-f", name="Fine")
    FakeDriver([lost, fine]).install(monkeypatch)
    cuda(monkeypatch, lost, fine)
    said = listed()
    assert "GPU 1: Fine" in said
    assert "69.0 GiB free" in said.split("GPU 1:")[1]
    assert "free" not in said.split("GPU 1:")[0]


def test_without_a_driver_the_cpu_and_the_reason(monkeypatch):
    fake.without_driver(monkeypatch)
    cuda(monkeypatch)
    said = listed()
    assert said.startswith("No GPU to measure on: no NVIDIA driver answers (NVML does not start")
    assert "\nCPU: " in said


def test_a_cpu_that_emulates_bfloat16_is_said_to():
    cpu = Device(
        placement="cpu",
        kind="cpu",
        name="Slow",
        architecture="CPU",
        cores=2,
        threads=2,
        fp32_gflops=90,
        bf16_gflops=4,
        unsupported={"tf32": "no TF32", "fp8": "no float8"},
    )
    said = "\n".join(describe_devices([Seen(device=cpu, memory_free_bytes=GiB)], "none", {}))
    assert "amp-bf16, bf16: emulated: 4 GFLOP/s in bfloat16, 90 in fp32" in said
    assert "CPU: Slow, CPU, 1.0 GiB free, 2 cores, 2 threads" in said


def test_the_command_lists_this_machine(tmp_path):
    done = call("list", "--gpus", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "CPU: " in done.stdout
    assert "fp32" in done.stdout.split("CPU: ")[1]
