"""Features of GPUs alone, by the command line.

Several of them, NCCL, energy, graphs, the end of memory, gaps of NVML, neighbours and scripts.
"""

import contextlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.results.store import arm_name
from tests.conftest import TINY as TINY_SUITE
from tests.rows import trial_figures
from tests.simgpu.conftest import ROOT

SHORT = "--quick --time-budget 0.3 --target-ci 99% --gpus 0 --out out"
TINY = f"--suite tiny.py --batch-sizes 4 {SHORT}"


def assert_timed(server, run="out"):
    for row in server.rows(run=run):
        assert row["status"] in ("ok", "unconverged"), row["detail"]


@pytest.fixture(scope="module")
def pair(host):
    """A machine with two GPUs on which each was measured alone, and both together, over NCCL."""
    server = host(count=2)
    words = "--gpus 0,1,0+1 --precisions fp32 --phases memory,speed,train --epochs 1"
    server.run_anew(f"{TINY} {words}")
    return server


def test_gpus_are_measured_one_after_the_other_and_together_and_nothing_is_left_behind(pair):
    for phase in ("memory", "speed", "train"):
        placements = {row["placement"] for row in pair.rows(phase)}
        assert placements == {"0", "1", "0+1"}
    assert_timed(pair)
    assert pair.left_behind() == []


def test_the_driver_tells_the_memory_of_the_very_gpu_that_cuda_used(pair):
    for row in pair.rows("memory"):
        assert float(row["driver_used_bytes"]) > float(row["peak_reserved_bytes"]) > 0


def test_gpus_that_train_together_learn_what_one_learns(pair):
    losses = {}
    for row in trial_figures(pair.folder / "out"):
        placement = row["placement"]
        if row["phase"] == "train":
            losses[placement] = row["train_loss"]
    assert losses["0"] == losses["1"]
    assert losses["0+1"] == pytest.approx(losses["0"], rel=1e-3)


@pytest.fixture(scope="module")
def single(host):
    """A machine with one GPU on which energy and inference were measured, the ladder climbed, and
    steps captured.
    """
    server = host("H100", NVIDIA_TF32_OVERRIDE="1")
    server.run_anew(f"{TINY} --precisions fp32,amp-fp16 --phases energy,inference")
    words = "--precisions fp32 --phases memory,speed,train --epochs 1"
    server.run(f"{TINY} {words} --techniques cuda-graphs --ladder --out graphs")
    return server


def test_energy_is_that_of_the_power_that_nvml_tells_and_inference_is_timed(single):
    assert_timed(single)
    for row in single.rows("energy"):
        assert row["energy_source"] == "counter"
        idle_w = float(row["idle_power_w"])
        assert idle_w == pytest.approx(60, rel=0.1)  # native/nvml.cpp
        assert 60 < float(row["mean_power_w"]) < 301
    rows = single.rows("inference")
    assert len(rows) == 2
    for row in rows:
        assert float(row["inference_samples_per_s"]) > 0


def test_a_variable_that_forces_tf32_is_unset_and_recorded(single):
    environment = single.recorded_environment()
    assert environment["removed_variables"] == ["NVIDIA_TF32_OVERRIDE=1"]


def test_without_recorded_kernels_the_explain_phase_says_so_and_gives_no_reason(host):
    printed = host().run(f"explain {TINY} --precisions fp32,amp-fp16 --phases memory")
    assert "No explanation: torch.profiler recorded no kernels" in printed


def test_the_module_that_overflows_in_float16_is_found_and_kept(host):
    server = host()
    offset = "lambda x: ((x.half() if torch.is_autocast_enabled('cuda') else x) + 2e4) * 2 - 4e4"
    layer = f"type('Offset', (nn.Module,), {{'forward': lambda self, x: ({offset})(x)}})()"
    suite = TINY_SUITE.replace("nn.ReLU()", layer)
    (server.folder / "tiny.py").write_text(f"import torch\n{suite}")
    printed = server.run("layers --gpus 0 --precisions amp-fp16 --suite tiny.py --quick --out out")
    assert "keep 2 in fp32, as in --precisions amp-fp16:keep=2" in printed
    assert "fnmatchcase(name, pattern) for pattern in ['2']" in printed


def test_captured_steps_are_measured_and_trained_and_the_ladder_climbs_up_to_them(single):
    assert_timed(single, "graphs")
    last = single.rows("speed", "graphs")[-1]
    assert last["ablation"] == "yes"
    assert arm_name(last) == "fp32+set-to-none+non-blocking+prefetcher+cuda-graphs"
    assert single.left_behind() == []


def losses(server, run, words):
    """Train for four epochs and keep the checkpoints; return the loss of each epoch."""
    training = "--phases train --epochs 4 --set lr=0.05 --keep-checkpoints"
    server.run(f"{TINY} {training} --out {run} {words}")
    epochs = server.rows("epochs", run)
    return [float(row["train_loss"]) for row in epochs]


def test_a_training_goes_on_in_fp16_and_back_in_fp32_without_a_jump(host):
    server = host()
    first, second, third, fourth = losses(server, "whole", "--precisions fp32")
    assert fourth < first
    (start,) = server.folder.glob("whole/checkpoints/*-e1.pt")
    half = losses(server, "half", f"--precisions amp-fp16 --from={start}")
    assert half == pytest.approx([second, third, fourth], rel=1e-2)
    (start,) = server.folder.glob("half/checkpoints/*-e2.pt")
    back = losses(server, "back", f"--precisions fp32 --from={start}")
    assert back == pytest.approx([third, fourth], rel=1e-2)


