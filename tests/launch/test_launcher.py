import re
import threading

import pytest

from bench.cli.parser import parse
from bench.launch import open_launcher
from bench.launch.launcher import run_concurrently
from bench.launch.local import LocalLauncher
from tests.conftest import call

TASKS = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"},
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "7"},
}


def test_jobs_run_at_the_same_time():
    together = threading.Barrier(2, timeout=10)
    run_concurrently([together.wait, together.wait], lambda: None)  # one after the other, the first would wait in vain


def test_the_first_failure_cancels_the_others_and_is_raised():
    cancelled, ended = threading.Event(), []

    def fail():
        raise RuntimeError("why")

    def other():
        ended.append(cancelled.wait(10))

    with pytest.raises(RuntimeError, match="why"):
        run_concurrently([other, fail], cancelled.set)
    assert ended == [True]


@pytest.mark.parametrize("starter", TASKS)
def test_several_tasks_of_torchrun_or_srun_are_refused_with_the_commands_for_several_machines(
    starter, tmp_path, monkeypatch
):
    for name, value in TASKS[starter].items():
        monkeypatch.setenv(name, value)
    done = call("--suite", "mlp", "--gpus", "cpu", cwd=tmp_path)
    assert done.returncode == 2
    sentence = re.sub(r"\s+", " ", done.stderr)
    assert f"{starter} started 4 tasks" in sentence
    assert "--on ray --accelerators" in sentence
    assert "run_bench.py report results/A results/B" in sentence
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    "environment",
    [
        {"RANK": "0", "WORLD_SIZE": "1"},
        {"SLURM_STEP_NUM_TASKS": "1"},
        {"SLURM_NTASKS": "4"},  # of a batch script, which is one task
        {"WORLD_SIZE": "4"},
    ],
)
def test_a_single_task_is_a_run_of_this_machine(environment):
    assert isinstance(open_launcher(parse(["--suite", "mlp"]), environment), LocalLauncher)
