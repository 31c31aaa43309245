import signal
import threading
import time
from unittest import mock

import pytest

from bench.launch import require_one_task, run_concurrently
from tests.conftest import call

TASKS = {
    "torchrun": {"RANK": "3", "WORLD_SIZE": "4", "MASTER_ADDR": "node0", "MASTER_PORT": "29400"},
    "srun": {"SLURM_PROCID": "3", "SLURM_STEP_NUM_TASKS": "4", "SLURM_JOB_ID": "7"},
}


def test_jobs_run_at_the_same_time():
    barrier = threading.Barrier(2, timeout=10)
    # One after the other, the first would wait in vain.
    run_concurrently([barrier.wait, barrier.wait], barrier.abort)


def test_the_first_failure_cancels_the_others_and_is_raised():
    cancelled = threading.Event()
    ended = []

    def fail():
        raise RuntimeError("why")

    def other():
        ended.append(cancelled.wait(10))

    with pytest.raises(RuntimeError, match="why"):
        run_concurrently([other, fail], cancelled.set)
    assert ended == [True]


def test_ctrl_c_is_answered_when_another_thread_takes_the_signal():
    cancelled = threading.Event()
    ended = []

    def job():
        time.sleep(0.2)  # until the other waits
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)
        ended.append(cancelled.wait(10))

    with pytest.raises(KeyboardInterrupt):
        run_concurrently([job], cancelled.set)
    assert ended == [True]


@pytest.mark.parametrize("words", ["--suite mlp --gpus cpu", "doctor --gpus cpu"])
@pytest.mark.parametrize("starter", TASKS)
def test_several_tasks_of_torchrun_or_srun_are_refused_with_the_commands_for_several_machines(
    starter, words, tmp_path, monkeypatch
):
    for name, value in TASKS[starter].items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr("bench.launch.local.LocalLauncher.call", mock.Mock(side_effect=OSError))
    done = call(*words.split(), cwd=tmp_path)
    assert done.returncode == 2
    sentence = " ".join(done.stderr.split())
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
def test_a_single_task_may_measure_on_this_machine(environment, monkeypatch):
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    require_one_task()
