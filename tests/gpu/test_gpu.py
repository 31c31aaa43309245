"""Tests that need a GPU; run with ``pytest -m gpu``."""

import math
from dataclasses import replace

import pytest
import torch

from bench.devices.backend import backend_of
from bench.doctor.probes import training_runner
from bench.launch.local import LocalLauncher
from bench.measure.operations import observe
from bench.measure.rounds import Sizes, time_block
from bench.phases.explain.observe import PeakHolders
from bench.planning.batch_sizes import common_multiple
from bench.results.records import Device
from bench.spec.precisions import PRECISIONS
from bench.spec.protocol import Protocol
from bench.training import amp
from bench.training.arms import TrainingRunner
from tests.arms import arms
from tests.gpu.conftest import GPU, NEEDS_TWO, ON_SIMULATED, apply, run, take, vary_cell


def test_memory_at_the_peak_by_operator_is_what_the_allocator_says():
    model = torch.nn.Sequential(
        torch.nn.Linear(512, 2048),
        torch.nn.GELU(),
        torch.nn.Linear(2048, 512),
    ).to(GPU)
    inputs = torch.randn(1024, 512, device=GPU)

    def step():
        with torch.autocast("cuda", dtype=torch.bfloat16):
            loss = model(inputs).float().square().mean()
        loss.backward()
        torch.cuda.synchronize()
        model.zero_grad()

    step()  # which makes what libraries keep
    before_bytes = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    step()
    grown_bytes = torch.cuda.max_memory_allocated() - before_bytes
    tensors = [*model.parameters(), inputs]
    with PeakHolders(GPU, {"parameters": tensors}) as holders:
        step()
    tensors_bytes = sum(tensor.nbytes for tensor in tensors)
    assert holders.peak_bytes == pytest.approx(tensors_bytes + grown_bytes, rel=0.05)
    held_bytes = 0
    for row in holders.rows():
        if row["kind"] == "held":
            held_bytes += row["value"]
    assert held_bytes == holders.peak_bytes


@pytest.mark.card
@pytest.mark.parametrize(
    ("name", "matmul", "conv", "low", "high"),
    [
        ("fp32", "ieee", "ieee", 0, 2e-6),
        ("tf32", "tf32", "tf32", 1e-4, 1e-3),
        ("default", "ieee", "tf32", 0, 2e-6),
    ],
)
def test_fp32_is_ieee_and_tf32_is_not(name, matmul, conv, low, high):
    switches = amp.read_back(apply(name), GPU)
    assert switches.fp32_matmul == matmul
    assert switches.fp32_conv == conv
    assert low <= switches.matmul_error < high


def test_what_was_allocated_and_freed_before_is_in_no_peak():
    backend = backend_of(GPU)
    before_bytes = torch.cuda.memory_allocated()
    take(256)  # which is freed, and cached
    assert torch.cuda.memory_reserved() >= 256 * 2**20
    backend.reset_peak_memory()
    held = take(1)
    peak = backend.peak_memory()
    assert peak.allocated - before_bytes == held.nbytes
    # torch reserves blocks of 2 MiB for small tensors.
    assert peak.allocated < peak.reserved < 256 * 2**20


def test_memory_that_torch_asks_the_device_for_is_told_from_what_it_has_cached():
    backend = backend_of(GPU)
    backend.release_cached_memory()
    before = backend.allocations()
    for _ in range(2):  # the second is cached
        take(256)
        assert backend.allocations() == before + 1
    backend.release_cached_memory()
    assert torch.cuda.memory_reserved(0) < 256 * 2**20


@NEEDS_TWO
def test_each_gpu_answers_for_itself():
    first = backend_of(torch.device("cuda", 0))
    second = backend_of(torch.device("cuda", 1))
    try:
        first.reset_peak_memory()
        second.set_current()
        assert torch.cuda.current_device() == 1
        free_bytes = first.free_bytes()
        peak = first.peak_memory()
        others_free_bytes = second.free_bytes()
        held = take(256, second.device)
        assert first.free_bytes() == free_bytes
        assert first.peak_memory() == peak
        assert second.free_bytes() == others_free_bytes - held.nbytes
        factor = torch.ones(2048, 2048, device=second.device)
        for _ in range(50):
            factor @ factor
        done = torch.cuda.Event()
        done.record()  # on the current GPU's stream
        second.synchronize()
        assert done.query()
        first_seed = first.rng_state().clone()
        second_seed = second.rng_state().clone()
        torch.cuda.manual_seed(7)  # of the current GPU
        assert torch.equal(first.rng_state(), first_seed)
        assert not torch.equal(second.rng_state(), second_seed)
        second.set_rng_state(second_seed)
        assert torch.equal(second.rng_state(), second_seed)
    finally:
        first.set_current()


