"""GPUs under ROCm, without any: torch with ROCm is a version string and the device's properties."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bench.devices import survey
from bench.devices.backend import backend_of
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from tests.devices import fake_nvml


@pytest.fixture
def rocm(monkeypatch):
    """Let torch be a build with ROCm that sees one GPU of some architecture."""

    def see(arch):
        backend_of.cache_clear()
        properties = SimpleNamespace(
            name="AMD Instinct",
            uuid="u",
            gcnArchName=arch,
            total_memory=2**37,
            multi_processor_count=304,
        )
        fake_nvml.without_driver(monkeypatch)
        monkeypatch.setattr(torch.version, "hip", "6.4.43482")
        monkeypatch.setattr(torch.version, "cuda", None)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: 1)
        monkeypatch.setattr(torch.cuda, "get_device_properties", lambda _index: properties)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: ["gfx90a", "gfx942", "gfx1100"])
        monkeypatch.setattr(survey, "_gflops", lambda device, size, dtype=None: 1000.0)
        return backend_of(torch.device("cuda", 0))

    yield see
    backend_of.cache_clear()


def test_its_gpu_is_described_as_torch_knows_it_without_telemetry(rocm):
    backend = rocm("gfx942:sramecc+:xnack-")
    environment = survey.survey(None)
    (device,) = environment.devices
    assert (environment.cuda, environment.driver) == ("ROCm 6.4.43482", None)
    assert (device.kind, device.architecture) == ("cuda", "gfx942")
    assert (device.compute_capability, device.power_limit_w, device.energy) == (None, None, None)
    assert device.native_bf16 is None
    assert backend.unsupported_reason(PRECISIONS["amp-bf16"]) is None


def test_missing_kernels_are_named_in_its_words(rocm):
    rocm("gfx906")
    message = r"no kernels for GPU 0 \(AMD Instinct, gfx906\); it has gfx90a(?!.*Pascal)"
    with pytest.raises(UsageError, match=message):
        survey.survey(("0",))
