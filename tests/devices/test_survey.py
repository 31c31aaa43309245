"""The machine, as it is described to a run."""

from __future__ import annotations

from unittest import mock

import pytest
import torch

from bench.devices import survey
from bench.devices.nvidia import generation, runs_on
from bench.spec.errors import UsageError
from tests.devices import fake_nvml as fake
from tests.devices.conftest import WHEEL
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import install_gpus


def test_models_have_their_generations_name():
    names = "Kepler Pascal Volta Turing Ampere Ada Hopper Blackwell"
    models = "sm_37 sm_61 sm_70 sm_75 sm_86 sm_89 sm_90 sm_120"
    assert " ".join(map(generation, models.split())) == names


@pytest.mark.parametrize(
    ("model", "built", "runs"),
    [
        ("sm_70", WHEEL, False),
        ("sm_89", WHEEL, True),  # a binary for 8.6 runs on 8.9
        ("sm_87", ("sm_89",), False),
        ("sm_90", ("sm_90a",), True),
        ("sm_120", ("sm_90",), False),
        ("sm_120", ("sm_90", "compute_90"), True),  # PTX is compiled for later GPUs
        ("sm_60", ("compute_70",), False),
    ],
)
def test_a_build_runs_where_it_has_a_binary_of_the_generation_or_older_ptx(model, built, runs):
    assert runs_on(model, built) is runs


def test_a_gpu_without_kernels_in_this_build_is_refused_by_name_or_left_out_with_a_note(see):
    see((6, 0), (9, 0), name="Tesla P100")
    message = r"no kernels for GPU 0 \(Tesla P100, sm_60\); it has sm_75 .* CUDA 12.6"
    with pytest.raises(UsageError, match=message):
        survey.survey(("0",))
    assert survey.survey(("1",)).left_out == ()
    environment = survey.survey(("cpu", "all", "1"))
    assert [device.placement for device in environment.devices] == ["cpu", "1"]
    (note,) = environment.left_out
    assert "no kernels for GPU 0 (Tesla P100, sm_60)" in note
    assert note.endswith("It is left out.")
    see((6, 0))
    environment = survey.survey(None)
    (device,) = environment.devices
    assert device.placement == "cpu"
    assert len(environment.left_out) == 1


@pytest.mark.parametrize(
    ("capabilities", "words", "message"),
    [
        ([(6, 0)], ("all",), r"no kernels for GPU 0 .* use --gpus cpu"),
        ([(8, 0)], ("0", "1"), r"no GPU 1 here: the last is GPU 0\. .* --gpus cpu"),
        ([], ("all",), r"no GPU 0 here: no NVIDIA driver answers \(.+\)\. Use --gpus cpu"),
    ],
)
def test_gpus_that_are_not_there_or_cannot_be_used_are_refused(see, capabilities, words, message):
    see(*capabilities)
    with pytest.raises(UsageError, match=message):
        survey.survey(words)


def test_a_build_without_cuda_is_said_to_have_none(see, monkeypatch):
    see()
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UsageError, match="built without CUDA"):
        survey.survey(("0",))


def test_a_gpu_is_described_for_the_tables(see, monkeypatch):
    see((7, 5))
    install_gpus(monkeypatch, FakeGpu("GPU-a", power_limit_w=450.0, energy_tick_s=0.01))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    environment = survey.survey(None)
    (device,) = environment.devices
    assert environment.driver == "580.65.06"
    assert environment.cudnn == "91002"
    assert device.placement == "0"
    assert device.architecture == "Turing"
    assert device.uuid == "GPU-a"
    assert device.native_bf16 is False
    assert device.power_limit_w == 450.0
    assert device.power_default_w == 700.0
    assert device.sm_clock_limit_mhz == 1980
    assert device.memory_clock_limit_mhz == 2619
    assert "amp-bf16" in device.unsupported
    assert "amp-fp16" not in device.unsupported


NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}
COUNTING = FakeGpu("GPU-a", energy_tick_s=0.01)
COUNTING_TOO = FakeGpu("GPU-b", energy_tick_s=0.01)


@pytest.mark.parametrize(
    ("gpus", "source"),
    [
        ([COUNTING], "counter"),
        ([FakeGpu("GPU-a", errors=NO_COUNTER)], "power"),
        ([FakeGpu("GPU-a", errors=NO_COUNTER, power_w=0.0)], None),
        ([FakeGpu("GPU-other")], None),
        # GPUs that train together have it from what each of them has.
        ([COUNTING, COUNTING_TOO], "counter"),
        ([COUNTING, FakeGpu("GPU-b", errors=NO_COUNTER)], "power"),
    ],
)
def test_the_source_of_energy_is_found_by_calling(see, monkeypatch, gpus, source):
    see((9, 0), (9, 0))
    install_gpus(monkeypatch, *gpus)
    placement = "0" if len(gpus) == 1 else "0+1"
    (device,) = survey.survey((placement,)).devices
    assert device.energy == source


def test_a_visible_gpu_that_cudnn_does_not_support_leaves_its_version_unknown(see, monkeypatch):
    see((8, 0))
    error = RuntimeError("cuDNN version 92400 is not compatible with devices with SM < 7.5.")
    monkeypatch.setattr(torch.backends.cudnn, "version", mock.Mock(side_effect=error))
    assert survey.survey(("0",)).cudnn is None


def test_a_gpu_whose_memory_is_full_is_described_without_its_speed(see, monkeypatch):
    see((8, 0))
    rate = mock.Mock(side_effect=torch.OutOfMemoryError("CUDA out of memory."))
    monkeypatch.setattr(survey, "_gflops", rate)
    (device,) = survey.survey(("0",)).devices
    assert device.architecture == "Ampere"
    assert device.fp32_gflops is None
    rate.side_effect = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        survey.survey(("0",))
