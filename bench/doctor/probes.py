"""The measurements of the self-tests, each in a fresh process: ``probe(device, *arguments, send)``.

They time steps that take a known time, and a small model in training.
"""

from __future__ import annotations

import itertools
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import torch

from bench.data import random_batches
from bench.devices.backend import backend_of, device_at, gpu_count
from bench.devices.monitor import DeviceLostError, GpuMeter, open_monitor
from bench.devices.survey import describe_gpu
from bench.doctor.checks import MIB
from bench.measure import memory
from bench.measure.energy import burst_steps, doubt, measure
from bench.measure.operations import observe
from bench.measure.rounds import Clock, Runner, compare
from bench.measure.warmup import empty_block_ns, prepare, warm_up
from bench.phases.arms import BATCHES, TrainingLoad, TrainingRunner, enter
from bench.phases.energy import WARM_UP_S
from bench.planning import suite_registry
from bench.results.records import Device, MemoryPeak, Message
from bench.spec.precisions import parse_precision
from bench.spec.trial import Placement, Protocol, SuiteRef
from bench.stats import Interval
from bench.training.step import build_arm

Send = Callable[[Message], None]

KNOWN_NS = (3e6, 2e6)
KNOWN_CYCLES = (4_000_000, 2_000_000)
"""Steps of a known ratio: nanoseconds on a CPU; cycles on a GPU, some milliseconds too."""
KNOWN = Protocol(replicates=1, most_replicates=1, time_budget_s=2.0, fewest_rounds=5)
FINE = Protocol(replicates=1, most_replicates=1, time_budget_s=2.0, fewest_rounds=5, target_ci=0.0025)
"""Narrow enough to see 1 %."""
ADDED = 0.01
WINDOWS_S = (5.0, 10.0)
SMALL = (256, 128)
SIZES = {"cpu": SMALL, "cuda": (2048, 1024)}
"""Width and batch size of the model that is timed: steps of milliseconds, which on a GPU are not launch-bound."""
SLEPT = 0.6
"""Share of a known time that is slept; the rest is a busy wait, because a sleep ends late by some tens of µs."""
CALIBRATION_CYCLES = 20_000_000


def matmul_error(device: Device, precision: str, _send: Send) -> float | None:
    """Return the error of a matrix product under a precision's switches, against float64."""
    return enter(precision, torch_device(device)).matmul_error


def compute_dtypes(device: Device, precision: str, _send: Send) -> str:
    """Return the types that a small model's products computed in, with their shares of the FLOPs."""
    width, batch_size = SMALL
    runner = build_runner(device, precision, precision, width=width, batch_size=batch_size)
    runner.run(1)
    return observe(partial(runner.run, 1)).compute_dtypes


def timed(
    runners: Sequence[Runner], protocol: Protocol, *, seed: int = 0, clock: Clock | None = None
) -> list[Interval]:
    """Measure the log-speedup of each arm over the first as a speed trial does."""
    clock = clock or time.perf_counter_ns
    cuts = prepare(runners, protocol.process_s, clock=clock)
    paired = compare(runners, [cut.sizes for cut in cuts], protocol, seed=seed, clock=clock)
    return [log for log in paired.logs[1:] if log is not None]


def empty_block(device: Device, _send: Send) -> float:
    """Return the nanoseconds of a block without steps."""
    runner = training_runner(device)
    runner.run(1)
    return empty_block_ns(runner)


def known_ratio(device: Device, _send: Send) -> tuple[float, Interval]:
    """Return the ratio of two arms that take known times, and the log-ratio measured."""
    place = torch_device(device)
    enter("fp32", place)
    on_gpu = device.is_gpu
    long, short = KNOWN_CYCLES if on_gpu else KNOWN_NS
    arms = [
        known_step(name, place, partial(backend_of(place).spin, int(size)) if on_gpu else busy_wait(size, SLEPT))
        for name, size in (("longer", long), ("shorter", short))
    ]
    (log,) = timed(arms, KNOWN)
    return long / short, log


def against_itself(device: Device, process: int, _send: Send) -> tuple[float, float]:
    """Return the log-ratios of a training step to itself, and to itself with 1 % added, in this process."""
    base, again, longer = (training_runner(device, name) for name in ("A", "A again", "A + 1 %"))
    step_ns = warm_up(longer, FINE.time_budget_s / 2).step_ns
    arms: list[Runner] = [base, again, lengthened("A + 1 %", longer, pause(torch_device(device), ADDED * step_ns))]
    same, added = timed(arms, FINE, seed=process)
    return same.center, added.center


def peak(device: Device, held_bytes: int, _send: Send) -> MemoryPeak:
    """Return the peaks of a small training step that also holds ``held_bytes``, as the memory phase measures them."""
    width, batch_size = SMALL
    before = memory.driver_memory_bytes(device.uuid)  # before anything can make a context
    place = torch_device(device)
    enter("fp32", place)
    resident = None
    if not device.is_gpu:
        # The first step makes the system load code of the libraries, which is not the step's.
        build_runner(device, "first", "fp32", width=width, batch_size=2).run(1)
        resident = memory.resident_bytes()
    runner = build_runner(device, "fp32", "fp32", width=width, batch_size=batch_size)

    def step() -> None:
        held = torch.ones(held_bytes, dtype=torch.uint8, device=place)  # written to, or it would not be resident
        runner.run(1)
        del held

    return memory.measure_peaks(
        step,
        place,
        resident_before=resident,
        driver_before=before,
        uuid=device.uuid,
        model_bytes=memory.model_bytes(runner.arm.model),
    )


