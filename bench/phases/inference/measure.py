"""The inference phase: the forward pass in eval mode against fp32's, its time and its outputs."""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from torch import Tensor

from bench.data.batch import Batch
from bench.phases.inference import Inference
from bench.phases.speed.paired import measure
from bench.results.records import Device, Send
from bench.spec.errors import UnsupportedError
from bench.spec.precisions import BASELINE
from bench.spec.trial import Trial
from bench.training.arms import BATCHES, Context, TrainingRunner, open_context

# Single samples that are not timed, and those that are: above the 95th percentile are ten.
LATENCY_WARM_UP = 10
LATENCY_SAMPLES = 200


@dataclass
class ForwardRunner(TrainingRunner):
    """A model in eval mode; a step is the forward pass over the next batch, none is skipped."""

    def run_steps(self, steps: int) -> None:
        """Queue that many forward passes."""
        for _ in range(steps):
            self.forward(next(self.batches)[0])
            self.arm.taken.end_step(0)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the model's output for a batch, (B, ...)."""
        # Inference mode passes reshape on whole, which torchao's row-wise scaled tensors know only
        # decomposed.
        without_gradients = torch.no_grad() if self.arm.conversion else torch.inference_mode()
        with without_gradients, self.arm.autocast():
            output: Tensor = self.arm.forward(self.arm.arranged(inputs))
        return output

    def compute(self) -> None:
        """Do the products of a forward pass."""
        self.run_steps(1)

    def compiled_steps(self, batch: Batch) -> list[Callable[[], object]]:
        """Return the forward passes over a batch and over a single sample."""
        inputs = batch[0]
        sample = inputs[:1].contiguous()
        return [partial(self.forward, inputs), partial(self.forward, sample)]


def run(trial: Trial, device: Device, send: Send) -> None:
    """Time the trial's only precision against fp32 in this process, and send its result."""
    context = open_context(trial)
    (name,) = trial.arm_names
    batches = context.resident_batches(BATCHES)
    if context.suite.step is not None or not isinstance(batches[0], list | tuple):
        how = "on the first part of a batch, which this suite's step does not"
        raise UnsupportedError(f"inference calls the model {how}")
    runners = [_build(context, each, batches) for each in dict.fromkeys((BASELINE, name))]
    for runner in runners:
        runner.compile(context, send)
    paired = measure(context, runners, device, send, batches=batches)
    last = len(runners) - 1
    runner = runners[-1]
    inputs = [batch[0] for batch in batches]
    p50, p95 = np.percentile(latencies_ms(runner, inputs), [50, 95])
    agreement_pct, error = agreement(runners[0], runner, inputs)
    speedup = low = high = None
    if last:
        speedup, low, high = paired.comparison.logs[last].exp().ends
    status, detail = paired.judge(last)
    if not math.isfinite(error):
        status = "nonfinite"
        detail = "an output is infinite or NaN"
    switches = runner.switches_after_a_step()
    speed = paired.speeds[last]
    row = Inference(
        latency_p50_ms=float(p50),
        latency_p95_ms=float(p95),
        inference_samples_per_s=speed.samples_per_step / (paired.step_ns(last) / 1e9),
        inference_speedup=speedup,
        inference_speedup_low=low,
        inference_speedup_high=high,
        top1_agreement_pct=None if context.data.classes is None else agreement_pct,
        output_error=error,
    )
    result = runner.result(
        status,
        detail or speed.disturbance,
        switches=switches,
        operations=runner.operations(),
        row=row,
    )
    send(result)


def _build(context: Context, name: str, batches: Sequence[Batch]) -> ForwardRunner:
    arm = context.build(name)
    # Before anything is compiled, which specialises on the mode.
    arm.model.eval()
    return ForwardRunner(name, arm, itertools.cycle(batches))


def latencies_ms(
    runner: ForwardRunner, inputs: Sequence[Tensor], clock: Callable[[], int] = time.perf_counter_ns
) -> list[float]:
    """Return an arm's times of single samples in milliseconds, waiting for each output.

    The samples are the first ones of the batches ``inputs``, (B, ...), in turn. The clock is in
    nanoseconds.
    """
    samples = itertools.cycle([batch[:1].contiguous() for batch in inputs])
    times = []
    runner.activate()
    for sample in itertools.islice(samples, LATENCY_WARM_UP + LATENCY_SAMPLES):
        runner.synchronize()
        start = clock()
        runner.forward(sample)
        runner.synchronize()
        times.append((clock() - start) / 1e6)
    return times[LATENCY_WARM_UP:]


def agreement(
    baseline: ForwardRunner, runner: ForwardRunner, inputs: Sequence[Tensor]
) -> tuple[float, float]:
    """Compare an arm's outputs with the baseline's on batches, (B, ...).

    Returns:
        The percentage of samples, or of tokens, whose largest output is the same one, and the
        largest difference of an output over the largest absolute output of ``baseline``.
    """
    same = []
    differences = []
    sizes = []
    # Both arms are in this process, so that switches are set before each forward pass.
    for batch in inputs:  # one at a time: a vocabulary's logits for every token are large
        baseline.activate()
        expected = _rows(baseline.forward(batch), batch)
        runner.activate()
        outputs = _rows(runner.forward(batch), batch)
        same.append((expected.argmax(dim=1) == outputs.argmax(dim=1)).double())
        differences.append((outputs - expected).abs().max())
        sizes.append(expected.abs().max())
    error = torch.stack(differences).max() / torch.stack(sizes).max()  # a NaN in either stays one
    return 100 * float(torch.cat(same).mean()), float(error)


def _rows(outputs: Tensor, inputs: Tensor) -> Tensor:
    """Return the predictions for each sample as float64 rows.

    Integer ``inputs`` are tokens, and each of them has a row.
    """
    if inputs.is_floating_point():
        return outputs.double().flatten(1)
    return outputs.double().flatten(0, -2)
