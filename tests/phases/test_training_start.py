"""What training settles before its first step: the fp32 switches, and how long a schedule is."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from torch import nn

from bench.spec.precisions import PRECISIONS
from bench.training import amp
from tests.phases.test_training import Bench, paint


def test_a_model_that_allows_tf32_when_it_is_made_is_trained_without(monkeypatch, tiny_trial, cpu, tmp_path):
    bench, seen = Bench(monkeypatch, tiny_trial, cpu, paint(tmp_path)), []

    class Looks(nn.Flatten):
        def forward(self, inputs):
            seen.append(amp.read_back(PRECISIONS["fp32"], torch.device("cpu")).fp32_matmul)
            return super().forward(inputs)

    def model(data):
        amp.apply(PRECISIONS["tf32"])
        return nn.Sequential(Looks(), nn.Linear(192, 2))

    bench.suite = replace(bench.suite, model=model)
    try:
        _, result = bench.run()
    finally:
        amp.apply(PRECISIONS["fp32"])
    assert set(seen) == {result.switches.fp32_matmul} == {"ieee"}


def test_a_schedule_runs_over_all_steps_of_all_epochs(monkeypatch, tiny_trial, cpu, tmp_path):
    bench, lengths = Bench(monkeypatch, tiny_trial, cpu, paint(tmp_path)), []

    def falling(optimizer, steps):
        lengths.append(steps)
        return torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, total_iters=steps)

    bench.suite = replace(bench.suite, schedule=falling)
    rows, _ = bench.run(epochs=2)
    assert lengths == [2 * 3]  # 12 images in batches of 4
    assert [row.learning_rate for row in rows] == pytest.approx([0.05, 0.025])
