"""What arithmetic each device is said to do, and why not."""

from __future__ import annotations

from contextlib import nullcontext
from types import SimpleNamespace
from typing import get_args

import pytest
import torch

from bench.devices import amd, capabilities, nvidia
from bench.devices.backend import CPU_LACKS, backend_of
from bench.spec.precisions import PRECISIONS, Feature, parse_precision

CPU = backend_of(torch.device("cpu"))
NARROW = {"fp8", "mxfp8", "nvfp4", "triton-fp8", "te-fp8", "te-mxfp8"}


def gpu(monkeypatch, major, minor):
    """Return the backend of an NVIDIA GPU with a compute capability."""
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: SimpleNamespace(major=major, minor=minor))
    return backend_of(torch.device("cuda", 0))


@pytest.mark.parametrize(
    ("capability", "lacking"),
    [
        ((3, 7), {"tf32", "cudnn-tf32", "fp16", "bf16", *NARROW, "triton", "te-bf16"}),
        ((6, 1), {"tf32", "cudnn-tf32", "bf16", *NARROW, "triton", "te-bf16"}),
        ((7, 5), {"tf32", "cudnn-tf32", "bf16", *NARROW, "te-bf16"}),
        ((8, 6), NARROW),
        ((8, 9), {"mxfp8", "nvfp4", "te-mxfp8"}),
        ((10, 0), set()),
        ((10, 3), set()),
        ((11, 0), {"mxfp8", "nvfp4"}),
        ((12, 0), {"mxfp8", "nvfp4", "te-mxfp8"}),
    ],
)
def test_each_generation_of_gpus_does_what_its_hardware_does(monkeypatch, software, capability, lacking):
    refused = {name for name, precision in PRECISIONS.items() if precision.needs in lacking}
    software()
    reasons = {n: gpu(monkeypatch, *capability).unsupported_reason(p) for n, p in PRECISIONS.items()}
    assert {name for name, reason in reasons.items() if reason} == refused
    assert all(f"sm_{capability[0]}{capability[1]}" in reasons[name] for name in refused)


@pytest.mark.parametrize("features", [nvidia.FEATURES, amd.FEATURES, CPU_LACKS], ids=["nvidia", "amd", "cpu"])
def test_every_kind_of_device_says_whether_it_has_each_feature(features):
    assert {*features} == {*get_args(Feature)} - {""}


@pytest.mark.parametrize(("capability", "native"), [((7, 0), False), ((7, 5), False), ((8, 0), True), ((12, 0), True)])
def test_native_bfloat16_is_torchs_word_without_emulation(monkeypatch, capability, native):
    backend = gpu(monkeypatch, *capability)
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "device", nullcontext)
    assert backend.native_bf16() is native
    assert (backend.unsupported_reason(PRECISIONS["amp-bf16"]) is None) is native


def test_whether_a_gpu_that_does_not_answer_has_bfloat16_is_unknown(monkeypatch):
    def busy(_device):
        raise RuntimeError("CUDA error: all CUDA-capable devices are busy or unavailable")

    monkeypatch.setattr(torch.cuda, "device", busy)
    assert gpu(monkeypatch, 8, 0).native_bf16() is None


@pytest.mark.parametrize(("flags", "native"), [({"avx512_bf16": True}, True), ({"avx512_bf16": False}, False)])
def test_a_cpus_bfloat16_is_native_where_it_has_instructions(monkeypatch, flags, native):
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    assert CPU.native_bf16() is native
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert CPU.native_bf16() is None


def test_torchs_own_fp32_is_refused_where_it_is_the_same_as_fp32(monkeypatch):
    for backend in (CPU, gpu(monkeypatch, 7, 5)):
        assert "the same as fp32" in backend.unsupported_reason(PRECISIONS["default"])


