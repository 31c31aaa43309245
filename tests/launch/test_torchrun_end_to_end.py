"""Two agents of torchrun on one host: what their ranks measure together, and what a rank leaves that is killed."""

import json
import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import ExitStack, suppress
from pathlib import Path

import psutil
import pytest
import torch

from tests.conftest import TINY
from tests.end_to_end.test_end_to_end import fill, table

ROOT = Path(__file__).resolve().parents[2]
KEEPS = """

def _kept(optimizer):
    import os
    import torch

    def keep(*_):
        weights = [parameter.detach().clone() for group in optimizer.param_groups for parameter in group["params"]]
        torch.save(weights, os.path.join("FOLDER", os.environ.get("RANK", "alone") + ".pt"))

    optimizer.register_step_post_hook(keep)
    return optimizer
"""
"""A suite's optimizer that keeps the weights after each step, of each rank apart."""
TINY_SUITE = ("--suite", "tiny.py", "--precisions", "fp32", "--batch-sizes", "8")


def free_port():
    with socket.create_server(("127.0.0.1", 0)) as server:
        return server.getsockname()[1]


@pytest.fixture
def homes(tmp_path):
    """What two nodes have: the same suite and the same images, each in a folder of its own."""
    both = tmp_path / "front", tmp_path / "other"
    for home in both:
        home.mkdir()
        fill(home)
    return both


@pytest.fixture
def start():
    """Start torchrun, or ranks without it, and end them at last."""
    with ExitStack() as stack:

        def run(command, cwd, **variables):
            process = stack.enter_context(
                subprocess.Popen(
                    [sys.executable, *map(str, command)],
                    cwd=cwd,
                    env={**os.environ, **variables},
                    stdout=subprocess.PIPE,
                    stderr=subprocess.STDOUT,
                    text=True,
                )
            )
            stack.callback(process.kill)
            return process

        yield run


def agent(port, ranks, words):
    options = ["--nnodes=2", f"--nproc-per-node={ranks}", "--rdzv-backend=c10d", f"--rdzv-endpoint=127.0.0.1:{port}"]
    return ["-m", "torch.distributed.run", *options, ROOT / "run_bench.py", *words]


def srun(port, rank):
    """Return the variables of srun for one of two tasks on one node."""
    own = {"SLURM_PROCID": rank, "SLURM_LOCALID": rank, "SLURM_NODEID": 0, "SLURM_STEP_NUM_TASKS": 2}
    own |= {"SLURM_JOB_ID": 7, "SLURM_STEP_ID": 0, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    return {name: str(value) for name, value in own.items()}


def in_trial(pid):
    """Return whether a rank's supervisor has started its process of a joint trial."""
    with suppress(psutil.NoSuchProcess):
        return any("rank_launcher" in " ".join(one.cmdline()) for one in psutil.Process(pid).children(recursive=True))
    return False


def run_of(*homes):
    """Return the folder of the one run in these folders; rank 0 may be of either agent."""
    (folder,) = [folder for home in homes for folder in home.glob("results/*")]
    return folder


@pytest.mark.slow
def test_four_ranks_on_two_nodes_have_the_weights_of_one_process_and_scaling_is_reported(homes, tmp_path, start):
    kept = tmp_path / "kept"
    kept.mkdir()
    for home in homes:
        suite = TINY.replace("return optim.SGD(parameters, lr=lr)", "return _kept(optim.SGD(parameters, lr=lr))")
        (home / "tiny.py").write_text(suite + KEEPS.replace("FOLDER", str(kept)))
    words = [*TINY_SUITE, "--quick", "--epochs", "2", "--time-budget", "0.2s"]
    words += ["--data", "folder:images", "--set", "lr=0.1"]
    port = free_port()
    agents = [start(agent(port, 2, words), home) for home in homes]
    outputs = [one.communicate(timeout=500)[0] for one in agents]
    assert [one.returncode for one in agents] == [0, 0], outputs
    folder = run_of(*homes)
    rows = {(row["placement"], row["phase"]): row for row in table(folder)}
    assert {placement for placement, _ in rows} == {"cpu", "cpu+cpu@2"}
    assert {phase for placement, phase in rows if placement == "cpu+cpu@2"} == {"memory", "speed", "train"}
    assert {row["status"] for row in rows.values()} <= {"ok", "unconverged"}
    peak, total = (int(rows["cpu+cpu@2", "memory"][name]) for name in ("peak_resident_bytes", "all_devices_bytes"))
    assert peak < total <= 4 * peak
    assert rows["cpu+cpu@2", "speed"]["communication_pct"] != ""
    alone = torch.load(kept / "alone.pt")
    for rank in range(4):
        for own, whole in zip(torch.load(kept / f"{rank}.pt"), alone, strict=True):
            torch.testing.assert_close(own, whole)
    environment = json.loads((folder / "run.json").read_text())["environment"]
    assert [node["accelerator"] for node in environment["nodes"]] == ["cpu+cpu@2"] * 2
    (page,) = (folder.parents[1] / "reports").glob("*/details.md")
    (row,) = [line for line in page.read_text().splitlines() if "| strong |" in line]
    assert "cpu+cpu@2" in row


@pytest.mark.slow
def test_nodes_with_other_images_do_not_start(homes, start):
    (homes[1] / "images" / "train" / "dark" / "0.png").unlink()
    words, port = [*TINY_SUITE, "--phases", "train", "--data", "folder:images"], free_port()
    agents = [start(agent(port, 1, words), home) for home in homes]
    outputs = "".join(one.communicate(timeout=300)[0] for one in agents)
    assert all(one.returncode for one in agents)
    assert "The nodes do not agree about prepare_data" in outputs
    assert not [folder for home in homes for folder in home.glob("results/*")]


@pytest.mark.slow
def test_under_srun_a_rank_that_is_killed_in_a_trial_is_named_and_the_run_continues(homes, start):
    hangs = 'import os\n        if fail == "hang" and os.environ.get("RANK") == "1":'
    (homes[0] / "tiny.py").write_text(TINY.replace('if fail == "hang":', hangs))
    words = [*TINY_SUITE, "--phases", "memory", "--set", "fail=hang", "--gpus", "cpu+cpu,cpu"]
    port = free_port()
    ranks = [start([ROOT / "run_bench.py", *words], homes[0], **srun(port, rank)) for rank in (0, 1)]
    end = time.monotonic() + 300
    while not in_trial(ranks[1].pid):
        assert time.monotonic() < end
        time.sleep(0.2)
    os.kill(ranks[1].pid, signal.SIGKILL)
    output, _ = ranks[0].communicate(timeout=300)
    assert ranks[0].returncode == 1, output
    rows = {row["placement"]: row for row in table(run_of(homes[0]))}
    assert (rows["cpu+cpu"]["status"], rows["cpu"]["status"]) == ("failed", "ok")
    assert "rank 1 (" in rows["cpu+cpu"]["detail"]
    assert "was lost: no sign of life" in rows["cpu+cpu"]["detail"]


def test_srun_without_an_address_is_a_sentence(homes, start):
    variables = {name: value for name, value in srun(1, 0).items() if not name.startswith("MASTER")}
    rank = start([ROOT / "run_bench.py", *TINY_SUITE], homes[0], **variables)
    output, _ = rank.communicate(timeout=120)
    assert (rank.returncode, "without MASTER_ADDR and MASTER_PORT" in output) == (2, True)
