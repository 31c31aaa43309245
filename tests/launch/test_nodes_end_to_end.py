"""Two launchers on one host are two nodes: what they measure together, agree on, and leave when one is killed."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

import pytest
import torch

from tests.conftest import TINY, call
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
HANGS = 'if fail == "hang" and os.environ.get("RANK") == "1":'


def job(port, rank, wait=60):
    words = ["--nnodes", "2", "--node-rank", str(rank), "--rdzv-endpoint", f"127.0.0.1:{port}", "--rdzv-id", "test"]
    return [*words, "--rdzv-conf", f"join_timeout={wait}"]


@contextmanager
def follower(port, words, cwd):
    """Start node 1, and end it at last if it has not left by itself."""
    command = [sys.executable, str(ROOT / "run_bench.py"), *map(str, words), *job(port, 1)]
    with subprocess.Popen(command, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def free_port():
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        return found.getsockname()[1]


@pytest.fixture
def homes(tmp_path):
    """What two nodes have: the same suite and the same images, each in a folder of its own."""
    both = tmp_path / "front", tmp_path / "other"
    for home in both:
        home.mkdir()
        fill(home)
    return both


WORDS = ("--suite", "tiny.py", "--gpus", "cpu,cpu@2", "--precisions", "fp32", "--batch-sizes", "4")


@pytest.mark.slow
def test_two_nodes_measure_together_what_one_measures_alone(homes):
    port, words = free_port(), (*WORDS, "--phases", "memory")
    with follower(port, words, homes[1]) as other:
        found = call(*words, *job(port, 0), cwd=homes[0])
        said, _ = other.communicate(timeout=30)
    assert (found.returncode, other.returncode) == (0, 0), found.stderr + said
    (folder,) = (homes[0] / "results").iterdir()
    rows = {row["placement"]: row for row in table(folder)}
    assert set(rows) == {"cpu", "cpu@2"}
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert int(rows["cpu@2"]["all_devices_bytes"]) > int(rows["cpu@2"]["peak_resident_bytes"]) > 0
    assert "1 of 2 processes" in said
    assert not (homes[1] / "results").exists()


@pytest.mark.slow
def test_nodes_with_other_images_do_not_start(homes):
    (homes[1] / "images" / "train" / "dark" / "0.png").unlink()
    port, words = free_port(), (*WORDS, "--phases", "train", "--data", "folder:images")
    with follower(port, words, homes[1]) as other:
        found = call(*words, *job(port, 0), cwd=homes[0])
        said, _ = other.communicate(timeout=30)
    assert (found.returncode, other.returncode) == (2, 2)
    assert "The nodes do not agree about prepare_data" in found.stderr
    assert "Node 0 ended before anything ran" in said


@pytest.mark.slow
def test_a_batch_that_cannot_be_divided_among_all_nodes_is_refused_before_anything_runs(homes):
    port, words = free_port(), (*WORDS, "--phases", "memory", "--batch-sizes", "5")
    with follower(port, words, homes[1]) as other:
        found = call(*words, *job(port, 0), cwd=homes[0])
        other.communicate(timeout=30)
    assert (found.returncode, other.returncode) == (2, 2)
    assert "multiples of 2" in found.stderr


@pytest.mark.slow
def test_four_ranks_on_two_nodes_have_the_weights_of_one_process_and_scaling_is_told(homes, tmp_path):
    kept = tmp_path / "kept"
    kept.mkdir()
    for home in homes:
        suite = TINY.replace("return optim.SGD(parameters, lr=lr)", "return _kept(optim.SGD(parameters, lr=lr))")
        (home / "tiny.py").write_text(suite + KEEPS.replace("FOLDER", str(kept)))
    words = ["--suite", "tiny.py", "--gpus", "cpu,cpu+cpu", "--precisions", "fp32", "--quick", "--epochs", "2"]
    words += ["--batch-sizes", "8", "--time-budget", "0.2s", "--data", "folder:images", "--set", "lr=0.1"]
    port = free_port()
    with follower(port, words, homes[1]) as other:
        found = call(*words, *job(port, 0), cwd=homes[0])
        said, _ = other.communicate(timeout=60)
    assert (found.returncode, other.returncode) == (0, 0), found.stderr + said
    (folder,) = (homes[0] / "results").iterdir()
    rows = {(row["placement"], row["phase"]): row for row in table(folder)}
    assert {phase for placement, phase in rows if placement == "cpu+cpu@2"} == {"memory", "speed", "train"}
    peak, total = (int(rows["cpu+cpu@2", "memory"][name]) for name in ("peak_resident_bytes", "all_devices_bytes"))
    assert 2 * peak < total <= 4 * peak
    assert rows["cpu+cpu@2", "speed"]["communication_pct"] != ""
    alone = torch.load(kept / "alone.pt")
    for rank in range(4):
        for own, whole in zip(torch.load(kept / f"{rank}.pt"), alone, strict=True):
            torch.testing.assert_close(own, whole)
    assert "2 of 4 processes" in said
    (page,) = (homes[0] / "reports").glob("*/report.md")
    (row,) = [line for line in page.read_text().splitlines() if "| strong |" in line]
    cells = [cell.strip() for cell in row.split("|")]
    assert "cpu+cpu@2" in cells[1]
    speedup = rows["cpu+cpu@2", "speed"]["samples_per_s"], rows["cpu", "speed"]["samples_per_s"]
    assert float(cells[8].rstrip("†")) == pytest.approx(float(speedup[0]) / float(speedup[1]), rel=0.05)
    assert cells[9] == "–"  # of a CPU that has all threads alone


@pytest.mark.slow
def test_a_node_that_is_killed_in_the_middle_of_a_trial_is_named_and_the_run_ends(homes):
    for home in homes:
        (home / "tiny.py").write_text(TINY.replace('if fail == "hang":', f"import os\n        {HANGS}"))
    port, words = free_port(), [*WORDS, "--phases", "memory", "--set", "fail=hang", "--gpus", "cpu@2,cpu"]
    with follower(port, words, homes[1]) as other:
        command = [sys.executable, str(ROOT / "run_bench.py"), *words, *job(port, 0)]
        with subprocess.Popen(command, cwd=homes[0], stdout=subprocess.PIPE, text=True) as front:
            assert other.stdout is not None
            while "1 of 2 processes" not in other.stdout.readline():
                pass
            time.sleep(2.0)
            os.kill(other.pid, signal.SIGKILL)
            said, _ = front.communicate(timeout=60)
    assert front.returncode == 1
    (folder,) = (homes[0] / "results").iterdir()
    rows = {row["placement"]: row for row in table(folder)}
    assert rows["cpu@2"]["status"] == "failed"
    assert "node 1 (" in rows["cpu@2"]["detail"]
    assert "was lost" in rows["cpu@2"]["detail"]
    assert rows["cpu"]["status"] == "ok", said