@pytest.mark.skipif(not hasattr(torch.backends, "fp32_precision"), reason="torch has a switch for the CPU from 2.9 on")
def test_a_cpu_that_multiplies_in_ieee_is_told_to_have_no_tf32(monkeypatch):
    monkeypatch.setattr(capabilities, "matmul_error", lambda device: 2e-7)
    assert "IEEE" in CPU.unsupported_reason(PRECISIONS["tf32"])
    monkeypatch.setattr(capabilities, "matmul_error", lambda device: 3e-4)
    assert CPU.unsupported_reason(PRECISIONS["tf32"]) is None
    assert CPU.unsupported_reason(PRECISIONS["amp-fp16"]) is None


def test_float8_is_not_for_cpus_nor_without_torchao(monkeypatch, software):
    emulated = parse_precision("fp8-rowwise:emulated=on")
    assert "on GPUs" in CPU.unsupported_reason(PRECISIONS["fp8-rowwise"])
    software()
    assert CPU.unsupported_reason(emulated) is None
    assert "bfloat16" in gpu(monkeypatch, 7, 0).unsupported_reason(emulated)
    software(packages=False)
    reason = gpu(monkeypatch, 9, 0).unsupported_reason(PRECISIONS["fp8-rowwise"])
    assert reason == "fp8-rowwise needs torchao, which is not installed: pip install 'ampmeter[fp8]'"
    assert "needs torchao" in CPU.unsupported_reason(emulated)


@pytest.mark.parametrize(("version", "refused"), [("2.6.0", True), ("2.9.1", True), ("2.11.0+cu130", False)])
def test_torchao_is_refused_beside_a_torch_that_is_too_old_for_it(software, version, refused):
    software(version=version)
    reason = CPU.unsupported_reason(PRECISIONS["adamw8bit"])
    assert reason == (f"adamw8bit needs torch 2.11 or later; this one is {version}" if refused else None)
    assert CPU.unsupported_reason(PRECISIONS["fp32"]) is None


@pytest.mark.parametrize(
    ("name", "version", "least"),
    [
        ("fp8-rowwise", "0.9.0", "torchao 0.18"),
        ("adamwfp8", "0.17.0+cu130", "torchao 0.18"),
        ("nvfp4", "0.18.0", None),
        ("fp8-rowwise", "0.100.0+cu130", None),
        ("te-bf16", "1.13.0", "transformer_engine 2.9"),
        ("te-mxfp8", "2.8.0+40c7d1d", "transformer_engine 2.9"),
        ("te-fp8", "2.18.0+abc", None),
        ("te-fp8", "no version", None),
        ("te-fp8", None, None),  # as where only its folder was copied
    ],
)
def test_a_package_that_is_too_old_is_named_with_the_version_that_is_needed(
    monkeypatch, software, name, version, least
):
    software(package=version)
    reason = gpu(monkeypatch, 10, 0).unsupported_reason(PRECISIONS[name])
    assert reason == (f"{name} needs {least} or later; this one is {version}" if least else None)


@pytest.fixture
def asked_anew():
    capabilities.failure_on_cpu.cache_clear()
    yield
    capabilities.failure_on_cpu.cache_clear()


@pytest.mark.parametrize("name", ["amp-fp16", "fp16-master", "fp16"])
def test_a_type_whose_operators_this_torch_lacks_on_a_cpu_is_unsupported_with_torchs_own_words(
    asked_anew, monkeypatch, name
):
    def missing(*_arguments):
        raise RuntimeError("'slow_conv2d_cpu' not implemented for 'Half'\nmore")

    monkeypatch.setattr(torch.nn.Conv2d, "forward", missing)
    reason = CPU.unsupported_reason(PRECISIONS[name])
    assert reason.endswith("float16 layers on this CPU: 'slow_conv2d_cpu' not implemented for 'Half'")


def test_looking_whether_a_cpu_can_leaves_the_random_numbers_of_the_run_alone(asked_anew):
    before = torch.get_rng_state()
    assert CPU.unsupported_reason(PRECISIONS["bf16"]) is None
    assert torch.equal(torch.get_rng_state(), before)
