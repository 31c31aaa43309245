"""Steps that take a known time, measured by the command line alone."""

import multiprocessing

import pytest

from bench.report.analysis.summary import summarise
from bench.report.reading.load import load
from tests.conftest import call

SLEEPER = """
import time

from bench.spec import Data, Suite


def suite(disturbed: str = "") -> Suite:
    pace = {"step_s": 0.0, "began": 0.0, "ended": 0.0, "since_switch": 0}
    pace["start"] = time.perf_counter()

    def slowed(seconds, autocast):
        now = time.perf_counter() - pace["start"]
        if disturbed == "transient" and autocast and pace["since_switch"] < 5:
            return 1.5 * seconds
        if disturbed == "drift":
            return seconds * (1 + now / 50)
        if disturbed == "bursts" and now % 1.7 < 0.15:
            return 1.6 * seconds
        return seconds

    def model(data):
        import torch
        from torch import nn

        class Sleeper(nn.Linear):
            def forward(self, inputs):
                autocast = torch.is_autocast_enabled("cpu")
                if autocast != pace.get("autocast"):
                    pace["since_switch"] = -1
                pace["since_switch"] += 1
                pace["autocast"] = autocast
                pace["step_s"] = slowed(0.002 if autocast else 0.003, autocast)
                pace["began"] = time.perf_counter()
                return super().forward(inputs)

        return Sleeper(1, 1)

    def optimizer(parameters):
        from torch import optim

        class SleepingSGD(optim.SGD):
            # The last thing that a step does. It ends 3 ms, or 2 ms under autocast, after the step
            # before it ended, or, after a pause, after it began. It sleeps nearly until then: a
            # step that computed for half of its time would have to wait for the processes that
            # burn, and truly take longer.
            def step(self, closure=None):
                super().step(closure)
                paused = pace["began"] - pace["ended"] > 0.0005
                until = (pace["began"] if paused else pace["ended"]) + pace["step_s"]
                time.sleep(max(0.0, until - time.perf_counter() - 0.00015))
                while time.perf_counter() < until:
                    pass
                pace["ended"] = max(until, time.perf_counter() - 0.0001)

        return SleepingSGD(parameters, lr=0.01)

    return Suite(
        name="sleeper", title="3 ms, or 2 ms", model=model,
        data=Data(input_shape=(1,), target_shape=(1,)),
        optimizer=optimizer, batch_size=1,
    )
"""


def burn() -> None:
    while True:
        pass


@pytest.fixture
def burning(request):
    processes = []
    for _ in range(request.param):
        process = multiprocessing.get_context("spawn").Process(target=burn, daemon=True)
        process.start()
        processes.append(process)
    yield
    for process in processes:
        process.kill()
        process.join()


@pytest.mark.slow
@pytest.mark.timing
@pytest.mark.parametrize(
    ("burning", "disturbed", "bound"),
    [
        (0, "", 0.005),
        (1, "", 0.01),
        (2, "", 0.02),
        (0, "transient", 0.005),
        (0, "drift", 0.005),
        (0, "bursts", 0.005),
    ],
    indirect=["burning"],
    ids=[
        "alone",
        "with a burning process",
        "with two",
        "with a transient",
        "with drift",
        "with bursts",
    ],
)
def test_three_milliseconds_against_two_are_a_speedup_of_one_and_a_half(
    tmp_path, burning, disturbed, bound
):
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    words = "--suite sleeper.py --gpus cpu --precisions fp32,amp-bf16 --phases speed"
    words += f" --target-ci 0.3% --out out --set disturbed={disturbed or 'nothing'}"
    assert call(*words.split(), cwd=tmp_path).returncode == 0
    run = load([tmp_path / "out"])
    row = summarise(run.trials).set_index("precision").loc["amp-bf16"]
    assert row["speedup"] == pytest.approx(1.5, rel=bound)