def test_no_step_without_loss_scaling_waits_for_the_gpu():
    """So the host's share of a step, ``host_ratio``, contains no wait of ours."""
    device = Device(placement="0", kind="cuda", name="GPU", architecture="Ampere")
    for name in ("fp32", "amp-bf16", "bf16"):
        runner = training_runner(device, name)
        runner.run_steps(3)
        torch.cuda.set_sync_debug_mode("error")
        try:
            runner.run_steps(2)
            with pytest.raises(RuntimeError, match="synchroniz"):
                runner.loss.item()
        finally:
            torch.cuda.set_sync_debug_mode("default")


@pytest.mark.card
def test_a_block_waits_for_the_device():
    """The clock is read when the device has done what the block queued, and not before."""
    factor = torch.ones(4096, 4096, device=GPU)
    product = factor @ factor
    last_product = torch.cuda.Event()
    done_when_queued, done_when_read = [], []

    class Multiplying(TrainingRunner):
        def run_steps(self, steps):
            for _ in range(steps):
                torch.mm(factor, factor, out=product)  # queued at once: nothing is allocated
            last_product.record()
            done_when_queued.append(last_product.query())

    class Arm:
        precision, device = PRECISIONS["fp32"], GPU

    def clock():
        done_when_read.append(last_product.query())
        return len(done_when_read)

    runner = Multiplying("products", Arm(), iter(()))
    time_block(runner, Sizes(switch_warmup=100, steps=100), clock)
    assert done_when_queued == [False, False]
    assert done_when_read == [True, True]


def test_the_phases_run_on_the_gpu(device, trial):
    unsupported = device.unsupported or {}
    names = [name for name in PRECISIONS if name not in unsupported]
    size = common_multiple(names, 1)  # on a GPU with float8, no smaller batch trains in it
    trial = vary_cell(trial, batch_size=max(4, size))

    def measure(phase, *names, **fields):
        asked = replace(trial, phase=phase, arms=arms(*names), **fields)
        return {result.arm: result.row for result in run(asked, device)}

    for name in names:
        memory = measure("memory", name)[name]
        # None: NVML lists no processes, and a neighbour ended.
        driver_bytes = memory.driver_used_bytes
        assert driver_bytes is None or driver_bytes > memory.peak_reserved_bytes
        assert 0 < memory.tracked_peak_bytes <= memory.peak_allocated_bytes
        # Master weights in fp32 take twice as much as the 16-bit ones, in addition.
        copies = 3 if PRECISIONS[name].master else 1
        assert memory.parameter_bytes == copies * memory.model_bytes
    for name in ("fp32", "amp-fp16"):  # each takes about ten seconds
        energy = measure("energy", name)[name]
        assert energy.energy_j_per_step > 0
    # One process with time for a few rounds of a slow host; any interval is narrow enough.
    longer = Protocol(time_budget_s=60.0, replicates=1, most_replicates=1, target_ci=0.99)
    speeds = measure("speed", *names, protocol=longer)
    assert list(speeds) == names
    for name, speed in speeds.items():
        assert speed.step_ms > 0
        has_scaler = bool(PRECISIONS[name].loss_scaling)
        assert (speed.host_ratio is None) == has_scaler
    training = measure("train", "amp-fp16")
    assert training["amp-fp16"].epochs == 1


@pytest.mark.card
def test_fp32_timed_against_itself_is_as_fast(device, trial):
    (floor,) = run(replace(trial, phase="floor"), device)
    assert floor.row.log_speedup_error > 0
    # A simulated GPU's steps take as long as other programs let them.
    if not ON_SIMULATED:
        assert math.exp(floor.row.log_speedup) == pytest.approx(1, abs=0.2)


def test_the_backend_of_attention_is_named():
    heads = torch.randn(2, 4, 16, 8, device=GPU)
    attend = torch.nn.functional.scaled_dot_product_attention
    observed = observe(lambda: attend(heads, heads, heads))
    assert observed.attention in ("flash:1", "efficient:1", "cudnn:1", "math:1")


@pytest.mark.card
def test_a_batch_fits_or_is_out_of_memory_and_the_next_process_has_it_all_again(device, trial):
    small = replace(trial, phase="fit")
    before = run(small, device)[0].row
    images = 400 * 2**30 // (3 * 8 * 8)  # of pixels of four bytes: more than any card has
    huge = vary_cell(small, batch_size=images)
    ending = LocalLauncher().run(huge, device, lambda _message: None)
    assert ending.kind == "oom"
    after = run(small, device)[0].row
    assert before.fit_peak_bytes == after.fit_peak_bytes > 0
    assert after.fit_free_bytes > 0.9 * before.fit_free_bytes