def test_the_largest_batch_is_where_memory_ends(host):
    server = host(SIM_MEM_MB="1024")
    suite = f"--suite {ROOT}/tests/simgpu/faulty.py --set side=128 --set batch_size=256"
    server.run(f"{suite} {SHORT} --batch-sizes max --precisions fp32 --phases memory")
    fit, memory = server.rows()
    assert fit["fit_bound"] == "memory"
    assert "oom" in fit["detail"]
    assert fit["batch_size"] != "256"
    assert memory["batch_size"] == fit["batch_size"]
    peak_bytes = float(memory["peak_reserved_bytes"])
    assert peak_bytes <= float(fit["fit_free_bytes"]) < 2**30


@pytest.mark.parametrize(
    ("lacking", "sources"),
    [
        ("energy", ["power"]),
        ("power", ["counter"]),
        ("energy,instant", ["power"]),
        ("memory_v2", ["counter"]),
        ("energy,instant,power", []),
    ],
)
def test_an_older_driver_tells_energy_by_what_it_has(host, lacking, sources):
    server = host("T4", SIM_NVML_OFF=lacking)
    printed = server.run(f"{TINY} --precisions fp32 --phases memory,energy")
    (memory,) = server.rows("memory")
    assert float(memory["driver_used_bytes"]) > 0
    assert [row["energy_source"] for row in server.rows("energy")] == sources
    is_warned = "GPU 0 tells neither energy nor power" in printed
    assert is_warned == (sources == [])


@contextlib.contextmanager
def neighbour(server):
    """Run another program on the machine's GPU 0."""
    command = [sys.executable, "-m", "tests.simgpu.neighbour"]
    environment = server.environment()
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            yield process.pid
        finally:
            process.kill()


def wait_for_rows(server, run, count):
    while len(server.rows()) < count:
        assert not run.done()
        time.sleep(0.1)


def test_a_process_beside_a_neighbour_is_named_and_left_out_and_another_takes_its_place(host):
    server = host()
    words = "--suite tiny.py --batch-sizes 4 --time-budget 5s --gpus 0 --phases speed"
    with ThreadPoolExecutor() as pool:
        run = pool.submit(server.run, f"{words} --precisions fp32,amp-bf16 --out out")
        wait_for_rows(server, run, 2)  # the first process has ended
        with neighbour(server) as pid:
            wait_for_rows(server, run, 4)
        run.result()
    replicates = set()
    for row in server.rows():
        replicates.add(row["replicate"])
        if row["replicate"] == "1":
            assert f"pid {pid}" in row["disturbance"]
        else:
            assert row["disturbance"] == ""
    trials = load([server.folder / "out"]).trials
    compared = summarise(trials).set_index("precision").loc["amp-bf16"]
    count = len(replicates)
    assert compared["measured_in"] == f"{count - 1} of {count} processes"
    assert "disturbed" not in compared["doubts"]


SCRIPT = """
import sys

import torch

if "--tf32" in sys.argv:
    torch.backends.cuda.matmul.fp32_precision = "tf32"
model = torch.nn.Linear(64, 64).cuda()
optimizer = torch.optim.AdamW(model.parameters())
for step in range(100):
    model(torch.randn(32, 64, device="cuda")).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
"""


@pytest.mark.slow
def test_a_script_is_timed_by_events_of_its_gpu_and_takes_memory_there(host):
    server = host()
    (server.folder / "train.py").write_text(SCRIPT)
    words = "--quick --steps 20 --arm fp32= --arm tf32=--tf32 --gpus 0 --out out"
    server.run_anew(f"script {words} -- train.py")
    fp32, tf32 = server.rows("memory")
    assert fp32["compute_dtypes"] == "float32:100%"
    assert tf32["compute_dtypes"] == "tf32:100%"
    assert float(fp32["peak_allocated_bytes"]) > 0
    (profile,) = server.folder.rglob("profiles/fp32.json")
    steps = json.loads(profile.read_text())["steps"]
    for step in steps:
        assert step["gpu_s"] is not None
    assert_timed(server)
    assert not server.left_behind()


SPAWNED = """
import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel


def train(rank, world):
    distributed.init_process_group("nccl", "tcp://127.0.0.1:29533", rank=rank, world_size=world)
    torch.cuda.set_device(rank)
    model = DistributedDataParallel(torch.nn.Linear(64, 64).cuda(), device_ids=[rank])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for step in range(100):
        model(torch.randn(32, 64, device="cuda")).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
        if rank == 0 and step == 5:
            torch.save(model.state_dict(), "checkpoint.pt")


if __name__ == "__main__":
    multiprocessing.spawn(train, (torch.cuda.device_count(),), torch.cuda.device_count())
"""


@pytest.mark.slow
def test_processes_that_a_script_spawns_are_measured_together_and_overwrite_no_checkpoint(host):
    server = host(count=2)
    (server.folder / "train.py").write_text(SPAWNED)
    (server.folder / "checkpoint.pt").write_text("the user's")
    words = "--quick --steps 20 --inject fp32,amp-bf16 --gpus 0+1 --out out"
    server.run_anew(f"script {words} -- train.py")
    assert_timed(server)
    fp32, bf16 = server.rows("memory")
    assert fp32["compute_dtypes"] == "float32:100%"
    assert bf16["compute_dtypes"] == "bfloat16:100%"
    assert (server.folder / "checkpoint.pt").read_text() == "the user's"
    assert not server.left_behind()
