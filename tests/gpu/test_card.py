"""Behaviour that only a real card shows: its arithmetic, rates and driver, and two together.

``perf/gpu_checklist.py`` runs these tests and the others that are marked ``card`` as its part
``card``.
"""

import os
import subprocess
import sys
import time
from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.devices.monitor import open_monitor
from bench.measure.disturbance import GpuWatch, open_watch
from bench.spec.placement import Placement
from bench.spec.precisions import PRECISIONS
from bench.training import amp
from tests.gpu.conftest import GPU, NEEDS_TWO, ON_SIMULATED, apply, describe, run, vary_cell

pytestmark = pytest.mark.card
REAL = pytest.mark.skipif(ON_SIMULATED, reason="simulated GPUs have neither cuDNN nor rates")


def disturbance(watch, seconds):
    """Compute on the GPU for some seconds; return what the watch has to say then."""
    factor = torch.ones(1024, 1024, device=GPU)
    end_s = time.monotonic() + seconds
    while time.monotonic() < end_s:
        factor @ factor
        torch.cuda.synchronize(GPU)
        watch.poll()
    return watch.disturbance()


@REAL
@pytest.mark.parametrize(
    ("name", "low", "high"),
    [
        ("fp32", 0.0, 1e-5),
        ("tf32", 5e-5, 5e-3),
        ("default", 5e-5, 5e-3),
    ],
)
def test_convolutions_are_ieee_fp32_unless_tf32_is_asked_for(name, low, high):
    apply(name)
    inputs = torch.randn(16, 64, 32, 32, device=GPU)
    conv = nn.Conv2d(64, 64, 3, padding=1, device=GPU)
    outputs = conv(inputs)
    exact = conv.double()(inputs.double())
    error = (outputs - exact).norm() / exact.norm()
    assert low <= float(error) < high
    amp.apply(PRECISIONS["fp32"])


def test_the_drivers_counters_and_processes_call_a_busy_gpu_of_our_own_undisturbed(device):
    with open_watch(device) as watch:
        assert isinstance(watch, GpuWatch)
        named = disturbance(watch, 3.0)
        assert "process" not in named
        assert "lost" not in named
        assert watch._throttle.counted  # no counter outgrew the clock, as another quantity would


OTHER = """
import sys
import time

import torch

burst_s, pause_s = map(float, sys.argv[1:])
factor = torch.ones(4096, 4096, device="cuda:0")
torch.cuda.synchronize()
print("begun", flush=True)
while True:
    until_s = time.monotonic() + burst_s
    while time.monotonic() < until_s:
        factor @ factor
        torch.cuda.synchronize()
    time.sleep(pause_s)
"""
"""Another program that computes in bursts."""


@pytest.mark.parametrize(
    ("burst_s", "pause_s", "disturbs"),
    [
        pytest.param(1.0, 3.0, True, marks=REAL),
        (0.0, 60.0, False),
    ],
)
def test_another_program_is_named_if_it_computes_for_a_part_of_the_time(
    device, burst_s, pause_s, disturbs
):
    torch.ones(1, device=GPU)  # so that this process is on the GPU, too
    torch.cuda.synchronize(GPU)
    with open_monitor() as monitor:
        if os.getpid() not in (monitor.process_bytes(device.uuid) or {}):
            pytest.skip("in this container the driver lists the host's process ids")
    words = [sys.executable, "-c", OTHER, str(burst_s), str(pause_s)]
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as other:
        try:
            assert other.stdout.readline() == "begun\n"
            time.sleep(1.5)  # the driver's samples are late
            with open_watch(device) as watch:
                named = disturbance(watch, 6.0)
        finally:
            other.kill()
    assert (f"pid {other.pid}" in named) is disturbs


@NEEDS_TWO
def test_two_gpus_train_together_and_each_process_knows_its_own(tiny_trial):
    device = describe("0+1")
    together = vary_cell(tiny_trial, placement=Placement(name="0+1"))
    (memory,) = run(together, device)
    assert memory.row.driver_used_bytes > memory.row.peak_reserved_bytes
    assert memory.row.all_devices_bytes > memory.row.peak_allocated_bytes
    (speed,) = run(replace(together, phase="speed"), device)
    assert speed.status in ("ok", "unconverged"), speed.detail
