"""The speed phase: orders of its own in each process, and what disturbed it."""

import os
from dataclasses import replace

from bench.results.records import Block
from bench.spec.protocol import Protocol
from tests.devices.fake_nvml import FakeGpu
from tests.phases.conftest import Now, install_gpus, of_kind, result_of, run_phase


def test_each_process_takes_the_arms_in_an_order_of_its_own(tiny_trial, cpu):
    protocol = Protocol(time_budget_s=0.1, replicates=2)
    orders = []
    for replicate in (0, 1):
        sent = run_phase(
            tiny_trial, cpu, "speed", "fp32", "amp-fp16", replicate=replicate, protocol=protocol
        )
        # Those of two rounds, which a slow machine has time for, too.
        order = [block.precision for block in of_kind(Block, sent)][:8]
        assert len(order) == 8
        orders.append(order)
    assert orders[0] != orders[1]


def test_what_disturbed_the_gpu_while_a_process_was_timed_is_named_in_its_row(
    monkeypatch, tiny_trial, cpu
):
    install_gpus(monkeypatch, FakeGpu("GPU-a", work=Now([(os.getpid(), 60), (123, 40)])))
    gpu = replace(cpu, kind="cuda", uuid="GPU-a")
    result = result_of(run_phase(tiny_trial, gpu, "speed", "fp32"))
    assert result.status == "ok"
    named = "another process used the GPU (pid 123, 40% of the time)"
    assert result.row.disturbance == named
    assert result.row.rounds > 0
