"""The machine, as it is described to a run."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from bench.devices import backend, survey
from bench.devices.nvidia import generation, runs_on
from bench.spec.errors import UsageError
from bench.spec.precisions import PRECISIONS
from tests.devices import fake_nvml as fake
from tests.devices.fake_nvml import FakeDriver, FakeGpu

WHEEL = ("sm_75", "sm_80", "sm_86", "sm_90", "sm_100", "sm_120")


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


@pytest.fixture
def see(monkeypatch):
    """Let torch see GPUs of some compute capabilities, "a" and "b"; no library knows them unless
    there is a driver.
    """

    def make(*capabilities, name="Test GPU", driver=None):
        common = {"name": name, "total_memory": 2**34, "multi_processor_count": 10}
        gpus = []
        for uuid, (major, minor) in zip("ab", capabilities, strict=False):
            gpus.append(SimpleNamespace(uuid=uuid, major=major, minor=minor, **common))
        monkeypatch.setattr(torch.cuda, "device_count", lambda: len(gpus))
        monkeypatch.setattr(
            torch.cuda, "get_device_properties", lambda index: gpus[getattr(index, "index", index)]
        )
        monkeypatch.setattr(torch.cuda, "get_arch_list", lambda: list(WHEEL))
        monkeypatch.setattr(survey, "_gflops", lambda device, size, dtype=None: 1000.0)
        if driver is None:
            fake.without_driver(monkeypatch)
        else:
            driver.install(monkeypatch)

    return make


def test_a_gpu_without_kernels_in_this_build_is_refused_by_name_or_left_out_with_a_note(see):
    see((6, 0), name="Tesla P100")
    message = r"no kernels for GPU 0 \(Tesla P100, sm_60\); it has sm_75 .* CUDA 12.6"
    with pytest.raises(UsageError, match=message):
        survey.survey(("0",))
    environment = survey.survey(None)
    assert [device.placement for device in environment.devices] == ["cpu"]
    (note,) = environment.left_out
    assert "no kernels for GPU 0 (Tesla P100, sm_60)" in note
    assert note.endswith("It is left out.")
    see((6, 0), (9, 0), name="Tesla P100")
    for words, placements in (
        (None, ["1"]),
        (("1",), ["1"]),
        (("cpu", "all", "1"), ["cpu", "1"]),
    ):
        environment = survey.survey(words)
        assert [device.placement for device in environment.devices] == placements
        assert environment.left_out == (() if words == ("1",) else (note,))


def test_all_gpus_are_refused_where_none_can_be_used(see):
    see((6, 0))
    with pytest.raises(UsageError, match=r"no kernels for GPU 0 .* use --gpus cpu"):
        survey.survey(("all",))
    see()
    with pytest.raises(UsageError, match=r"^There is no GPU 0 here: .*\. Use --gpus cpu"):
        survey.survey(("all",))


def test_a_gpu_is_described_for_the_tables(see, monkeypatch):
    gpu = FakeGpu(
        "GPU-a", power_limit_w=450.0, sm_clock_limit_mhz=1980, memory_clock_limit_mhz=2619
    )
    see((7, 5), driver=FakeDriver([gpu], version="570.1"))
    monkeypatch.setattr(torch.backends.cudnn, "version", lambda: 91002)
    environment = survey.survey(None)
    (device,) = environment.devices
    assert (environment.driver, environment.cudnn) == ("570.1", "91002")
    assert (device.placement, device.architecture, device.uuid) == ("0", "Turing", "GPU-a")
    assert device.native_bf16 is False
    assert (device.power_limit_w, device.power_default_w) == (450.0, 700.0)
    assert (device.sm_clock_limit_mhz, device.memory_clock_limit_mhz) == (1980, 2619)
    needs = ("tf32", "cudnn-tf32", "bf16", "fp8")
    lacking = [name for name, precision in PRECISIONS.items() if precision.needs in needs]
    assert list(device.unsupported) == lacking


NO_COUNTER = {"nvmlDeviceGetTotalEnergyConsumption": fake.NOT_SUPPORTED}


@pytest.mark.parametrize(
    ("gpu", "source"),
    [
        (FakeGpu("GPU-a", energy_tick_s=0.01), "counter"),
        (FakeGpu("GPU-a", errors=NO_COUNTER), "power"),
        (FakeGpu("GPU-a", errors=NO_COUNTER, power_w=0.0), None),
        (FakeGpu("GPU-other"), None),
    ],
)
def test_the_source_of_energy_is_found_by_calling(see, gpu, source):
    start = time.monotonic()
    see((9, 0), driver=FakeDriver([gpu], clock=lambda: time.monotonic() - start))
    (device,) = survey.survey(None).devices
    assert device.energy == source


@pytest.mark.parametrize(("errors", "source"), [({}, "counter"), (NO_COUNTER, "power")])
def test_gpus_that_train_together_have_their_energy_from_what_each_of_them_has(see, errors, source):
    start = time.monotonic()
    gpus = [FakeGpu("GPU-a", energy_tick_s=0.01)]
    gpus.append(FakeGpu("GPU-b", energy_tick_s=0.01, errors=errors))
    see((9, 0), (9, 0), driver=FakeDriver(gpus, clock=lambda: time.monotonic() - start))
    (device,) = survey.survey(("0+1",)).devices
    assert (device.energy, device.uuids) == (source, ("GPU-a", "GPU-b"))


def test_an_index_beyond_the_last_is_refused_with_the_last(see):
    see((8, 0))
    with pytest.raises(UsageError, match=r"no GPU 1 here: the last is GPU 0\. .* --gpus cpu"):
        survey.survey(("0", "1"))


def test_without_a_gpu_the_sentence_says_why_and_what_to_do(monkeypatch):
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 0)
    monkeypatch.setattr(backend, "monitor_problem", lambda: "no library")
    message = r"no GPU 0 here: no NVIDIA driver answers \(no library\). Use --gpus cpu"
    with pytest.raises(UsageError, match=message):
        survey.survey(("0", "1"))
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(UsageError, match="built without CUDA"):
        survey.survey(("0",))


def test_a_visible_gpu_that_cudnn_does_not_support_leaves_its_version_unknown(see, monkeypatch):
    def version():
        raise RuntimeError("cuDNN version 92400 is not compatible with devices with SM < 7.5.")

    see((8, 0))
    monkeypatch.setattr(torch.backends.cudnn, "version", version)
    assert survey.survey(("0",)).cudnn is None


def test_a_gpu_whose_memory_is_full_is_described_without_its_speed(see, monkeypatch):
    error = torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 64.00 MiB.")

    def gflops(device, size, dtype=torch.float32):
        raise error

    see((8, 0))
    monkeypatch.setattr(survey, "_gflops", gflops)
    (device,) = survey.survey(("0",)).devices
    assert (device.architecture, device.fp32_gflops) == ("Ampere", None)
    error = RuntimeError("CUDA error: an illegal memory access was encountered")
    with pytest.raises(RuntimeError, match="illegal"):
        survey.survey(("0",))
