"""Six generations of GPUs: what each precision says there, and one report over all of them.

A torch for CUDA 13 has no kernels for P100 and V100, one for CUDA 12.4 none for B200. There its
refusal is tested, and a run with a made-up list of architectures that has them all.
"""

import json
from itertools import product

import pytest
import torch

from bench.devices.nvidia import runs_on
from bench.spec.precisions import PRECISIONS
from tests.simgpu.machine import MODELS

ALL = "fp32,tf32,default,amp-fp16,amp-bf16,amp-fp16-noscale,fp16-master,fp16,bf16"
WORDS = (
    "--suite tiny.py --batch-sizes 4 --quick --time-budget 0.3 --target-ci 99% --gpus 0 --out out"
)
MADE_UP = "sm_50,sm_60,sm_70,sm_75,sm_80,sm_90,sm_100"
BUILT_FOR = (torch._C._cuda_getArchFlags() or "").split()
WITHOUT_KERNELS = [name for name, model in MODELS.items() if not runs_on(model.sm, BUILT_FOR)]
OLD = {"tf32", "default", "amp-bf16", "bf16"}
"""Precisions that no GPU before Ampere has."""
NEW = ("A100", "H100", "B200")


def able(name):
    """Return the precisions that a model has, in their order."""
    lacking = set() if name in NEW else OLD
    return [each for each in PRECISIONS if each in ALL.split(",") and each not in lacking]


@pytest.fixture(scope="module")
def runs(host):
    """Runs of every precision, by model; each made when it is first asked for."""
    machines = {}

    def run(name):
        if name not in machines:
            variables = {"SIM_ARCH_LIST": MADE_UP} if name in WITHOUT_KERNELS else {}
            machines[name] = host(name, **variables)
            machines[name].run(f"{WORDS} --precisions {ALL} --phases memory,speed")
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
    memory, speed = set(), []
    for row in runs(name).rows("out"):
        precision = row["precision"]
        if precision not in able(name):
            assert row["status"] == "unsupported"
            assert MODELS[name].sm in row["detail"]
        else:
            assert row["status"] in ("ok", "unconverged"), row["detail"]
        if row["phase"] == "memory":
            memory.add(precision)
        elif precision in able(name):
            speed.append(precision)
            tf32 = {"tf32": ("tf32", "tf32", "tf32"), "default": ("ieee", "tf32", "tf32")}
            switches = (row["fp32_matmul"], row["fp32_conv"], row["fp32_rnn"])
            assert switches == tf32.get(precision, ("ieee", "ieee", "ieee"))
    assert memory == set(ALL.split(","))
    assert speed == able(name)


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
    run = json.loads((runs(name).folder / "out" / "run.json").read_text())
    (device,) = run["environment"]["devices"]
    model = MODELS[name]
    assert (device["name"], device["architecture"]) == (model.name, model.architecture)
    assert device["compute_capability"] == model.capability
    assert device["native_bf16"] is (name in NEW)
    assert device["memory_total_bytes"] == model.memory_mib * 2**20
    assert device["power_limit_w"] == model.power_w
    assert device["energy"] == ("power" if model.nvml_lacks == "energy" else "counter")


def test_one_report_keeps_the_generations_apart_though_all_are_gpu_0_of_one_host(runs):
    folders, server = " ".join(f"{runs(name).folder}/out" for name in MODELS), runs("A100")
    server.run(f"report {folders} --out six")
    page = (server.folder / "six" / "report.html").read_text()
    assert "from sm_80 on" in page
    printed = server.run(f"report {folders} --json")
    # A library of torch's may say on stderr at the end what it has leaked.
    figures, _ = json.JSONDecoder().raw_decode(printed)
    timed = set()
    for row in figures["results"]:
        if row["step_ms"] is not None:
            timed.add((row["device"], row["architecture"], row["precision"]))
    expected = set()
    for name, model in MODELS.items():
        assert model.architecture in page
        expected |= set(product([model.name], [model.architecture], able(name)))
    assert timed == expected
    answered = sorted(answer["where"] for answer in figures["answers"])
    assert answered == sorted(model.name for model in MODELS.values())
