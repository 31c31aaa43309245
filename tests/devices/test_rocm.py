"""GPUs under ROCm, without any: torch with ROCm is a version string and the device's properties."""

from __future__ import annotations

import pytest
import torch

from bench.devices import survey
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS


@pytest.fixture
def rocm(monkeypatch, see):
    """Let torch be a build with ROCm that sees one GPU of some architecture."""

    def rocm(architecture):
        monkeypatch.setattr(torch.version, "hip", "6.4.43482")
        monkeypatch.setattr(torch.version, "cuda", None)
        built = ("gfx90a", "gfx942", "gfx1100")
        return see((9, 4), built=built, name="AMD Instinct", gcnArchName=architecture)

    return rocm


def test_its_gpu_is_described_as_torch_knows_it_without_telemetry(rocm):
    backend = rocm("gfx942:sramecc+:xnack-")
    environment = survey.survey(None)
    (device,) = environment.devices
    assert environment.cuda == "ROCm 6.4.43482"
    assert environment.driver is None
    assert device.kind == "cuda"
    assert device.architecture == "gfx942"
    for unknown in ("compute_capability", "power_limit_w", "energy", "native_bf16"):
        assert getattr(device, unknown) is None
    assert backend.unsupported_reason(PRECISIONS["amp-bf16"]) is None


def test_missing_kernels_are_named_in_its_words(rocm):
    rocm("gfx906")
    message = r"no kernels for GPU 0 \(AMD Instinct, gfx906\); it has gfx90a(?!.*Pascal)"
    with pytest.raises(UsageError, match=message):
        survey.survey(("0",))
