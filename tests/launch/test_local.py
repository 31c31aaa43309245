import multiprocessing
import os
import re
import signal
import subprocess
import sys
import tempfile
import threading
import time
from dataclasses import replace
from multiprocessing import forkserver
from multiprocessing.popen_forkserver import Popen
from pathlib import Path
from unittest import mock

import pytest
import torch

from bench.launch import local
from bench.launch.local import LocalLauncher
from bench.results.endings import Ending
from bench.results.records import Progress, TrialResult
from bench.spec.errors import UsageError
from bench.spec.trial import JOINT_S
from bench.training import distributed
from bench.worker import worker
from tests.conftest import TINY

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def launcher():
    return LocalLauncher()


@pytest.fixture
def run(launcher, cpu):
    """Return a function that runs a trial, and returns how it ended and what it sent."""

    def run(trial):
        messages = []
        return launcher.run(trial, cpu, messages.append), messages

    return run


def failing(trial, how):
    suite = replace(trial.cell.suite, parameters=(("fail", how),))
    return replace(trial, cell=replace(trial.cell, suite=suite))


@pytest.fixture
def fail_to_start(monkeypatch):
    """Let the start of a process raise an error, without a fork server; return how often that was
    killed.
    """

    def fail(error):
        monkeypatch.setattr(forkserver, "ensure_running", lambda: None)
        monkeypatch.setattr(Popen, "_launch", mock.Mock(side_effect=error))
        kill = mock.Mock()
        monkeypatch.setattr(local, "_kill_fork_server", kill)
        return kill

    return fail


def test_ctrl_c_while_a_process_starts_ends_the_fork_server_that_has_half_of_it(
    launcher, fail_to_start
):
    kill = fail_to_start(KeyboardInterrupt())
    with pytest.raises(KeyboardInterrupt):
        launcher.call("tests.launch.hanging:leave_a_child")
    assert kill.called
    assert not multiprocessing.active_children()


@pytest.mark.parametrize(
    "error", [EOFError(), ConnectionRefusedError(111, "Connection refused"), BrokenPipeError()]
)
def test_a_process_that_cannot_be_started_ends_with_the_reason(launcher, fail_to_start, error):
    kill = fail_to_start(error)
    reason = re.escape(str(error) or "the fork server was killed")
    with pytest.raises(UsageError, match=f"the process could not be started: {reason}"):
        launcher.call("tests.launch.hanging:leave_a_child")
    assert not kill.called


@pytest.mark.slow
def test_ctrl_c_while_the_fork_server_imports_does_not_wait_for_it(tmp_path):
    words = "import time; from bench.launch.local import LocalLauncher; print(1, flush=True)"
    words += "; LocalLauncher().call('tests.launch.hanging:leave_a_child')"
    with subprocess.Popen([sys.executable, "-c", words], stdout=-1, stderr=-1, cwd=ROOT) as process:
        process.stdout.readline()
        time.sleep(0.5)
        began = time.monotonic()
        process.send_signal(signal.SIGINT)
        process.communicate()
    assert time.monotonic() - began < 1.0


def test_every_function_is_called_in_a_fresh_process(launcher):
    first = launcher.call("os:getpid")
    second = launcher.call("os:getpid")
    assert len({first, second, os.getpid()}) == 3


def test_a_process_that_dies_leaves_nothing_of_what_it_compiled(
    run, tiny_trial, tiny_file, tmp_path, monkeypatch
):
    note = tmp_path / "note"
    dying = f"""import os, pathlib
            folder = pathlib.Path(os.environ["TORCHINDUCTOR_CACHE_DIR"])
            folder.mkdir()
            (folder / "kernel.so").write_text("compiled")
            pathlib.Path({str(note)!r}).write_text(str(folder))
            os._exit(7)"""
    tiny_file.write_text(TINY.replace("import os\n            os._exit(7)", dying))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    ending, _ = run(failing(tiny_trial, "die"))
    assert ending.kind == "died"
    assert tmp_path in Path(note.read_text()).parents
    assert not list(tmp_path.glob("ampmeter-*"))


def test_a_process_that_hangs_is_ended(run, tiny_trial, tiny_file):
    ending, _ = run(replace(failing(tiny_trial, "hang"), silence_s=1.0))
    before, _, _ = TINY.partition("time.sleep(3600)")
    line = len(before.splitlines())
    assert ending.kind == "timeout"
    assert ending.text == f"no sign of life for 1 s ({os.path.relpath(tiny_file)}:{line})"


@pytest.mark.parametrize(("own_s", "kind"), [(60.0, "done"), (0.0, "timeout")])
def test_a_process_that_compiles_may_be_silent_for_longer(launcher, own_s, kind):
    receiving, sending = multiprocessing.Pipe(duplex=False)
    sentinel, _theirs = multiprocessing.Pipe(duplex=False)
    process = mock.Mock(sentinel=sentinel)
    sending.send(Progress(text="compiling", silence_s=own_s))
    end = threading.Timer(0.3, sending.send, [Ending(kind="done")])
    end.start()
    ending = launcher._listen(process, receiving, print, 0.1)
    assert ending.kind == kind
    end.join()


