"""GPUs as torch sees them, on a machine that needs none."""

from __future__ import annotations

from types import SimpleNamespace

import pytest
import torch

from bench.devices import survey
from bench.devices.backend import backend_of
from tests.devices import fake_nvml

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")
"""Architectures that a build of torch for CUDA 13 has kernels for."""


@pytest.fixture
def see(monkeypatch):
    """Let torch see GPUs of some compute capabilities, "a" and "b"; return the first one's backend.

    No library knows them.
    """

    def see(*capabilities, built=WHEEL, name="Test GPU", **properties):
        gpus = []
        for uuid, (major, minor) in zip("ab", capabilities, strict=False):
            gpu = SimpleNamespace(
                uuid=uuid,
                major=major,
                minor=minor,
                name=name,
                total_memory=2**34,
                multi_processor_count=10,
                **properties,
            )
            gpus.append(gpu)

        def properties_of(device):
            return gpus[getattr(device, "index", device)]

        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(torch.cuda, "get_device_properties", properties_of)
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: built)
        monkeypatch.setattr(survey, "_gflops", lambda device, size, dtype=None: 1000.0)
        fake_nvml.without_driver(monkeypatch)
        return backend_of(torch.device("cuda", 0))

    # A backend is kept by device, and is another one where torch is built for ROCm.
    backend_of.cache_clear()
    yield see
    backend_of.cache_clear()
