"""Six generations of GPUs: what each precision says there, and one report over all of them.

A torch for CUDA 13 has no kernels for P100 and V100, one for CUDA 12.4 none for B200. There its
refusal is tested, and a run with a made-up list of architectures that has them all.
"""

import json

import pytest
import torch

from bench.spec.precisions import PRECISIONS
from tests.simgpu.machine import MODELS

ALL = "fp32,tf32,default,amp-fp16,amp-bf16,amp-fp16-noscale,fp16-master,fp16,bf16"
WORDS = (
    "--suite tiny.py --batch-sizes 4 --quick --time-budget 0.3 --target-ci 99% --gpus 0 --out out"
)
MADE_UP = "sm_50,sm_60,sm_70,sm_75,sm_80,sm_90,sm_100"
BUILT_FOR = [divmod(int(name[3:]), 10) for name in (torch._C._cuda_getArchFlags() or "").split()]
"""The architectures that torch has kernels for, as major and minor version."""


def has_kernels(capability):
    """Whether torch has kernels for a GPU: those of its major version and no later minor one."""
    major, minor = map(int, capability.split("."))
    return any(built[0] == major and built[1] <= minor for built in BUILT_FOR)


WITHOUT_KERNELS = [name for name, model in MODELS.items() if not has_kernels(model.capability)]
OLD = {"tf32", "default", "amp-bf16", "bf16"}
"""Precisions that no GPU before Ampere has."""
CANNOT = {"P100": OLD, "V100": OLD, "T4": OLD, "A100": set(), "H100": set(), "B200": set()}
ARCHITECTURES = {
    "P100": "Pascal",
    "V100": "Volta",
    "T4": "Turing",
    "A100": "Ampere",
    "H100": "Hopper",
    "B200": "Blackwell",
}


@pytest.fixture(scope="module")
def runs(host):
    """Runs of every precision, by model; each made when it is first asked for."""
    machines = {}

    def run(name):
        if name not in machines:
            variables = {"SIM_ARCH_LIST": MADE_UP} if name in WITHOUT_KERNELS else {}
            server = host(name, **variables)
            server.run(f"{WORDS} --precisions {ALL} --phases memory,speed")
            machines[name] = server
        return machines[name]

    return run


@pytest.mark.parametrize("name", WITHOUT_KERNELS)
def test_a_gpu_without_kernels_in_this_torch_is_refused_with_what_to_install(host, name):
    done = host(name).run(WORDS, code=2)
    capability = MODELS[name].capability.replace(".", "")
    assert f"sm_{capability}" in done.stderr
    assert "Pascal and Volta need one for CUDA 12.6 or older" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_each_precision_is_measured_or_says_what_the_gpu_lacks(runs, name):
    rows, lacking = runs(name).rows("out"), CANNOT[name]
    memory = {row["precision"]: row for row in rows if row["phase"] == "memory"}
    assert set(memory) == set(ALL.split(","))
    for precision, row in memory.items():
        if precision in lacking:
            assert row["status"] == "unsupported"
            assert f"sm_{MODELS[name].capability.replace('.', '')}" in row["detail"]
        else:
            assert row["status"] == "ok", row["detail"]
    speed = [row for row in rows if row["phase"] == "speed" and row["precision"] not in lacking]
    in_order = [precision for precision in PRECISIONS if precision in memory.keys() - lacking]
    assert [row["precision"] for row in speed] == in_order
    for row in speed:
        assert row["status"] in ("ok", "unconverged")
        tf32 = {"tf32": ("tf32", "tf32", "tf32"), "default": ("ieee", "tf32", "tf32")}
        switches = (row["fp32_matmul"], row["fp32_conv"], row["fp32_rnn"])
        assert switches == tf32.get(row["precision"], ("ieee", "ieee", "ieee"))


@pytest.mark.parametrize(("name", "native"), [("T4", False), ("A100", True)])
def test_whether_bfloat16_is_native_is_asked_of_torch_and_listed(host, name, native):
    server = host(name)
    done = server.run("list --gpus --json")
    assert json.loads(done.stdout)["devices"][0]["native_bf16"] is native
    assert ("bfloat16 is emulated" in server.run("list --gpus").stdout) != native


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
    done = server.run(line, code=2)
    assert "It can do: fp32, amp-fp16" in done.stderr


@pytest.mark.parametrize("name", MODELS)
def test_a_run_tells_the_gpu_as_cuda_and_nvml_know_it(runs, name):
    run = json.loads((runs(name).folder / "out" / "run.json").read_text())
    (device,) = run["environment"]["devices"]
    model = MODELS[name]
    assert (device["name"], device["architecture"]) == (model.name, ARCHITECTURES[name])
    assert device["compute_capability"] == model.capability
    assert device["memory_total_bytes"] == model.memory_mib * 2**20
    assert device["power_limit_w"] == model.power_w
    assert device["energy"] == ("power" if model.nvml_lacks == "energy" else "counter")


@pytest.fixture(scope="module")
def merged(runs):
    """One report over the six runs: its page, and its figures as JSON."""
    folders, server = " ".join(f"{runs(name).folder}/out" for name in MODELS), runs("A100")
    server.run(f"report {folders} --out six")
    figures = server.run(f"report {folders} --json")
    return (server.folder / "six" / "report.html").read_text(), json.loads(figures.stdout)


def test_one_report_keeps_the_generations_apart_though_all_are_gpu_0_of_one_host(merged):
    page, figures = merged
    assert all(ARCHITECTURES[name] in page for name in MODELS)
    assert "from sm_80 on" in page
    timed = [row for row in figures["results"] if row["step_ms"] is not None]
    for name, model in MODELS.items():
        rows = [row for row in timed if row["device"] == model.name]
        assert {row["architecture"] for row in rows} == {ARCHITECTURES[name]}
        assert {row["precision"] for row in rows} == set(ALL.split(",")) - CANNOT[name]
    names = sorted(model.name for model in MODELS.values())
    assert sorted({row["device"] for row in timed}) == names
    answered = [answer["where"] for answer in figures["answers"]]
    assert sorted(answered) == names