BREAKING = """
def crash():
    import os, signal
    print("my last words", flush=True)
    STATEMENT


def forward(inputs):
    crash()
    return inputs
"""
REASONS = {
    "os.kill(os.getpid(), signal.SIGSEGV)": (
        "died",
        (
            "the process ended without a message, by SIGSEGV (tiny.py:5); it printed last: my last "
            "words"
        ),
    ),
    "raise SystemExit(3)": ("error", "SystemExit: 3 (tiny.py:5)"),
    "raise ValueError('a\\nb')": ("error", "ValueError: a (tiny.py:5)"),
    "os.kill(os.getpid(), signal.SIGKILL)": (
        "died",
        "the process ended without a message, by SIGKILL, after it had said: fp32: a small step "
        "to load the libraries; it printed last: my last words",
    ),
}


@pytest.mark.parametrize("statement", REASONS)
def test_a_failure_says_what_where_and_its_last_words_and_its_log_has_all(
    run, tiny_trial, tiny_file, monkeypatch, statement
):
    monkeypatch.chdir(tiny_file.parent)
    layer = "type('Breaking', (nn.Module,), {'forward': lambda _, inputs: forward(inputs)})()"
    model = TINY.replace("nn.Flatten()", f"{layer}, nn.Flatten()")
    tiny_file.write_text(BREAKING.replace("STATEMENT", statement) + model)
    ending, _ = run(tiny_trial)
    assert (ending.kind, ending.text) == REASONS[statement]
    assert "my last words" in ending.log
    assert ("Segmentation fault" in ending.log) == ("SIGSEGV" in statement)


@pytest.mark.skipif(
    not hasattr(torch.backends, "fp32_precision"),
    reason="torch has a switch for the CPU from 2.9 on",
)
@pytest.mark.parametrize("phase", ["memory", "train", "speed"])
def test_switches_that_a_model_sets_are_set_back_and_read_after_it(
    run, tiny_trial, tiny_file, phase
):
    flip = 'import torch; torch.backends.mkldnn.matmul.fp32_precision = "bf16"'
    tiny_file.write_text(
        TINY.replace("from torch import nn\n", f"from torch import nn; {flip}\n", 1)
    )
    _, messages = run(replace(tiny_trial, phase=phase))
    result = messages[-1]
    assert isinstance(result, TrialResult)
    assert result.switches.fp32_matmul == "ieee"


def test_what_the_user_can_mend_is_raised_in_its_own_words(launcher):
    with pytest.raises(UsageError, match=r"^There is no GPU 97 here"):
        launcher.call("bench.devices.survey:survey", ("97",))


def test_variables_that_override_tf32_or_emulate_fp32_are_removed_and_told(monkeypatch):
    names = (
        "NVIDIA_TF32_OVERRIDE",
        "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE",
        "CUBLAS_EMULATE_SINGLE_PRECISION",
    )
    for name in names:
        monkeypatch.setenv(name, "1")
    assert {*LocalLauncher().removed_variables} == {f"{name}=1" for name in names}
    assert os.environ.keys().isdisjoint(names)


def test_variables_that_may_change_figures_are_recorded(launcher, monkeypatch):
    names = (
        "CUDA_LAUNCH_BLOCKING",
        "CUDA_DEVICE_ORDER",
        "PYTORCH_CUDA_ALLOC_CONF",
        "TORCHINDUCTOR_MAX_AUTOTUNE",
    )
    for name in (*names, "CUDA_HOME"):
        monkeypatch.setenv(name, "1")
    variables = launcher.survey(("cpu",)).variables
    assert {f"{name}=1" for name in names} <= {*variables}
    assert not any("CUDA_HOME" in variable or "CACHE_DIR" in variable for variable in variables)


def test_a_process_that_waits_for_another_in_vain_says_so_before_its_worker_is_taken_to_hang(
    monkeypatch,
):
    init = mock.Mock()
    monkeypatch.setattr(distributed.distributed, "init_process_group", init)
    for silence_s in (60.0, JOINT_S):
        distributed.join(torch.device("cpu"), silence_s)
        timeout = init.call_args.kwargs["timeout"]
        assert 0 < timeout.total_seconds() < silence_s


def serve_a_stopped_run():
    """Begin as a process whose launcher has removed the folder of its log."""
    worker.serve(None, "/removed/log", "", "no:where", (), sends=False)


def test_a_process_that_begins_when_its_run_has_been_stopped_ends_without_a_word(launcher):
    with pytest.raises(UsageError, match=r"the process ended without a message, by exit code 1$"):
        launcher.call("tests.launch.test_local:serve_a_stopped_run")


def imported_before(module):
    """Return the modules that this process had imported before another."""
    names = list(sys.modules)
    return names[: names.index(module)]


def test_the_fork_server_has_imported_what_trials_take_long_to_before_the_first_of_them(launcher):
    """A process first imports the module whose function it was started with."""
    imported = launcher.call("tests.launch.test_local:imported_before", "bench.launch.local")
    assert {"torch", "torchvision", "bench.worker.worker"} <= {*imported}
