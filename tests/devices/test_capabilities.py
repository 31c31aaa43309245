"""The precisions that each device supports, card by card as in docs/devices.md, and why not the
others.
"""

from __future__ import annotations

import pytest
import torch
from torch.torch_version import TorchVersion

from bench.devices import capabilities, cpu
from bench.devices.backend import backend_of
from bench.spec.precisions import PRECISIONS

CPU = backend_of(torch.device("cpu"))
ANY = {"fp32", "amp-fp16", "amp-fp16-noscale", "fp16-master", "fp16"}
BF16 = {*ANY, "amp-bf16", "bf16"}
AMPERE = {*BF16, "tf32", "default"}
FP8 = {"fp8-tensorwise", "fp8-rowwise"}
ADA = {*AMPERE, *FP8}
MODELS = {
    "K80": ((3, 7), {"fp32"}),
    "P100": ((6, 0), ANY),
    "V100": ((7, 0), ANY),
    "T4": ((7, 5), ANY),
    "A100": ((8, 0), AMPERE),
    "L4": ((8, 9), ADA),
    "H100": ((9, 0), ADA),
    "B200": ((10, 0), ADA),
    "B300": ((10, 3), ADA),
    "Thor": ((11, 0), ADA),
    "RTX 5090": ((12, 0), ADA),
}
"""Cards, with what they support: as in docs/devices.md, and more."""


@pytest.fixture
def install(monkeypatch):
    """Install torchao of some version, or none, next to a torch of some version."""

    def install(*, version="2.14.1", package="999"):
        def metadata(name):
            if package is None:
                raise capabilities.importlib.metadata.PackageNotFoundError(name)
            return package

        monkeypatch.setattr(capabilities.importlib.metadata, "version", metadata)
        monkeypatch.setattr(torch, "__version__", TorchVersion(version))

    return install


@pytest.mark.parametrize("name", MODELS)
def test_each_card_supports_what_the_table_says_and_names_what_it_lacks(see, install, name):
    capability, supported = MODELS[name]
    backend = see(capability)
    install()
    for each, precision in PRECISIONS.items():
        reason = backend.unsupported_reason(precision)
        assert (reason is None) == (each in supported)
        if reason:
            assert reason.startswith(f"{each} needs ")
            assert "sm_{}{}".format(*capability) in reason


def test_a_cpus_bfloat16_is_native_where_it_has_instructions(monkeypatch):
    # Newer versions of torch look it up there, too.
    monkeypatch.setattr(cpu, "_architecture", lambda: "CPU")
    flags = {}
    monkeypatch.setattr(torch.cpu, "get_capabilities", lambda: flags, raising=False)
    for native in (True, False):
        flags["avx512_bf16"] = native
        assert CPU.describe()["native_bf16"] is native
    monkeypatch.delattr(torch.cpu, "get_capabilities")
    assert CPU.describe()["native_bf16"] is None


def test_a_cpu_has_neither_torchs_own_fp32_nor_float8():
    assert "the same as fp32" in CPU.unsupported_reason(PRECISIONS["default"])
    assert "on GPUs" in CPU.unsupported_reason(PRECISIONS["fp8-rowwise"])


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"),
    reason="torch has a switch for the CPU from 2.9 on",
)
def test_a_cpu_that_multiplies_in_ieee_is_told_to_have_no_tf32(monkeypatch):
    monkeypatch.setattr(capabilities, "matmul_error", lambda device: 2e-7)
    assert "IEEE" in CPU.unsupported_reason(PRECISIONS["tf32"])
    monkeypatch.setattr(capabilities, "matmul_error", lambda device: 3e-4)
    assert CPU.unsupported_reason(PRECISIONS["tf32"]) is None
    assert CPU.unsupported_reason(PRECISIONS["amp-fp16"]) is None


@pytest.mark.parametrize(
    ("installed", "lacks"),
    [
        ({"package": None}, "torchao, which is not installed: pip install 'ampmeter[fp8]'"),
        ({"package": "0.17.0+cu130"}, "torchao 0.18 or later; this one is 0.17.0+cu130"),
        ({"package": "0.18.0"}, None),
        ({"package": "no version"}, None),
        ({"version": "2.9.1"}, "torch 2.11 or later; this one is 2.9.1"),
        ({"version": "2.11.0+cu130"}, None),
    ],
)
def test_a_package_that_is_missing_or_too_old_is_named(see, install, installed, lacks):
    backend = see((10, 0))
    install(**installed)
    for name in FP8:
        reason = backend.unsupported_reason(PRECISIONS[name])
        assert reason == (f"{name} needs {lacks}" if lacks else None)
    assert backend.unsupported_reason(PRECISIONS["fp32"]) is None
