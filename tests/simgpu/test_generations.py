"""Six generations of GPUs: what each precision says there, and one report over all of them.

A torch for CUDA 13 has no kernels for P100 and V100, one for CUDA 12.4 none for B200. There its
refusal is tested, and a run with a made-up list of architectures that has them all.
"""

import json
from collections import defaultdict

import pytest
import torch

from bench.devices.nvidia import runs_on
from tests.simgpu.machine import MODELS

ON_ALL = ["fp32", "amp-fp16", "amp-fp16-noscale", "fp16-master", "fp16"]
ASKED = [*ON_ALL, "tf32", "default", "amp-bf16", "bf16"]
"""The last four need an Ampere or later."""
WORDS = (
    "--suite tiny.py --batch-sizes 4 --quick --time-budget 0.3 --target-ci 99% --gpus 0 --out out"
)
MADE_UP = "sm_50,sm_60,sm_70,sm_75,sm_80,sm_90,sm_100"
BUILT_FOR = (torch._C._cuda_getArchFlags() or "").split()
WITHOUT_KERNELS = [name for name, model in MODELS.items() if not runs_on(model.sm, BUILT_FOR)]
NEW = ("A100", "H100", "B200")
SWITCHES = {
    "tf32": ["tf32", "tf32", "tf32"],
    "default": ["ieee", "tf32", "tf32"],
}
"""Of products, convolutions and recurrent layers; those of every other precision are IEEE's."""


def able(name):
    """Return the precisions that a model has."""
    return set(ASKED if name in NEW else ON_ALL)


@pytest.fixture(scope="module")
def runs(host):
    """Runs of every precision, by model; each made when it is first asked for."""
    machines = {}

    def run(name):
        if name not in machines:
            variables = {"SIM_ARCH_LIST": MADE_UP} if name in WITHOUT_KERNELS else {}
            machines[name] = host(name, **variables)
            precisions = ",".join(ASKED)
            machines[name].run(f"{WORDS} --precisions {precisions} --phases memory,speed")
        return machines[name]

    return run


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_a_gpu_without_kernels_in_this_torch_is_refused_with_what_to_install(host, name):
    printed = host(name).run(WORDS, code=2)
    assert MODELS[name].sm in printed
    assert "Pascal and Volta need one for CUDA 12.6 or older" in printed
    assert "Traceback" not in printed


@pytest.mark.parametrize("name", MODELS)
def test_each_precision_is_measured_or_says_what_the_gpu_lacks(runs, name):
    memory = runs(name).rows("memory")
    assert {row["precision"] for row in memory} == set(ASKED)
    for row in memory:
        if row["precision"] in able(name):
            assert row["status"] == "ok"
        else:
            assert row["status"] == "unsupported"
            assert MODELS[name].sm in row["detail"]
    timed = set()
    for row in runs(name).rows("speed"):
        precision = row["precision"]
        assert row["status"] in ("ok", "unconverged"), row["detail"]
        timed.add(precision)
        switches = [row["fp32_matmul"], row["fp32_conv"], row["fp32_rnn"]]
        assert switches == SWITCHES.get(precision, ["ieee", "ieee", "ieee"])
    assert timed == able(name)


@pytest.mark.parametrize(
    "line",
    [
        "--precisions fp32,amp-bf16 --suite mlp --set width=8 --phases speed --quick --gpus 0",
        "script --inject fp32,amp-bf16 --quick --gpus 0 -- train.py",
    ],
)
def test_a_run_whose_precisions_leave_no_pair_says_what_the_gpu_can_do_and_is_refused(host, line):
    server = host("T4")
    (server.folder / "train.py").write_text("import torch\nraise SystemExit('never reached')")
    printed = server.run(line, code=2)
    assert "It can do: fp32, amp-fp16" in printed


@pytest.mark.parametrize("name", MODELS)
def test_a_run_tells_the_gpu_as_cuda_and_nvml_know_it(runs, name):
    (device,) = runs(name).recorded_environment()["devices"]
    model = MODELS[name]
    expected = {
        "name": model.name,
        "architecture": model.architecture,
        "compute_capability": model.capability,
        "native_bf16": name in NEW,
        "memory_total_bytes": model.memory_mib * 2**20,
        "power_limit_w": model.power_w,
        "energy": "power" if model.nvml_lacks == "energy" else "counter",
    }
    assert device | expected == device


def test_one_report_keeps_the_generations_apart_though_all_are_gpu_0_of_one_host(runs):
    folders = " ".join(str(runs(name).folder / "out") for name in MODELS)
    server = runs("A100")
    server.run(f"report {folders} --out six")
    page = (server.folder / "six" / "report.html").read_text()
    assert "from sm_80 on" in page
    printed = server.run(f"report {folders} --json")
    # A library of torch's may say on stderr at the end what it has leaked.
    figures, _ = json.JSONDecoder().raw_decode(printed)
    answered = [answer["where"] for answer in figures["answers"]]
    timed = defaultdict(set)
    for row in figures["results"]:
        if row["step_ms"] is not None:
            gpu = row["device"], row["architecture"]
            timed[gpu].add(row["precision"])
    assert len(timed) == len(answered) == len(MODELS)
    for name, model in MODELS.items():
        assert model.architecture in page
        assert model.name in answered
        assert timed[model.name, model.architecture] == able(name)