def identify(device: Device, _send: Send) -> tuple[str, bool] | None:
    """Follow a GPU's CUDA index to NVML's UUID and back.

    Returns:
        The GPU as CUDA and as NVML describe it, and whether both mean one; None where NVML does not start or does not
        know it.
    """
    nvml = open_monitor()
    if nvml is None:
        return None
    index = torch_device(device).index
    gpus = [describe_gpu(number, None) for number in range(gpu_count())]
    with nvml:
        try:
            known = nvml.gpu(gpus[index].uuid or "")
        except DeviceLostError as failure:
            print(f"NVML does not know GPU {index}: {failure}")
            return None
    back = [number for number, gpu in enumerate(gpus) if known.uuid.endswith(gpu.uuid or "none")]
    size, known_size = ((total or 0) / MIB for total in (gpus[index].memory_total_bytes, known.memory_total_bytes))
    text = (
        f"CUDA {index}: {gpus[index].name}, {size:.0f} MiB; NVML {known.uuid}: {known.name}, {known_size:.0f} MiB; "
        f"back to {', '.join(map(str, back)) or 'nothing'}"
    )
    alike = gpus[index].name == known.name and abs(size - known_size) <= 0.05 * known_size
    return text, alike and back == [index]


def energy_windows(device: Device, send: Send) -> tuple[float, float, str] | None:
    """Return the joules per step of a window of 5 s and one of 10 s, and why they are doubtful, or an empty text.

    None where the GPU tells neither energy nor power.
    """
    nvml = open_monitor()
    if nvml is None or device.uuid is None:
        return None
    runner = training_runner(device)
    burst = burst_steps(warm_up(runner, WARM_UP_S).step_ns / 1e9)
    with nvml:
        meter, load = GpuMeter(nvml, device.uuid), TrainingLoad(runner, send)
        windows = [measure(load, meter, burst=burst, seconds=seconds) for seconds in WINDOWS_S]
    first, second = windows
    if not first or not second:
        return None
    why = doubt(second, None, name=device.name, limit_w=device.power_limit_w)
    return first.energy_j / first.steps, second.energy_j / second.steps, why


def torch_device(device: Device) -> torch.device:
    """Return the device as torch names it."""
    return device_at(Placement(name=device.placement).device_of())


@dataclass(slots=True)
class StepRunner:
    """An arm made of functions: one step, and what the timing calls around it."""

    name: str
    asynchronous: bool
    step: Callable[[], object]
    synchronize: Callable[[], None]
    activate: Callable[[], None] = lambda: None
    fingerprint: Callable[[], object] = lambda: None
    steps: int = 0

    def run(self, steps: int) -> None:
        """Run, or queue, that many steps."""
        for _ in range(steps):
            self.step()
        self.steps += steps

    def taken_steps(self) -> int:
        """Return all steps."""
        return self.steps


def known_step(name: str, device: torch.device, wait: Callable[[], None]) -> StepRunner:
    """Return an arm whose steps are waits."""
    return StepRunner(name, backend_of(device).is_gpu, wait, lambda: backend_of(device).synchronize())


def lengthened(name: str, inner: Runner, wait: Callable[[], None]) -> StepRunner:
    """Return an arm whose steps are another arm's, each followed by a wait."""

    def step() -> None:
        inner.run(1)
        wait()

    return StepRunner(name, inner.asynchronous, step, inner.synchronize, inner.activate, inner.fingerprint)


def training_runner(device: Device, name: str = "fp32") -> TrainingRunner:
    """Return a small MLP in training in fp32, on batches that are on the device."""
    width, batch_size = SIZES[device.kind]
    return build_runner(device, name, "fp32", width=width, batch_size=batch_size)


def build_runner(device: Device, name: str, precision: str, *, width: int, batch_size: int) -> TrainingRunner:
    """Return an MLP of some width in training, with the precision's switches set."""
    place = torch_device(device)
    enter(precision, place)
    suite = suite_registry.load(SuiteRef(name="mlp", parameters=(("width", width),)))
    return TrainingRunner(
        name=name,
        arm=build_arm(suite, suite.data, parse_precision(precision), place, seed=0),
        batches=itertools.cycle(random_batches(suite.data, batch_size=batch_size, count=BATCHES, device=place, seed=0)),
    )


def busy_wait(time_ns: float, slept: float = 0.0) -> Callable[[], None]:
    """Return a wait of a known time on a CPU, a share of which is slept."""

    def wait() -> None:
        end = time.perf_counter_ns() + time_ns
        if slept:
            time.sleep(slept * time_ns / 1e9)
        while time.perf_counter_ns() < end:
            pass

    return wait


def pause(device: torch.device, time_ns: float) -> Callable[[], None]:
    """Return a wait that is short compared with a step: a busy one on a CPU, a spinning kernel on a GPU."""
    backend = backend_of(device)
    if not backend.is_gpu:
        return busy_wait(time_ns)
    backend.spin(CALIBRATION_CYCLES)
    backend.synchronize()
    start = time.perf_counter_ns()
    backend.spin(CALIBRATION_CYCLES)
    backend.synchronize()
    cycles_per_ns = CALIBRATION_CYCLES / (time.perf_counter_ns() - start)  # the clock as the spinning kernel sees it
    return partial(backend.spin, round(time_ns * cycles_per_ns))
