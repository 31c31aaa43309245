"""Steps that take a known time, measured by the command line alone."""

from __future__ import annotations

import csv
import multiprocessing

import pytest

from tests.conftest import call

SLEEPER = """
import time

from bench.spec import Data, Suite


def suite() -> Suite:
    pace = {"step_s": 0.0, "began": 0.0, "ended": 0.0}

    def model(data):
        import torch
        from torch import nn

        class Sleeper(nn.Linear):
            def forward(self, inputs):
                pace["step_s"] = 0.002 if torch.is_autocast_enabled("cpu") else 0.003
                pace["began"] = time.perf_counter()
                return super().forward(inputs)

        return Sleeper(1, 1)

    def optimizer(parameters):
        from torch import optim

        class SleepingSGD(optim.SGD):
            # The last thing that a step does. It ends 3 ms, or 2 ms under autocast, after the step before it ended,
            # or, after a pause, after it began.
            def step(self, closure=None):
                super().step(closure)
                paused = pace["began"] - pace["ended"] > 0.0005
                until = (pace["began"] if paused else pace["ended"]) + pace["step_s"]
                time.sleep(max(0.0, until - time.perf_counter() - 0.0005))
                while time.perf_counter() < until:
                    pass
                pace["ended"] = max(until, time.perf_counter() - 0.0001)

        return SleepingSGD(parameters, lr=0.01)

    return Suite(
        name="sleeper", title="3 ms, or 2 ms", data=Data(input_shape=(1,), target_shape=(1,)), model=model,
        optimizer=optimizer, batch_size=1,
    )
"""


def burn() -> None:
    while True:
        pass


@pytest.fixture
def burning(request):
    process = multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
    if request.param:
        process.start()
    yield
    if request.param:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize("burning", [False, True], indirect=True, ids=["alone", "beside a burning process"])
def test_three_milliseconds_against_two_are_a_speedup_of_one_and_a_half(tmp_path, burning):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    words = "--suite sleeper.py --gpus cpu --precisions fp32,amp-bf16 --quick --time-budget 3 --target-ci 0.3%"
    assert call(*words.split(), "--phases", "speed", "--out", "out", cwd=tmp_path).returncode == 0
    with (tmp_path / "out" / "trials.csv").open(newline="") as file:
        rows = {row["precision"]: row for row in csv.DictReader(file)}
    assert float(rows["amp-bf16"]["speedup"]) == pytest.approx(1.5, rel=0.01)
