"""Features of GPUs alone, by the command line.

Several of them, NCCL, energy, graphs, the end of memory, gaps of NVML, neighbours and scripts.
"""

import contextlib
import json
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from itertools import product

import pytest

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from bench.results.store import arm_name
from tests.rows import trial_figures
from tests.simgpu.conftest import ROOT

SHORT = "--quick --time-budget 0.3 --target-ci 99% --gpus 0 --out out"
TINY = f"--suite tiny.py --batch-sizes 4 {SHORT}"
TIMED = {"ok", "unconverged"}


def column(server, table, name):
    """Return a column of a run's table as numbers."""
    return [float(row[name]) for row in server.rows("out", table)]


def statuses(server, run="out"):
    return {row["status"] for row in server.rows(run)}


@pytest.fixture(scope="module")
def pair(host):
    """A machine with two GPUs on which each was measured alone, and both together, over NCCL."""
    server = host("A100", 2)
    words = "--gpus 0,1,0+1 --precisions fp32 --phases memory,speed,train --epochs 1"
    server.run_anew(f"{TINY} {words}")
    return server


def test_gpus_are_measured_one_after_the_other_and_together_and_nothing_is_left_behind(pair):
    measured = {(row["placement"], row["phase"]) for row in pair.rows("out")}
    assert measured == set(product(("0", "1", "0+1"), ("memory", "speed", "train")))
    assert statuses(pair) <= TIMED
    assert pair.left_behind() == []


def test_the_driver_tells_the_memory_of_the_very_gpu_that_cuda_used(pair):
    for row in pair.rows("out", "memory"):
        assert float(row["driver_used_bytes"]) > float(row["peak_reserved_bytes"]) > 0


def test_gpus_that_train_together_learn_what_one_learns(pair):
    losses = {}
    for row in trial_figures(pair.folder / "out"):
        if row["phase"] == "train":
            losses[row["placement"]] = row["train_loss"]
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
    assert statuses(single) <= TIMED
    for row in single.rows("out", "energy"):
        assert row["energy_source"] == "counter"
        assert float(row["idle_power_w"]) == pytest.approx(60, rel=0.1)  # native/nvml.cpp
        assert 60 < float(row["mean_power_w"]) < 301
    assert len(column(single, "inference", "inference_samples_per_s")) == 2


def test_a_variable_that_forces_tf32_is_unset_and_recorded(single):
    run = json.loads((single.folder / "out" / "run.json").read_text())
    assert run["environment"]["removed_variables"] == ["NVIDIA_TF32_OVERRIDE=1"]


def test_without_recorded_kernels_the_explain_phase_says_so_and_gives_no_reason(host):
    printed = host("A100").run(f"explain {TINY} --precisions fp32,amp-fp16 --phases memory")
    assert "No explanation: torch.profiler recorded no kernels" in printed


def test_the_module_that_overflows_in_float16_is_found_and_kept(host):
    server = host("A100")
    offset = "lambda x: ((x.half() if torch.is_autocast_enabled('cuda') else x) + 2e4) * 2 - 4e4"
    layer = f"type('Offset', (nn.Module,), {{'forward': lambda self, x: ({offset})(x)}})()"
    file = server.folder / "tiny.py"
    file.write_text("import torch\n" + file.read_text().replace("nn.ReLU()", layer))
    printed = server.run("layers --gpus 0 --precisions amp-fp16 --suite tiny.py --quick --out out")
    assert "keep 2 in fp32, as in --precisions amp-fp16:keep=2" in printed
    assert "fnmatchcase(name, pattern) for pattern in ['2']" in printed


def test_captured_steps_are_measured_and_trained_and_the_ladder_climbs_up_to_them(single):
    assert statuses(single, "graphs") <= TIMED
    ladder = [row for row in single.rows("graphs", "speed") if row["ablation"] == "yes"]
    assert arm_name(ladder[-1]) == "fp32+set-to-none+non-blocking+prefetcher+cuda-graphs"
    assert single.left_behind() == []


def test_a_training_goes_on_in_fp16_and_back_in_fp32_without_a_jump(host):
    server = host("A100")

    def losses(out, precision, resumed=None, epoch=None):
        more = ""
        if resumed:
            (checkpoint,) = server.folder.glob(f"{resumed}/checkpoints/*-e{epoch}.pt")
            more = f"--from={checkpoint}"
        words = "--phases train --epochs 4 --set lr=0.05 --keep-checkpoints"
        server.run(f"{TINY} {words} --precisions {precision} --out {out} {more}")
        return [float(row["train_loss"]) for row in server.rows(out, "epochs")]

    whole = losses("whole", "fp32")
    assert whole[3] < whole[0]
    half = losses("half", "amp-fp16", "whole", 1)
    assert half == pytest.approx(whole[1:], rel=1e-2)
    back = losses("back", "fp32", "half", 2)
    assert back == pytest.approx(whole[2:], rel=1e-2)


def test_the_largest_batch_is_where_memory_ends(host):
    server = host("A100", SIM_MEM_MB="1024")
    suite = f"--suite {ROOT}/tests/simgpu/faulty.py --set side=128 --set batch_size=256"
    server.run(f"{suite} {SHORT} --batch-sizes max --precisions fp32 --phases memory")
    fit, memory = server.rows("out")
    assert (fit["phase"], fit["fit_bound"], fit["status"]) == ("fit", "memory", "ok")
    assert "oom" in fit["detail"]
    assert memory["batch_size"] == fit["batch_size"] != "256"
    assert float(memory["peak_reserved_bytes"]) <= float(fit["fit_free_bytes"]) < 1024 * 2**20


@pytest.mark.parametrize(
    ("lacking", "source"),
    [
        ("energy", "power"),
        ("power", "counter"),
        ("energy,instant", "power"),
        ("memory_v2", "counter"),
        ("energy,instant,power", None),
    ],
)
def test_an_older_driver_tells_energy_by_what_it_has(host, lacking, source):
    server = host("T4", SIM_NVML_OFF=lacking)
    printed = server.run(f"{TINY} --precisions fp32 --phases memory,energy")
    (memory,) = column(server, "memory", "driver_used_bytes")
    assert memory > 0
    energy = [(row["status"], row["energy_source"]) for row in server.rows("out", "energy")]
    assert energy == ([("ok", source)] if source else [])
    assert ("GPU 0 tells neither energy nor power" in printed) == (source is None)


@contextlib.contextmanager
def neighbour(server):
    """Run another program on the machine's GPU 0."""
    command = [sys.executable, "-m", "tests.simgpu.neighbour", "0", "512"]
    options = {"cwd": ROOT, "env": server.environment(), "stdout": subprocess.PIPE, "text": True}
    with subprocess.Popen(command, **options) as process:
        try:
            assert process.stdout.readline() == "begun\n"
            yield process.pid
        finally:
            process.kill()


def test_a_process_beside_a_neighbour_is_named_and_left_out_and_another_takes_its_place(host):
    server = host("A100")
    words = "--suite tiny.py --batch-sizes 4 --time-budget 5s --gpus 0 --phases speed"

    def until(rows):
        while len(server.rows("out")) < rows:
            assert not run.done()
            time.sleep(0.1)

    with ThreadPoolExecutor() as pool:
        run = pool.submit(server.run, f"{words} --precisions fp32,amp-bf16 --out out")
        until(2)  # the first process has ended
        with neighbour(server) as pid:
            until(4)
        run.result()
    disturbances = {row["replicate"]: row["disturbance"] for row in server.rows("out")}
    for replicate, disturbance in disturbances.items():
        assert (f"pid {pid}" in disturbance) == bool(disturbance) == (replicate == "1")
    summary = summarise(load([server.folder / "out"]).trials).set_index("precision")
    compared = summary.loc["amp-bf16"]
    count = len(disturbances)
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


def computed(server):
    """Return the types that a script's arms multiplied in."""
    return [row["compute_dtypes"] for row in server.rows("out", "memory")]


@pytest.mark.slow
def test_a_script_is_timed_by_events_of_its_gpu_and_takes_memory_there(host):
    server = host("A100")
    (server.folder / "train.py").write_text(SCRIPT)
    words = "--quick --steps 20 --arm fp32= --arm tf32=--tf32 --gpus 0 --out out"
    server.run_anew(f"script {words} -- train.py")
    assert computed(server) == ["float32:100%", "tf32:100%"]
    assert min(column(server, "memory", "peak_allocated_bytes")) > 0
    profile = json.loads(next(server.folder.rglob("profiles/fp32.json")).read_text())
    assert None not in [step["gpu_s"] for step in profile["steps"]]
    assert statuses(server) <= TIMED
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
    server = host("A100", 2)
    (server.folder / "train.py").write_text(SPAWNED)
    (server.folder / "checkpoint.pt").write_text("the user's")
    words = "--quick --steps 20 --inject fp32,amp-bf16 --gpus 0+1 --out out"
    server.run_anew(f"script {words} -- train.py")
    assert statuses(server) <= TIMED
    assert computed(server) == ["float32:100%", "bfloat16:100%"]
    assert (server.folder / "checkpoint.pt").read_text() == "the user's"
    assert not server.left_behind()
